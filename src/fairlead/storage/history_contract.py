"""What the history service asks of a store, and what a store promises in return.

Acknowledged means durable. Every write to a shard carries the range id of its owner's lease and is refused with
`LeaseLost`, without any change, once another owner has taken the shard; that is checked in the same transaction as the
write. A write that ends in `OutcomeUnknown` may have taken effect, and may yet, until the shard is renewed or taken.

A range of events is half open: `from_event_id` is in it, `to_event_id` and `end_event_id` are not.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fairlead.core.errors import FixRequest, RetryElsewhere
from fairlead.storage.contract import LeaseLost, OutcomeUnknown, StoreUnavailable
from fairlead.storage.history_visibility import (
    GROUPS_MAX,
    LATEST_FIRST,
    And,
    Attribute,
    BadSearch,
    Between,
    Column,
    Compare,
    Contains,
    Cursor,
    Field,
    Group,
    HasWord,
    In,
    IsNull,
    Not,
    Operator,
    Or,
    Order,
    Predicate,
    SearchValue,
    StartsWith,
    Text,
    VisibilityDelete,
    VisibilityRow,
    check_row,
    cursor_of,
    words_of,
)

__all__ = [
    "GROUPS_MAX",
    "LATEST_FIRST",
    "And",
    "Attribute",
    "BadSearch",
    "Between",
    "Column",
    "Compare",
    "Contains",
    "Cursor",
    "Field",
    "Group",
    "HasWord",
    "In",
    "IsNull",
    "LeaseLost",
    "Not",
    "Operator",
    "Or",
    "Order",
    "OutcomeUnknown",
    "Predicate",
    "SearchValue",
    "StartsWith",
    "StoreUnavailable",
    "Text",
    "VisibilityDelete",
    "VisibilityRow",
    "cursor_of",
    "words_of",
]

COMMIT_ROWS_MAX = 20_000
COMMIT_BYTES_MAX = 64 * 1024 * 1024
BATCHES_A_PAGE_MAX = 1000
TASKS_COMPLETED_MAX = 10_000

# Running and paused, by the numbers of Temporal's WorkflowExecutionStatus; every other status is of a closed run.
OPEN_STATUSES = frozenset({1, 8})


class RunKey(NamedTuple):
    """What a run is known by."""

    namespace_id: str
    workflow_id: str
    run_id: str


class StoredRun(NamedTuple):
    """A run as it was last written. `db_version` is 1 at first and one more with each write."""

    namespace_id: str
    workflow_id: str
    run_id: str
    state: bytes
    db_version: int
    next_event_id: int
    status: int
    last_write_version: int


class ListedRun(NamedTuple):
    """A run without its state."""

    namespace_id: str
    workflow_id: str
    run_id: str
    db_version: int
    next_event_id: int
    status: int
    last_write_version: int


class CurrentRun(NamedTuple):
    """Which run a workflow id stands for."""

    namespace_id: str
    workflow_id: str
    run_id: str
    request_id: str
    status: int
    last_write_version: int

    @property
    def is_closed(self) -> bool:
        """Whether the run has come to its end."""
        return self.status not in OPEN_STATUSES


class StoredBatch(NamedTuple):
    """The events of one transaction, which the store does not look into."""

    first_event_id: int
    last_event_id: int
    version: int
    transaction_id: int
    payload: bytes


class TaskKey(NamedTuple):
    """Where a task stands in its queue; `fire_at_ns` is 0 in the queues that know no time."""

    fire_at_ns: int
    task_id: int


TASK_KEY_ZERO = TaskKey(-1, -1)


class StoredHistoryTask(NamedTuple):
    """A task of one of a shard's queues."""

    key: TaskKey
    payload: bytes


class ShardLease(NamedTuple):
    """What a new owner learns: its range id, and how far each queue has been completed."""

    range_id: int
    levels: dict[str, TaskKey]


class StoredNamespace(NamedTuple):
    """A namespace; `version` grows with each change of it."""

    namespace_id: str
    name: str
    payload: bytes
    version: int


class StoredMetadata(NamedTuple):
    """A value of the whole cluster; `version` is 1 at first and one more with each write."""

    key: str
    payload: bytes
    version: int


class BadCommit(FixRequest):
    """A commit that no store accepts: it is too large, or writes the same thing twice."""


class RunConflict(RetryElsewhere):
    """A run is not as it was expected to be: nothing was changed. `present` is what is there."""

    def __init__(self, message: str, present: StoredRun | None) -> None:
        super().__init__(message)
        self.present = present


class CurrentConflict(RetryElsewhere):
    """A workflow id's current run is not as it was expected to be: nothing was changed."""

    def __init__(self, message: str, present: CurrentRun | None) -> None:
        super().__init__(message)
        self.present = present


class TaskBelowLevel(RetryElsewhere):
    """A task stands where its queue is completed already, and nobody would look: nothing was changed. Move it up."""

    def __init__(self, message: str, level: TaskKey) -> None:
        super().__init__(message)
        self.level = level


class ForkBroken(RetryElsewhere):
    """A branch was to begin where its ancestor has no batch that ends there, perhaps any more: nothing was changed."""


class NamespaceConflict(RetryElsewhere):
    """A namespace is not as it was expected to be, or its name or id is taken: `present` is what is in the way."""

    def __init__(self, message: str, present: StoredNamespace | None) -> None:
        super().__init__(message)
        self.present = present


class MetadataConflict(RetryElsewhere):
    """A value of the cluster is not of the expected version: `present` is what is there."""

    def __init__(self, message: str, present: StoredMetadata | None) -> None:
        super().__init__(message)
        self.present = present


class RunWrite(NamedTuple):
    """Write a run: `expected_db_version` is that which was read, or None for a run that is not there yet."""

    namespace_id: str
    workflow_id: str
    run_id: str
    state: bytes
    expected_db_version: int | None
    next_event_id: int
    status: int
    last_write_version: int


class BatchWrite(NamedTuple):
    """Append a batch to a branch, which begins with it if it was not there.

    Of two writes of the same branch and first event id the higher transaction id stays. Batches of one branch do not
    overlap otherwise.
    """

    tree_id: str
    branch_id: str
    first_event_id: int
    last_event_id: int
    version: int
    transaction_id: int
    payload: bytes


class Ancestor(NamedTuple):
    """The events of another branch of the same tree that a branch begins with: those before `end_event_id`.

    Each ancestor continues the one before it in the list.
    """

    branch_id: str
    end_event_id: int


class BranchWrite(NamedTuple):
    """Make a branch that begins with what others hold. Every fork is at the end of a batch."""

    tree_id: str
    branch_id: str
    ancestors: tuple[Ancestor, ...]


class Absent(NamedTuple):
    """The workflow id was never used, or all of its runs are deleted."""


class IsRun(NamedTuple):
    """The current run is this one."""

    run_id: str


class NotOpen(NamedTuple):
    """There is no current run, or it is closed."""


class CurrentWrite(NamedTuple):
    """Make this the current run of its workflow id, on a condition."""

    namespace_id: str
    workflow_id: str
    run_id: str
    request_id: str
    status: int
    last_write_version: int
    condition: Absent | IsRun | NotOpen


class TaskWrite(NamedTuple):
    """Add a task to a queue, above what the queue has completed; the same key again replaces it."""

    queue: str
    fire_at_ns: int
    task_id: int
    payload: bytes


class Commit(NamedTuple):
    """What one transaction writes: all of it, or nothing."""

    runs: Sequence[RunWrite] = ()
    batches: Sequence[BatchWrite] = ()
    branches: Sequence[BranchWrite] = ()
    current: Sequence[CurrentWrite] = ()
    tasks: Sequence[TaskWrite] = ()
    visibility: Sequence[VisibilityRow | VisibilityDelete] = ()


class HistoryStore(Protocol):
    """A store of runs. All methods may raise `StoreUnavailable`; all writes may raise `OutcomeUnknown`."""

    async def take_shard(self, shard_id: int) -> ShardLease:
        """Make the caller the shard's owner, whoever was before; the shard is created if it was not there."""
        ...

    async def renew_shard(self, shard_id: int, range_id: int) -> int:
        """The next range id for the same owner: its earlier writes have taken effect by now, or never will."""
        ...

    async def commit(self, shard_id: int, range_id: int, commit: Commit) -> None:
        """Write all of it or nothing.

        Raises `RunConflict`, `CurrentConflict`, `TaskBelowLevel`, `ForkBroken` where a condition is not met, and
        `BadCommit` or `BadSearch` for what can never be stored.
        """
        ...

    async def read_run(self, shard_id: int, namespace_id: str, workflow_id: str, run_id: str) -> StoredRun | None:
        """A run with its state."""
        ...

    async def read_current(self, shard_id: int, namespace_id: str, workflow_id: str) -> CurrentRun | None:
        """The run that a workflow id stands for."""
        ...

    async def list_runs(self, shard_id: int, *, after: RunKey | None, limit: int) -> list[ListedRun]:
        """The first `limit` runs of a shard after `after`, by code points."""
        ...

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
        """The batches that hold events of the range, in order or the last first; empty if there are none.

        No more than `limit_bytes` of payload and `BATCHES_A_PAGE_MAX` batches, but always one. The next page begins
        after the last event of this one, or in reverse ends before its first. The batches at either end may hold
        events outside of the range.
        """
        ...

    async def read_tasks(
        self, shard_id: int, queue: str, *, after: TaskKey, until_ns: int | None, limit: int
    ) -> list[StoredHistoryTask]:
        """The first `limit` tasks above `after` that are due at `until_ns` or before, in the order of their keys."""
        ...

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
        """Save `through` as the queue's level, and delete up to `limit` tasks at or below it, and those of `singles`.

        Levels never go back. Says how many are gone; where that is `limit` or more, call again.
        """
        ...

    async def delete_run(
        self, shard_id: int, range_id: int, key: RunKey, *, branches: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Delete a run, its visibility, the current-run pointer if it points there, and its branches.

        A branch is (tree id, branch id). Events that another branch begins with stay until that one is deleted too.
        """
        ...

    async def create_namespace(self, namespace_id: str, name: str, payload: bytes, version: int = 1) -> None:
        """Create a namespace; `NamespaceConflict` if its id or name is taken."""
        ...

    async def update_namespace(self, namespace_id: str, payload: bytes, *, expected_version: int) -> int:
        """Change a namespace that is of the expected version, and return its new one."""
        ...

    async def rename_namespace(self, namespace_id: str, name: str, *, expected_version: int) -> int:
        """Give a namespace another name, which nobody has, and return its new version."""
        ...

    async def delete_namespace(self, namespace_id: str, *, expected_version: int) -> None:
        """Delete a namespace that is of the expected version."""
        ...

    async def read_namespace(
        self, *, namespace_id: str | None = None, name: str | None = None
    ) -> StoredNamespace | None:
        """A namespace by its id or by its name."""
        ...

    async def list_namespaces(self, *, after: str | None, limit: int) -> list[StoredNamespace]:
        """The first `limit` namespaces whose id is after `after`, by id."""
        ...

    async def read_metadata(self, key: str) -> StoredMetadata | None:
        """A value of the whole cluster."""
        ...

    async def write_metadata(self, key: str, payload: bytes, *, expected_version: int) -> int:
        """Write a value that is of the expected version, 0 if it is not there, and return its new one."""
        ...

    async def delete_metadata(self, key: str, *, expected_version: int) -> None:
        """Delete a value that is of the expected version."""
        ...

    async def list_metadata(self, *, prefix: str, after: str | None, limit: int) -> list[StoredMetadata]:
        """The first `limit` values whose keys begin with `prefix` and are after `after`, by key."""
        ...

    async def list_visibility(
        self,
        namespace_id: str,
        where: Predicate | None = None,
        *,
        order: Order = LATEST_FIRST,
        after: Cursor | None = None,
        limit: int,
    ) -> list[VisibilityRow]:
        """The first `limit` rows of which `where` is true, in order, after the cursor that `cursor_of` gave."""
        ...

    async def count_visibility(
        self, namespace_id: str, where: Predicate | None = None, *, group_by: Field | None = None
    ) -> list[Group]:
        """How many rows there are of which `where` is true: one group of all, or one for each value of a field.

        Of the groups, the `GROUPS_MAX` largest, the largest first.
        """
        ...


def check_commit(commit: Commit) -> int:
    """Refuse a commit that no store accepts; else its size in bytes."""
    rows = sum(map(len, commit))
    if rows > COMMIT_ROWS_MAX:
        raise BadCommit(f"the commit has {rows} rows, the most are {COMMIT_ROWS_MAX}: divide it")
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
        raise BadCommit(f"the commit has {size_bytes} bytes, the most are {COMMIT_BYTES_MAX}: divide it")
    return size_bytes


def is_met(condition: Absent | IsRun | NotOpen, present: CurrentRun | None) -> bool:
    """Whether a workflow id's current run is as it is expected to be."""
    if isinstance(condition, Absent):
        return present is None
    if isinstance(condition, IsRun):
        return present is not None and present.run_id == condition.run_id
    return present is None or present.is_closed


def current_conflict(write: CurrentWrite, present: CurrentRun | None) -> CurrentConflict:
    """The refusal of a write of a workflow id's current run."""
    found = "there is none" if present is None else f"it is {present.run_id} with status {present.status}"
    return CurrentConflict(
        f"current run of {write.workflow_id!r}: expected {write.condition}, {found}: nothing was changed", present
    )


def run_conflict(write: RunWrite, present: StoredRun | None) -> RunConflict:
    """The refusal of a write of a run."""
    found = "it is not there" if present is None else f"found version {present.db_version}"
    expected = "it not to be there" if write.expected_db_version is None else f"version {write.expected_db_version}"
    return RunConflict(
        f"run {write.run_id} of {write.workflow_id!r}: expected {expected}, {found}: nothing was changed", present
    )


def task_below_level(write: TaskWrite, level: TaskKey) -> TaskBelowLevel:
    """The refusal of a task that nobody would see."""
    return TaskBelowLevel(
        f"task {write[1:3]} of queue {write.queue!r} is not above {level}, which is completed: nothing was changed",
        level,
    )


def fork_broken(write: BranchWrite, ancestor: Ancestor) -> ForkBroken:
    """The refusal of a branch whose beginning is not there."""
    return ForkBroken(
        f"branch {write.branch_id} of tree {write.tree_id}: {ancestor.branch_id} has no batch that ends before event "
        f"{ancestor.end_event_id}: nothing was changed"
    )


def namespace_conflict(
    namespace_id: str, present: StoredNamespace | None, *, expected_version: int
) -> NamespaceConflict:
    """The refusal of a change of a namespace."""
    found = "it is not there" if present is None else f"found version {present.version}"
    return NamespaceConflict(
        f"namespace {namespace_id}: expected version {expected_version}, {found}: nothing was changed", present
    )


def namespace_taken(present: StoredNamespace) -> NamespaceConflict:
    """The refusal of an id or a name that somebody has."""
    return NamespaceConflict(
        f"namespace {present.name!r} with id {present.namespace_id} is there already: nothing was changed", present
    )


def metadata_conflict(key: str, present: StoredMetadata | None, *, expected_version: int) -> MetadataConflict:
    """The refusal of a change of a value."""
    found = 0 if present is None else present.version
    return MetadataConflict(
        f"metadata {key!r}: expected version {expected_version}, found {found}: nothing was changed", present
    )


def shard_lost(shard_id: int, range_id: int, owner_range_id: int | None = None) -> LeaseLost:
    """The refusal of an owner that is none any more."""
    owner = "" if owner_range_id is None else f", range id {owner_range_id} has it"
    return LeaseLost(f"shard {shard_id}: range id {range_id} has no longer the lease{owner}: nothing was changed")


class Segment(NamedTuple):
    """The part of a branch's events that one branch of the tree holds."""

    branch_id: str
    from_event_id: int
    to_event_id: int


def segments_of(
    branch_id: str, ancestors: Sequence[Ancestor], *, from_event_id: int, to_event_id: int, reverse: bool
) -> list[Segment]:
    """Where the events of a range are to be found, in the order in which they are read."""
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
