"""A commit of a shard: the rows that one transaction writes, their conditions and their bounds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fairlead.core.errors import FixRequest
from fairlead.storage.visibility import (
    VisibilityDelete,
    VisibilityRow,
    check_row,
)

if TYPE_CHECKING:
    from fairlead.storage.history import CurrentRun

COMMIT_ROWS_MAX = 20_000
COMMIT_BYTES_MAX = 64 * 1024 * 1024


class BadCommit(FixRequest):
    """A commit that no store accepts: it is too large, or writes the same row twice."""


class RunWrite(NamedTuple):
    """Write a run: `expected_db_version` is the version that was read, or None for a new run."""

    namespace_id: str
    workflow_id: str
    run_id: str
    state: bytes
    expected_db_version: int | None
    next_event_id: int
    status: int
    last_write_version: int


class BatchWrite(NamedTuple):
    """Append a batch to a branch; creates the branch if it does not exist.

    If two writes have the same branch and first event id, the write with the higher transaction id wins. Other batches
    of a branch do not overlap.
    """

    tree_id: str
    branch_id: str
    first_event_id: int
    last_event_id: int
    version: int
    transaction_id: int
    payload: bytes


class Ancestor(NamedTuple):
    """The part of a branch that another branch of the same tree holds: the events before `end_event_id`.

    Each ancestor continues the previous ancestor in the list.
    """

    branch_id: str
    end_event_id: int


class BranchWrite(NamedTuple):
    """Create a branch that begins with events of other branches. Every fork is at the end of a batch."""

    tree_id: str
    branch_id: str
    ancestors: tuple[Ancestor, ...]


class Absent(NamedTuple):
    """Condition: the workflow id has no current run. It was never used, or all of its runs are deleted."""


class IsRun(NamedTuple):
    """Condition: this run is the current run."""

    run_id: str


class NotOpen(NamedTuple):
    """Condition: there is no current run, or it is closed."""


class CurrentWrite(NamedTuple):
    """Make this run the current run of its workflow id if the present current run meets the condition."""

    namespace_id: str
    workflow_id: str
    run_id: str
    request_id: str
    status: int
    last_write_version: int
    condition: Absent | IsRun | NotOpen


class TaskWrite(NamedTuple):
    """Add a task to a queue, above its completed level; a task with the same key is replaced."""

    queue: str
    fire_at_ns: int
    task_id: int
    payload: bytes


class Commit(NamedTuple):
    """The writes of one transaction: all or nothing."""

    runs: Sequence[RunWrite] = ()
    batches: Sequence[BatchWrite] = ()
    branches: Sequence[BranchWrite] = ()
    current: Sequence[CurrentWrite] = ()
    tasks: Sequence[TaskWrite] = ()
    visibility: Sequence[VisibilityRow | VisibilityDelete] = ()


def check_commit(commit: Commit) -> int:
    """Return the size of a commit in bytes; raises `BadCommit` or `BadSearch` if no store accepts it."""
    rows = sum(map(len, commit))
    if rows > COMMIT_ROWS_MAX:
        raise BadCommit(f"the commit has {rows} rows, the limit is {COMMIT_ROWS_MAX}: split it")
    if len(commit.runs) > 1:
        _check_distinct("run", [write[:3] for write in commit.runs])
    if len(commit.batches) > 1:
        _check_distinct("batch", [write[:3] for write in commit.batches])
    if len(commit.branches) > 1:
        _check_distinct("branch", [write[:2] for write in commit.branches])
    if len(commit.current) > 1:
        _check_distinct("current run", [write[:2] for write in commit.current])
    if len(commit.tasks) > 1:
        _check_distinct("task", [write[:3] for write in commit.tasks])
    if len(commit.visibility) > 1:
        _check_distinct("visibility row", [write[:2] for write in commit.visibility])
    for row in commit.visibility:
        if isinstance(row, VisibilityRow):
            check_row(row)
    size_bytes = (
        sum([len(write.state) for write in commit.runs])
        + sum([len(write.payload) for write in commit.batches])
        + sum([len(write.payload) for write in commit.tasks])
    )
    if size_bytes > COMMIT_BYTES_MAX:
        raise BadCommit(f"the commit has {size_bytes} bytes, the limit is {COMMIT_BYTES_MAX}: split it")
    return size_bytes


def is_met(condition: Absent | IsRun | NotOpen, present: "CurrentRun | None") -> bool:
    """Whether the current run of a workflow id meets the condition."""
    if isinstance(condition, Absent):
        return present is None
    if isinstance(condition, IsRun):
        return present is not None and present.run_id == condition.run_id
    return present is None or present.is_closed


class Segment(NamedTuple):
    """A range of a branch's events, and the branch of the tree that holds it."""

    branch_id: str
    from_event_id: int
    to_event_id: int


def segments_of(
    branch_id: str, ancestors: Sequence[Ancestor], *, from_event_id: int, to_event_id: int, reverse: bool
) -> list[Segment]:
    """The segments that hold the events of a range, in the order of reading."""
    found = []
    begin = 0
    for holder_id, end in [*ancestors, Ancestor(branch_id, to_event_id)]:
        segment = Segment(holder_id, max(begin, from_event_id), min(end, to_event_id))
        if segment.from_event_id < segment.to_event_id:
            found.append(segment)
        begin = max(begin, end)
    return found[::-1] if reverse else found


def _check_distinct(what: str, keys: Sequence[tuple[object, ...]]) -> None:
    if len(set(keys)) < len(keys):
        raise BadCommit(f"the commit writes the same {what} twice: {len(keys)} writes of {len(set(keys))}")
