"""Commits and completed tasks of a host's shards: the rows of a batch as columns, and a result for each write."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import psycopg
from psycopg import errors

from fairlead.storage.commit import Absent, Commit, CurrentWrite, IsRun, check_commit
from fairlead.storage.history import TaskKey
from fairlead.storage.history_conflicts import shard_lost
from fairlead.storage.postgres.arrays import blobs, numbers, texts
from fairlead.storage.postgres.connections import Unstorable, translated
from fairlead.storage.postgres.group_commit import Write
from fairlead.storage.postgres.pipeline import Parameter, Prepared, Row
from fairlead.storage.postgres.verdicts import AGAIN, BUSY, DONE, Done, Verdict
from fairlead.storage.visibility import VisibilityRow, encode_attributes

# Number of tasks that a batch deletes for one completion; further tasks are deleted by a separate statement.
DELETED_IN_BATCH_MAX: Final = 100

_Rows = list[tuple[Any, ...]]
_Encode = Callable[[Sequence[Any]], Parameter]

# The columns of each table in the order of the function's arguments.
_NUMBER: Final[_Encode] = numbers
_TEXT: Final[_Encode] = texts
_BLOB: Final[_Encode] = blobs
_RUNS: Final = (_NUMBER, _TEXT, _TEXT, _TEXT, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _BLOB)
_CURRENTS: Final = (_NUMBER, _TEXT, _TEXT, _TEXT, _TEXT, _NUMBER, _NUMBER, _NUMBER, _TEXT)
_BATCHES: Final = (_TEXT, _TEXT, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _BLOB)
_TASKS: Final = (_NUMBER, _TEXT, _NUMBER, _NUMBER, _BLOB)
_SEEN: Final = (
    *(_TEXT, _TEXT, _TEXT, _TEXT, _NUMBER, _NUMBER, _NUMBER, _TEXT, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER),
    *(_TEXT, _TEXT, _TEXT, _TEXT, _BLOB, _TEXT),
)
_UNSEEN: Final = (_TEXT, _TEXT)
_BRANCHES: Final = (_TEXT, _TEXT, _TEXT)
_DONE: Final = (_NUMBER, _TEXT, _NUMBER, _NUMBER, _NUMBER)
_TABLES: Final[tuple[tuple[_Encode, ...], ...]] = (_RUNS, _CURRENTS, _BATCHES, _TASKS, _SEEN, _UNSEEN, _BRANCHES, _DONE)
_RUN, _CURRENT, _BATCH, _TASK, _SEEN_ROW, _UNSEEN_ROW, _BRANCH, _COMPLETED = range(len(_TABLES))
_EMPTY: Final = tuple([encode(()) for encode in columns] for columns in _TABLES)

_TYPES: Final[dict[_Encode, str]] = {numbers: "bigint[]", texts: "text[]", blobs: "bytea[]"}


def _argument_types() -> Iterator[str]:
    yield "boolean"
    yield from ("integer[]", "bigint[]") * 2
    # Positions of the integer columns; all other numbers are bigints.
    integers = {_RUN: {0, 6}, _CURRENT: {0, 5, 7}, _TASK: {0}, _COMPLETED: {0, 4}}
    for table, columns in enumerate(_TABLES):
        for number, encode in enumerate(columns):
            yield "integer[]" if number in integers.get(table, ()) else _TYPES[encode]


_ARGUMENTS: Final = ", ".join(f"${number}::{kind}" for number, kind in enumerate(_argument_types(), start=1))
HISTORY_WRITE: Final = Prepared(
    "fairlead_history_write",
    f"SELECT outcome, place, tasks FROM history_write({_ARGUMENTS})",  # noqa: S608 - built from constants
)


class HistoryWrite(Write):
    """A commit, or a completion of a queue's tasks: the rows of each table, with text as UTF-8."""

    __slots__ = ("shard_id", "tables")

    def __init__(
        self, shard_id: int, range_id: int, tables: tuple[_Rows, ...], keys: Sequence[Hashable], size_bytes: int
    ) -> None:
        super().__init__(shard_id, range_id, keys=keys, rows=sum(map(len, tables)), size_bytes=size_bytes)
        self.shard_id = shard_id
        self.tables = tables

    @property
    def is_completion(self) -> bool:
        """Whether the write raises a completed level, for which it locks the shard exclusively."""
        return bool(self.tables[_COMPLETED])


def commit_write(shard_id: int, range_id: int, commit: Commit) -> HistoryWrite:
    """The write of a commit; raises `Unstorable` for text without a UTF-8 form."""
    size_bytes = check_commit(commit)
    tables: tuple[_Rows, ...] = ([], [], [], [], [], [], [], [])
    keys: list[Hashable] = []
    try:
        for namespace_id, workflow_id, run_id, state, expected, next_event_id, status, version in commit.runs:
            keys.append((namespace_id, workflow_id))
            ids = (namespace_id.encode(), workflow_id.encode(), run_id.encode())
            tables[_RUN].append((shard_id, *ids, expected, next_event_id, status, version, state))
        for current in commit.current:
            keys.append((current.namespace_id, current.workflow_id))
            tables[_CURRENT].append(_current_row(shard_id, current))
        for tree_id, branch_id, *numbers_of_batch, payload in commit.batches:
            keys.append(tree_id)
            tables[_BATCH].append((tree_id.encode(), branch_id.encode(), *numbers_of_batch, payload))
        for queue, fire_at_ns, task_id, payload in commit.tasks:
            tables[_TASK].append((shard_id, queue.encode(), fire_at_ns, task_id, payload))
        for row in commit.visibility:
            keys.append((row.namespace_id, row.run_id))
            if isinstance(row, VisibilityRow):
                attributes = encode_attributes(row.search_attributes)
                tables[_SEEN_ROW].append(
                    (*[value.encode() if type(value) is str else value for value in row[:-1]], attributes.encode())
                )
            else:
                tables[_UNSEEN_ROW].append((row.namespace_id.encode(), row.run_id.encode()))
        for branch in commit.branches:
            keys.append(branch.tree_id)
            ancestors = msgspec.json.encode([ancestor._asdict() for ancestor in branch.ancestors])
            tables[_BRANCH].append((branch.tree_id.encode(), branch.branch_id.encode(), ancestors))
    except UnicodeEncodeError as wrong:
        raise Unstorable(f"{wrong.object!r} has no UTF-8 form: {wrong.reason}: nothing was changed") from wrong
    return HistoryWrite(shard_id, range_id, tables, keys, size_bytes)


def completion_write(shard_id: int, range_id: int, queue: str, through: TaskKey, *, limit: int) -> HistoryWrite:
    """The write that raises the level of a queue and deletes up to `DELETED_IN_BATCH_MAX` of its tasks."""
    done = (shard_id, queue.encode(), *through, min(limit, DELETED_IN_BATCH_MAX))
    tables: tuple[_Rows, ...] = ([], [], [], [], [], [], [], [done])
    return HistoryWrite(shard_id, range_id, tables, [(shard_id, queue)], 0)


class Refused(Exception):
    """A commit's condition is not met: the kind of the row, and its index in that part of the commit."""

    def __init__(self, outcome: str, place: int) -> None:
        super().__init__(outcome, place)
        self.outcome = outcome
        self.place = place


class HistoryBatches:
    """Batches of writes of history: one call of `history_write` for many writes."""

    rows_max = 4_000
    bytes_max = 8 * 1024 * 1024

    def statement(self, *, waits: bool) -> Prepared:  # noqa: ARG002 - the function has an argument for it
        """The statement that calls the function."""
        return HISTORY_WRITE

    def parameters(self, batch: Sequence[HistoryWrite], *, waits: bool) -> list[Parameter]:
        """The columns of all rows, table by table; the fences in the order in which all hosts lock them."""
        shared, locked = _fences(batch)
        parameters: list[Parameter] = ["t" if waits else "f"]
        for fences in (shared, locked):
            parameters += [numbers([shard_id for shard_id, _ in fences]), numbers([range_id for _, range_id in fences])]
        for table, columns in enumerate(_TABLES):
            rows = list(chain.from_iterable([write.tables[table] for write in batch]))
            if rows:
                values = zip(*rows, strict=True)
                parameters += [encode(column) for encode, column in zip(columns, values, strict=True)]
            else:
                parameters += _EMPTY[table]
        return parameters

    def verdicts(self, batch: Sequence[HistoryWrite], rows: Sequence[Row]) -> list[Verdict]:
        """The result of each write. The whole batch took effect, unless a condition of one write was not met."""
        if not rows:
            return [DONE] * len(batch)
        if rows[0][0] == "completed":
            deleted = {place: tasks for _, place, tasks in rows}
            places = iter(range(1, len(rows) + 1))
            return [Done(deleted[next(places)]) if write.is_completion else DONE for write in batch]
        refused = self._refused(batch, rows)
        return [refused.get(number, AGAIN) for number in range(len(batch))]

    def error(self, write: HistoryWrite, failure: psycopg.Error) -> Exception | None:  # noqa: ARG002 - see the protocol
        """The error of one write; None if another transaction won a conflict, so that the write is tried again."""
        if isinstance(failure, errors.UniqueViolation | errors.DeadlockDetected | errors.SerializationFailure):
            return None
        return translated(failure)

    def _refused(self, batch: Sequence[HistoryWrite], rows: Sequence[Row]) -> dict[int, Verdict]:
        """The rejected writes by their number in the batch.

        If a fence and another condition fail, the fence is reported.
        """
        shared, locked = _fences(batch)
        lost: set[tuple[int, int]] = set()
        busy: set[tuple[int, int]] = set()
        refused: dict[int, Verdict] = {}
        tables = {"run": _RUN, "current": _CURRENT, "task": _TASK, "branch": _BRANCH}
        for outcome, place, _ in rows:
            name = outcome.removeprefix("busy ")
            if name in tables:
                number, index = _owner(batch, tables[name], place)
                refused.setdefault(number, BUSY if name != outcome else Refused(name, index))
            else:
                fence = (shared if name == "shared" else locked)[place - 1]
                (lost if name == outcome else busy).add(fence)
        for number, write in enumerate(batch):
            fence = (write.shard_id, write.range_id)
            if fence in lost:
                refused[number] = shard_lost(*fence)
            elif fence in busy:
                refused[number] = BUSY
        return refused


def _fences(batch: Sequence[HistoryWrite]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The shards and range ids of commits and of completions. A shard with both is listed with the completions."""
    locked = {(write.shard_id, write.range_id) for write in batch if write.is_completion}
    shared = {(write.shard_id, write.range_id) for write in batch} - locked
    return sorted(shared), sorted(locked)


def _owner(batch: Sequence[HistoryWrite], table: int, place: int) -> tuple[int, int]:
    """The number of the write that has this row of a table, and the row's index within the write."""
    index = place - 1
    for number, write in enumerate(batch):
        rows = len(write.tables[table])
        if index < rows:
            return number, index
        index -= rows
    raise IndexError(f"the batch has no row {place} in table {table}")


def _current_row(shard_id: int, current: CurrentWrite) -> tuple[Any, ...]:
    condition = current.condition
    number = 0 if isinstance(condition, Absent) else 1 if isinstance(condition, IsRun) else 2
    return (
        shard_id,
        current.namespace_id.encode(),
        current.workflow_id.encode(),
        current.run_id.encode(),
        current.request_id.encode(),
        current.status,
        current.last_write_version,
        number,
        condition.run_id.encode() if isinstance(condition, IsRun) else None,
    )
