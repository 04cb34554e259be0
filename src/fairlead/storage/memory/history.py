"""The history contract in memory, for tests and simulation: not durable, with fault injection."""
# ruff: noqa: D102 - the contract documents each method

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlead.storage.commit import (
    Ancestor,
    BadCommit,
    BatchWrite,
    BranchWrite,
    Commit,
    RunWrite,
    Segment,
    TaskWrite,
    check_commit,
    is_met,
    segments_of,
)
from fairlead.storage.history import (
    BATCHES_A_PAGE_MAX,
    TASK_KEY_ZERO,
    TASKS_COMPLETED_MAX,
    CurrentRun,
    ListedRun,
    RunKey,
    ShardLease,
    StoredBatch,
    StoredHistoryTask,
    StoredRun,
    TaskKey,
)
from fairlead.storage.history_conflicts import (
    current_conflict,
    fork_broken,
    run_conflict,
    shard_lost,
    task_below_level,
)
from fairlead.storage.memory.faults import FaultsAt
from fairlead.storage.memory.slots import MemorySlots
from fairlead.storage.predicates import Predicate, normal_form
from fairlead.storage.visibility import GROUPS_MAX, LATEST_FIRST, Cursor, Field, Group, Order, VisibilityRow, cursor_of
from fairlead.storage.visibility_order import Sort, sorted_rows
from fairlead.storage.visibility_predicates import holds, value_of


@dataclass(slots=True)
class _Queue:
    keys: list[TaskKey] = field(default_factory=list)
    payloads: dict[TaskKey, bytes] = field(default_factory=dict)

    def add(self, key: TaskKey, payload: bytes) -> None:
        if key not in self.payloads:
            insort(self.keys, key)
        self.payloads[key] = payload

    def delete(self, keys: Sequence[TaskKey]) -> int:
        found = [key for key in keys if self.payloads.pop(key, None) is not None]
        for key in found:
            del self.keys[bisect_left(self.keys, key)]
        return len(found)


@dataclass(slots=True)
class _Shard:
    range_id: int = 0
    levels: dict[str, TaskKey] = field(default_factory=dict)
    queues: dict[str, _Queue] = field(default_factory=dict)
    runs: dict[RunKey, StoredRun] = field(default_factory=dict)
    currents: dict[tuple[str, str], CurrentRun] = field(default_factory=dict)


@dataclass(slots=True)
class _Branch:
    ancestors: tuple[Ancestor, ...] = ()
    is_deleted: bool = False
    first_event_ids: list[int] = field(default_factory=list)
    batches: dict[int, StoredBatch] = field(default_factory=dict)

    def write(self, batch: StoredBatch) -> None:
        present = self.batches.get(batch.first_event_id)
        if present is None:
            insort(self.first_event_ids, batch.first_event_id)
        if present is None or batch.transaction_id > present.transaction_id:
            self.batches[batch.first_event_id] = batch

    def ends_before(self, event_id: int) -> bool:
        """Whether a batch ends just before the event."""
        position = bisect_left(self.first_event_ids, event_id)
        return position > 0 and self.batches[self.first_event_ids[position - 1]].last_event_id == event_id - 1

    def between(self, segment: Segment) -> list[StoredBatch]:
        start = max(bisect_right(self.first_event_ids, segment.from_event_id) - 1, 0)
        end = bisect_left(self.first_event_ids, segment.to_event_id)
        found = [self.batches[first] for first in self.first_event_ids[start:end]]
        return [batch for batch in found if batch.last_event_id >= segment.from_event_id]

    def delete_from(self, event_id: int) -> None:
        position = bisect_left(self.first_event_ids, event_id)
        for first in self.first_event_ids[position:]:
            del self.batches[first]
        del self.first_event_ids[position:]


class MemoryHistory(MemorySlots):
    """A `HistoryStore` without disk, clock or threads: without faults each call completes without waiting."""

    _location_prefix = "shard "

    def __init__(self, faults: FaultsAt[int | None] | None = None) -> None:
        super().__init__(faults)
        self._shards: dict[int, _Shard] = {}
        self._trees: dict[str, dict[str, _Branch]] = {}
        self._visibility: dict[str, dict[str, VisibilityRow]] = {}

    def _check_owned(self, shard_id: int, range_id: int) -> None:
        self._owned(shard_id, range_id)

    async def take_shard(self, shard_id: int) -> ShardLease:
        def take() -> ShardLease:
            shard = self._shards.setdefault(shard_id, _Shard())
            shard.range_id += 1
            return ShardLease(shard.range_id, dict(shard.levels))

        return await self._change("take_shard", shard_id, take)

    async def renew_shard(self, shard_id: int, range_id: int) -> int:
        def renew() -> int:
            shard = self._owned(shard_id, range_id)
            shard.range_id += 1
            return shard.range_id

        return await self._change("renew_shard", shard_id, renew)

    async def commit(self, shard_id: int, range_id: int, commit: Commit) -> None:
        check_commit(commit)

        def write() -> None:
            shard = self._owned(shard_id, range_id)
            self._check(shard, commit)
            self._write(shard, commit)

        await self._change("commit", shard_id, write)

    async def read_run(self, shard_id: int, namespace_id: str, workflow_id: str, run_id: str) -> StoredRun | None:
        key = RunKey(namespace_id, workflow_id, run_id)
        return await self._read("read_run", shard_id, lambda: self._shard(shard_id).runs.get(key))

    async def read_current(self, shard_id: int, namespace_id: str, workflow_id: str) -> CurrentRun | None:
        key = (namespace_id, workflow_id)
        return await self._read("read_current", shard_id, lambda: self._shard(shard_id).currents.get(key))

    async def list_runs(self, shard_id: int, *, after: RunKey | None, limit: int) -> list[ListedRun]:
        def find() -> list[ListedRun]:
            runs = self._shard(shard_id).runs
            keys = sorted(key for key in runs if after is None or key > after)
            return [ListedRun(*runs[key][:3], *runs[key][4:]) for key in keys[:limit]]

        return await self._read("list_runs", shard_id, find)

    async def read_branch(
        self,
        tree_id: str,
        branch_id: str,
        from_event_id: int,
        to_event_id: int,
        *,
        limit_bytes: int,
        reverse: bool = False,
    ) -> list[StoredBatch]:
        def find() -> list[StoredBatch]:
            tree = self._trees.get(tree_id, {})
            branch = tree.get(branch_id)
            if branch is None or branch.is_deleted:
                return []
            segments = segments_of(
                branch_id, branch.ancestors, from_event_id=from_event_id, to_event_id=to_event_id, reverse=reverse
            )
            page: list[StoredBatch] = []
            size_bytes = 0
            for segment in segments:
                found = tree.get(segment.branch_id, _Branch()).between(segment)
                for batch in reversed(found) if reverse else found:
                    size_bytes += len(batch.payload)
                    if page and (size_bytes > limit_bytes or len(page) >= BATCHES_A_PAGE_MAX):
                        return page
                    page.append(batch)
            return page

        return await self._read("read_branch", None, find)

    async def read_tasks(
        self, shard_id: int, queue: str, *, after: TaskKey, until_ns: int | None, limit: int
    ) -> list[StoredHistoryTask]:
        def find() -> list[StoredHistoryTask]:
            stored = self._shard(shard_id).queues.get(queue, _Queue())
            start = bisect_right(stored.keys, after)
            keys = stored.keys[start : start + limit]
            return [
                StoredHistoryTask(key, stored.payloads[key])
                for key in keys
                if until_ns is None or key.fire_at_ns <= until_ns
            ]

        return await self._read("read_tasks", shard_id, find)

    async def complete_tasks(
        self,
        shard_id: int,
        range_id: int,
        queue: str,
        through: TaskKey | None = None,
        *,
        singles: Sequence[TaskKey] = (),
        limit: int = TASKS_COMPLETED_MAX,
    ) -> int:
        if len(singles) > TASKS_COMPLETED_MAX:
            raise BadCommit(f"{len(singles)} single tasks to complete, the limit is {TASKS_COMPLETED_MAX}")

        def complete() -> int:
            shard = self._owned(shard_id, range_id)
            stored = shard.queues.setdefault(queue, _Queue())
            deleted = stored.delete(singles)
            if through is None:
                return deleted
            shard.levels[queue] = max(through, shard.levels.get(queue, TASK_KEY_ZERO))
            return deleted + stored.delete(stored.keys[: min(bisect_right(stored.keys, through), limit)])

        return await self._change("complete_tasks", shard_id, complete)

    async def delete_run(
        self, shard_id: int, range_id: int, key: RunKey, *, branches: Sequence[tuple[str, str]] = ()
    ) -> None:
        def delete() -> None:
            shard = self._owned(shard_id, range_id)
            shard.runs.pop(key, None)
            current = shard.currents.get((key.namespace_id, key.workflow_id))
            if current is not None and current.run_id == key.run_id:
                del shard.currents[key.namespace_id, key.workflow_id]
            self._visibility.get(key.namespace_id, {}).pop(key.run_id, None)
            for tree_id, branch_id in branches:
                branch = self._trees.get(tree_id, {}).get(branch_id)
                if branch is not None:
                    branch.is_deleted = True
                self._delete_unneeded(tree_id)

        await self._change("delete_run", shard_id, delete)

    async def list_visibility(
        self,
        namespace_id: str,
        where: Predicate | None = None,
        *,
        order: Order | Sort = LATEST_FIRST,
        after: Cursor | None = None,
        limit: int,
    ) -> list[VisibilityRow]:
        def find() -> list[VisibilityRow]:
            if isinstance(order, Sort):
                return sorted_rows(self._rows(namespace_id, where), order, after)[:limit]
            rows = sorted(
                self._rows(namespace_id, where), key=lambda row: cursor_of(row, order), reverse=order.descending
            )
            if after is not None:
                rows = [row for row in rows if cursor_of(row, order) != after]
                rows = [row for row in rows if (cursor_of(row, order) < after) is order.descending]
            return rows[:limit]

        return await self._read("list_visibility", None, find)

    async def count_visibility(
        self, namespace_id: str, where: Predicate | None = None, *, group_by: Field | None = None
    ) -> list[Group]:
        def count() -> list[Group]:
            rows = self._rows(namespace_id, where)
            if group_by is None:
                return [Group(None, len(rows))]
            values = Counter(value_of(row, group_by) for row in rows)
            return [Group(value, number) for value, number in values.most_common(GROUPS_MAX)]

        return await self._read("count_visibility", None, count)

    def _check(self, shard: _Shard, commit: Commit) -> None:
        for current in commit.current:
            present = shard.currents.get((current.namespace_id, current.workflow_id))
            if not is_met(current.condition, present):
                raise current_conflict(current, present)
        for run in commit.runs:
            stored = shard.runs.get(RunKey.of(run))
            if run.expected_db_version != (None if stored is None else stored.db_version):
                raise run_conflict(run, stored)
        for task in commit.tasks:
            level = shard.levels.get(task.queue)
            if level is not None and (task.fire_at_ns, task.task_id) <= level:
                raise task_below_level(task, level)
        for branch in commit.branches:
            tree = self._trees.get(branch.tree_id, {})
            for ancestor in branch.ancestors:
                if not tree.get(ancestor.branch_id, _Branch()).ends_before(ancestor.end_event_id):
                    raise fork_broken(branch, ancestor)

    def _write(self, shard: _Shard, commit: Commit) -> None:
        for run in commit.runs:
            self._write_run(shard, run)
        for current in commit.current:
            shard.currents[current.namespace_id, current.workflow_id] = CurrentRun.of(current)
        for branch in commit.branches:
            self._write_branch(branch)
        for batch in commit.batches:
            self._write_batch(batch)
        for task in commit.tasks:
            self._write_task(shard, task)
        for row in commit.visibility:
            rows = self._visibility.setdefault(row.namespace_id, {})
            if isinstance(row, VisibilityRow):
                rows[row.run_id] = row
            else:
                rows.pop(row.run_id, None)

    def _write_run(self, shard: _Shard, run: RunWrite) -> None:
        shard.runs[RunKey.of(run)] = StoredRun(
            *RunKey.of(run),
            run.state,
            (run.expected_db_version or 0) + 1,
            next_event_id=run.next_event_id,
            status=run.status,
            last_write_version=run.last_write_version,
        )

    def _write_branch(self, write: BranchWrite) -> None:
        branch = self._trees.setdefault(write.tree_id, {}).setdefault(write.branch_id, _Branch())
        branch.ancestors = write.ancestors
        branch.is_deleted = False

    def _write_batch(self, batch: BatchWrite) -> None:
        branch = self._trees.setdefault(batch.tree_id, {}).setdefault(batch.branch_id, _Branch())
        branch.write(StoredBatch(*batch[2:]))

    def _write_task(self, shard: _Shard, task: TaskWrite) -> None:
        shard.queues.setdefault(task.queue, _Queue()).add(TaskKey(task.fire_at_ns, task.task_id), task.payload)

    def _delete_unneeded(self, tree_id: str) -> None:
        tree = self._trees.get(tree_id, {})
        needed: dict[str, int] = {}
        for branch in tree.values():
            for ancestor in () if branch.is_deleted else branch.ancestors:
                needed[ancestor.branch_id] = max(needed.get(ancestor.branch_id, 0), ancestor.end_event_id)
        for branch_id, branch in list(tree.items()):
            if branch.is_deleted:
                branch.delete_from(needed.get(branch_id, 0))
                if branch_id not in needed:
                    del tree[branch_id]

    def _rows(self, namespace_id: str, where: Predicate | None) -> list[VisibilityRow]:
        if where is not None:
            # Called only for its checks: reject the same predicates as the other stores.
            normal_form(where)
        rows = self._visibility.get(namespace_id, {}).values()
        return [row for row in rows if where is None or holds(where, row) is True]

    def _shard(self, shard_id: int) -> _Shard:
        return self._shards.get(shard_id) or _Shard()

    def _owned(self, shard_id: int, range_id: int) -> _Shard:
        shard = self._shards.get(shard_id)
        if shard is None or shard.range_id != range_id:
            raise shard_lost(shard_id, range_id, None if shard is None else shard.range_id)
        return shard
