# ruff: noqa: D102 - the contract documents each change
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from fairlead.storage.commit import Ancestor, BatchWrite, BranchWrite, Commit, RunWrite, is_met
from fairlead.storage.history import TASK_KEY_ZERO, CurrentRun, RunKey, ShardLease, StoredRun, TaskKey
from fairlead.storage.history_conflicts import (
    RunConflict,
    current_conflict,
    fork_broken,
    run_conflict,
    shard_lost,
    task_below_level,
)
from fairlead.storage.sqlite import history_statements as statements
from fairlead.storage.sqlite.many_rows import execute_rows
from fairlead.storage.sqlite.visibility_log import VisibilityLog
from fairlead.storage.visibility import VisibilityDelete

# Maximum number of cached entries of each kind between transactions, a few hundred bytes each.
REMEMBERED_MAX = 20_000

_RunRowKey = tuple[int, str, str, str]
_CurrentRowKey = tuple[int, str, str]
_BranchRowKey = tuple[str, str]


@dataclass(slots=True)
class _Shard:
    range_id: int
    levels: dict[str, TaskKey]


@dataclass(slots=True)
class _Run:
    number: int
    db_version: int


class CommitChange(partial[None]):
    """`HistoryTables.commit` with its arguments, from which `read_ahead` sees what to read."""

    args: tuple[int, int, Commit]


class HistoryTables:
    """Changes of history in one transaction at a time. Each change is made completely, or rejected without effect.

    The commits of many callers share a transaction, so their rows are gathered into few statements. Leases, versions
    and current runs are cached, which is correct as long as no other process writes to the file; the caches are cleared
    if a transaction fails.
    """

    def __init__(self, writer: sqlite3.Connection) -> None:
        self._writer = writer
        self._shards: dict[int, _Shard] = {}
        self._runs: dict[_RunRowKey, _Run] = {}
        # None if the workflow id is known to have no current run.
        self._currents: dict[_CurrentRowKey, CurrentRun | None] = {}
        self._branches: dict[_BranchRowKey, int] = {}
        # The highest run number assigned so far; None until it is read. Numbers of rolled back runs are not used again.
        self._last_run: int | None = None
        # Changes of this transaction that are not yet written.
        self._changed_runs: dict[int, tuple[Any, ...]] = {}
        self._changed_currents: dict[_CurrentRowKey, CurrentRun] = {}
        self._batches: list[BatchWrite] = []
        self._tasks: list[Any] = []
        self.visibility = VisibilityLog(writer)

    def read_ahead(self, changes: Sequence[object]) -> None:
        """Read the current runs on which the commits among these changes depend."""
        commits = [change.args for change in changes if type(change) is CommitChange]
        row_keys = {
            (shard_id, current.namespace_id, current.workflow_id)
            for shard_id, _, commit in commits
            for current in commit.current
        }
        # Don't subtract `keys()`: Python would hash all cached keys, two milliseconds for each transaction.
        unknown = {row_key for row_key in row_keys if row_key not in self._currents}
        if not unknown:
            return
        values = [value for row_key in unknown for value in row_key]
        found = execute_rows(self._writer, statements.find_currents, values, statements.CURRENT_KEY_COLUMNS)
        self._currents.update(dict.fromkeys(unknown))
        for shard_id, *row in found:
            self._currents[shard_id, row[0], row[1]] = CurrentRun(*row)

    def flush(self) -> None:
        """Write all pending changes; raises `RunConflict` if a new run exists already."""
        self._write_runs()
        self._write_batches()
        currents: list[Any] = []
        for (shard_id, _, _), row in self._changed_currents.items():
            currents.append(shard_id)
            currents += row
        execute_rows(self._writer, statements.save_currents, currents, statements.CURRENT_COLUMNS)
        self._changed_currents.clear()
        self._write_tasks()
        self.visibility.flush()

    def committed(self) -> None:
        """Drop excess cache entries after a commit. Before the commit, an entry may be the only copy of a change."""
        self.visibility.committed()
        remembered: tuple[dict[Any, Any], ...] = (self._shards, self._runs, self._currents, self._branches)
        for kind in remembered:
            if len(kind) > REMEMBERED_MAX:
                # Many at once: the first key of a dict is found by passing all entries deleted before it.
                for key in list(islice(kind, len(kind) - REMEMBERED_MAX * 49 // 50)):
                    del kind[key]

    def forget(self) -> None:
        """Clear all caches and pending changes, before a rollback."""
        self._shards.clear()
        self._runs.clear()
        self._currents.clear()
        self._branches.clear()
        self._changed_runs.clear()
        self._changed_currents.clear()
        self._batches.clear()
        self._tasks.clear()
        self.visibility.forget()

    def take_shard(self, shard_id: int) -> ShardLease:
        shard = self._find_shard(shard_id)
        if shard is None:
            shard = self._shards[shard_id] = _Shard(0, {})
        shard.range_id += 1
        self._writer.execute(statements.SAVE_SHARD, (shard_id, shard.range_id))
        return ShardLease(shard.range_id, dict(shard.levels))

    def renew_shard(self, shard_id: int, range_id: int) -> int:
        shard = self.owned(shard_id, range_id)
        shard.range_id += 1
        self._writer.execute(statements.SAVE_SHARD, (shard_id, shard.range_id))
        return shard.range_id

    def commit(self, shard_id: int, range_id: int, commit: Commit) -> None:
        shard = self.owned(shard_id, range_id)
        self._check(shard_id, shard, commit)
        # No conflict is possible from here on.
        for run in commit.runs:
            self._change_run(shard_id, run)
        for current in commit.current:
            row_key = (shard_id, current.namespace_id, current.workflow_id)
            self._currents[row_key] = self._changed_currents[row_key] = CurrentRun.of(current)
        for branch in commit.branches:
            ancestors = msgspec.json.encode(branch.ancestors).decode()
            self._writer.execute(statements.SAVE_BRANCH, (branch.tree_id, branch.branch_id, ancestors))
        self._batches += commit.batches
        for task in commit.tasks:
            self._tasks.append(shard_id)
            self._tasks += task
        if commit.visibility:
            self.visibility.add(commit.visibility)

    def complete_tasks(
        self,
        shard_id: int,
        range_id: int,
        queue: str,
        through: TaskKey | None,
        *,
        singles: Sequence[TaskKey],
        limit: int,
    ) -> int:
        shard = self.owned(shard_id, range_id)
        # The tasks to delete may still be unwritten in this transaction.
        self._write_tasks()
        row_keys = [(shard_id, queue, *key) for key in singles]
        deleted = self._writer.executemany(statements.DELETE_TASK, row_keys).rowcount if row_keys else 0
        if through is None:
            return deleted
        row_key = (shard_id, queue)
        last = self._writer.execute(statements.LAST_TO_DELETE, (*row_key, *through, limit - 1)).fetchone()
        deleted += self._writer.execute(statements.DELETE_TASKS, (*row_key, *(last or through))).rowcount
        if through > shard.levels.get(queue, TASK_KEY_ZERO):
            shard.levels[queue] = through
            self._writer.execute(statements.SAVE_LEVEL, (*row_key, *through))
        return deleted

    def delete_run(self, shard_id: int, range_id: int, key: RunKey, branches: Sequence[_BranchRowKey]) -> None:
        self.owned(shard_id, range_id)
        self.flush()
        self._writer.execute(statements.DELETE_RUN, (shard_id, *key))
        self._writer.execute(statements.DELETE_CURRENT, (shard_id, *key))
        self.visibility.add([VisibilityDelete(key.namespace_id, key.run_id)])
        self._runs.pop((shard_id, *key), None)
        self._currents.pop((shard_id, key.namespace_id, key.workflow_id), None)
        for row_key in branches:
            self._writer.execute(statements.MARK_BRANCH_DELETED, row_key)
        for tree_id in dict.fromkeys(tree_id for tree_id, _ in branches):
            self._delete_unneeded(tree_id)

    def _check(self, shard_id: int, shard: _Shard, commit: Commit) -> None:
        for current in commit.current:
            present = self._find_current((shard_id, current.namespace_id, current.workflow_id))
            if not is_met(current.condition, present):
                raise current_conflict(current, present)
        for run in commit.runs:
            row_key = (shard_id, run.namespace_id, run.workflow_id, run.run_id)
            if run.expected_db_version is None:
                # If the stored run is not cached, a conflict is detected later, when the run is written: new runs
                # rarely have the id of an existing run, and a look-up for each would cost more.
                is_expected = row_key not in self._runs
            else:
                stored = self._find_run(row_key)
                is_expected = stored is not None and stored.db_version == run.expected_db_version
            if not is_expected:
                self._write_runs()
                raise run_conflict(run, self._read_run(row_key))
        for task in commit.tasks:
            level = shard.levels.get(task.queue)
            if level is not None and (task.fire_at_ns, task.task_id) <= level:
                raise task_below_level(task, level)
        for branch in commit.branches:
            self._check_fork(branch)

    def _check_fork(self, branch: BranchWrite) -> None:
        self._write_batches()
        for ancestor in branch.ancestors:
            row_key = (branch.tree_id, ancestor.branch_id)
            end = ancestor.end_event_id
            if self._writer.execute(statements.HAS_BATCH_TO, (*row_key, *row_key, end, end - 1)).fetchone() is None:
                raise fork_broken(branch, ancestor)

    def _change_run(self, shard_id: int, write: RunWrite) -> None:
        row_key = (shard_id, write.namespace_id, write.workflow_id, write.run_id)
        run = self._runs.get(row_key)
        if run is None:
            if self._last_run is None:
                (self._last_run,) = self._writer.execute(statements.LAST_RUN).fetchone()
            self._last_run += 1
            run = self._runs[row_key] = _Run(self._last_run, 0)
        run.db_version += 1
        rest = (write.next_event_id, write.status, write.last_write_version, write.state)
        self._changed_runs[run.number] = (run.number, *row_key, run.db_version, *rest)

    def _write_runs(self) -> None:
        values = [value for row in self._changed_runs.values() for value in row]
        try:
            execute_rows(self._writer, statements.save_runs, values, statements.RUN_COLUMNS)
        except sqlite3.IntegrityError as refused:
            if refused.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_UNIQUE:
                raise
            raise self._taken_run() from refused
        # Clear only after success: after a conflict, the flush at the end of the transaction must fail too.
        self._changed_runs.clear()

    def _taken_run(self) -> RunConflict:
        """The conflict for a new run whose id is in use."""
        for number, *row_key, _, _, _, _, _ in self._changed_runs.values():
            found = self._writer.execute(statements.FIND_RUN, row_key).fetchone()
            if found is not None and found[0] != number:
                present = self._read_run((row_key[0], row_key[1], row_key[2], row_key[3]))
                return RunConflict(f"run {row_key[3]} of {row_key[2]!r} exists already: nothing was changed", present)
        return RunConflict("one of the new runs exists already: nothing was changed", None)

    def _write_batches(self) -> None:
        if not self._batches:
            return
        self._number_branches()
        rows: list[Any] = []
        for batch in self._batches:
            rows.append(self._branches[batch.tree_id, batch.branch_id])
            rows += batch[2:]
        execute_rows(self._writer, statements.save_batches, rows, statements.BATCH_COLUMNS)
        self._batches.clear()

    def _number_branches(self) -> None:
        """Look up or assign the number of each branch that has a batch to write."""
        branches = self._branches
        unknown = {
            (batch.tree_id, batch.branch_id): None
            for batch in self._batches
            if (batch.tree_id, batch.branch_id) not in branches
        }
        if not unknown:
            return
        values = [part for row_key in unknown for part in row_key]
        for tree_id, branch_id, number in execute_rows(
            self._writer, statements.number_branches, values, statements.BRANCH_COLUMNS
        ):
            branches[tree_id, branch_id] = number

    def _write_tasks(self) -> None:
        execute_rows(self._writer, statements.save_tasks, self._tasks, statements.TASK_COLUMNS)
        self._tasks.clear()

    def _delete_unneeded(self, tree_id: str) -> None:
        """Delete the events of deleted branches that no other branch of the tree shares."""
        branches = self._writer.execute(statements.BRANCHES_OF_TREE, (tree_id,)).fetchall()
        needed: dict[str, int] = {}
        for _, _, ancestors, is_deleted in branches:
            for ancestor in () if is_deleted else ancestors_of(ancestors):
                needed[ancestor.branch_id] = max(needed.get(ancestor.branch_id, 0), ancestor.end_event_id)
        for number, branch_id, _, is_deleted in branches:
            if not is_deleted:
                continue
            self._writer.execute(statements.DELETE_BATCHES_FROM, (number, needed.get(branch_id, 0)))
            if branch_id not in needed:
                self._writer.execute(statements.DELETE_BRANCH, (number,))
                self._branches.pop((tree_id, branch_id), None)

    def _find_shard(self, shard_id: int) -> _Shard | None:
        shard = self._shards.get(shard_id)
        if shard is not None:
            return shard
        row = self._writer.execute(statements.FIND_SHARD, (shard_id,)).fetchone()
        if row is None:
            return None
        levels = self._writer.execute(statements.FIND_LEVELS, (shard_id,)).fetchall()
        shard = _Shard(row[0], {queue: TaskKey(fire_at_ns, task_id) for queue, fire_at_ns, task_id in levels})
        self._shards[shard_id] = shard
        return shard

    def owned(self, shard_id: int, range_id: int) -> _Shard:
        """Return the shard; raise `LeaseLost` unless it has this range id."""
        shard = self._find_shard(shard_id)
        if shard is None or shard.range_id != range_id:
            raise shard_lost(shard_id, range_id, None if shard is None else shard.range_id)
        return shard

    def _find_run(self, row_key: _RunRowKey) -> _Run | None:
        run = self._runs.get(row_key)
        if run is None:
            row = self._writer.execute(statements.FIND_RUN, row_key).fetchone()
            if row is not None:
                run = self._runs[row_key] = _Run(*row)
        return run

    def _read_run(self, row_key: _RunRowKey) -> StoredRun | None:
        row = self._writer.execute(statements.READ_RUN, row_key).fetchone()
        return None if row is None else StoredRun(*row)

    def _find_current(self, row_key: _CurrentRowKey) -> CurrentRun | None:
        if row_key not in self._currents:
            row = self._writer.execute(statements.READ_CURRENT, row_key).fetchone()
            self._currents[row_key] = None if row is None else CurrentRun(*row)
        return self._currents[row_key]


def ancestors_of(encoded: str) -> list[Ancestor]:
    """The ancestors in the row of a branch."""
    return [Ancestor(*pair) for pair in msgspec.json.decode(encoded)]
