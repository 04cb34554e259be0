"""The contract between the history service and its store.

A write is durable when it has returned. Every write to a shard carries the range id of its owner's lease; once another
owner has taken the shard, the write fails with `LeaseLost` and changes nothing. The range id is checked in the same
transaction as the write. A write that fails with `OutcomeUnknown` may have taken effect, or may still do so until the
shard is renewed or taken.

A range of events is half open: `from_event_id` is included, `to_event_id` and `end_event_id` are not.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fairlead.storage.commit import Commit, CurrentWrite
from fairlead.storage.predicates import (
    And,
    Between,
    Compare,
    Contains,
    HasWord,
    In,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
    StartsWith,
)
from fairlead.storage.slots import SlotStore
from fairlead.storage.tasks import LeaseLost, OutcomeUnknown, StoreUnavailable
from fairlead.storage.visibility import (
    GROUPS_MAX,
    LATEST_FIRST,
    Attribute,
    BadSearch,
    Column,
    Cursor,
    Field,
    Group,
    Order,
    SearchValue,
    Text,
    VisibilityDelete,
    VisibilityRow,
    cursor_of,
    words_of,
)
from fairlead.storage.visibility_order import Sort

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

BATCHES_A_PAGE_MAX = 1000
TASKS_COMPLETED_MAX = 10_000

# Statuses of open runs: running and paused, as numbers of WorkflowExecutionStatus. All other statuses mean closed runs.
OPEN_STATUSES = frozenset({1, 8})


class RunRow(Protocol):
    """A row or a write of one run."""

    @property
    def namespace_id(self) -> str: ...

    @property
    def workflow_id(self) -> str: ...

    @property
    def run_id(self) -> str: ...


class RunKey(NamedTuple):
    """The ids of a run."""

    namespace_id: str
    workflow_id: str
    run_id: str

    @classmethod
    def of(cls, row: RunRow) -> "RunKey":
        """The key of the run to which a row belongs."""
        return cls(row.namespace_id, row.workflow_id, row.run_id)

    @property
    def workflow(self) -> tuple[str, str]:
        """The namespace id and the workflow id."""
        return self.namespace_id, self.workflow_id


class StoredRun(NamedTuple):
    """A run as last written. `db_version` begins at 1 and grows by one with each write."""

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
    """The current run of a workflow id."""

    namespace_id: str
    workflow_id: str
    run_id: str
    request_id: str
    status: int
    last_write_version: int

    @classmethod
    def of(cls, write: CurrentWrite) -> "CurrentRun":
        """The current run after a write."""
        return cls(
            write.namespace_id,
            write.workflow_id,
            write.run_id,
            write.request_id,
            write.status,
            write.last_write_version,
        )

    @property
    def is_closed(self) -> bool:
        """Whether the run is closed."""
        return self.status not in OPEN_STATUSES


class StoredBatch(NamedTuple):
    """The events of one transaction; the payload is opaque to the store."""

    first_event_id: int
    last_event_id: int
    version: int
    transaction_id: int
    payload: bytes


class TaskKey(NamedTuple):
    """The position of a task in its queue; `fire_at_ns` is 0 in queues without timers."""

    fire_at_ns: int
    task_id: int


TASK_KEY_ZERO = TaskKey(-1, -1)


class StoredHistoryTask(NamedTuple):
    """A task of one of a shard's queues."""

    key: TaskKey
    payload: bytes


class ShardLease(NamedTuple):
    """The lease of a shard's new owner: its range id, and the completed level of each queue."""

    range_id: int
    levels: dict[str, TaskKey]


class StoredNamespace(NamedTuple):
    """A namespace; `version` grows with each change."""

    namespace_id: str
    name: str
    payload: bytes
    version: int


class StoredMetadata(NamedTuple):
    """A metadata value of the cluster; `version` begins at 1 and grows by one with each write."""

    key: str
    payload: bytes
    version: int


class HistoryStore(SlotStore, Protocol):
    """A store of runs. All methods may raise `StoreUnavailable`; all writes may raise `OutcomeUnknown`."""

    async def take_shard(self, shard_id: int) -> ShardLease:
        """Make the caller the shard's owner, in place of an earlier owner; creates the shard if it does not exist."""
        ...

    async def renew_shard(self, shard_id: int, range_id: int) -> int:
        """Renew the lease and return the next range id. Earlier writes have then taken effect, or never will."""
        ...

    async def commit(self, shard_id: int, range_id: int, commit: Commit) -> None:
        """Write all or nothing.

        Raises `RunConflict`, `CurrentConflict`, `TaskBelowLevel` or `ForkBroken` if a condition is not met, and
        `BadCommit` or `BadSearch` for data that can never be stored.
        """
        ...

    async def read_run(self, shard_id: int, namespace_id: str, workflow_id: str, run_id: str) -> StoredRun | None:
        """A run with its state."""
        ...

    async def read_current(self, shard_id: int, namespace_id: str, workflow_id: str) -> CurrentRun | None:
        """The current run of a workflow id."""
        ...

    async def list_runs(self, shard_id: int, *, after: RunKey | None, limit: int) -> list[ListedRun]:
        """The first `limit` runs of a shard after `after`, ordered by the code points of their keys."""
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
        """The batches with events of the range, in order, or in reverse order; empty if there are none.

        A page has at most `limit_bytes` of payload and `BATCHES_A_PAGE_MAX` batches, but at least one batch. The next
        page begins after the last event of this page; in reverse order, it ends before the first event of this page.
        The first and last batch may hold events outside of the range.
        """
        ...

    async def read_tasks(
        self, shard_id: int, queue: str, *, after: TaskKey, until_ns: int | None, limit: int
    ) -> list[StoredHistoryTask]:
        """The first `limit` tasks above `after` that are due by `until_ns`, ordered by key."""
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
        """Save `through` as the queue's completed level; delete the `singles`, and up to `limit` tasks at or below it.

        Levels never decrease. Returns the number of deleted tasks; call again if it is `limit` or more.
        """
        ...

    async def delete_run(
        self, shard_id: int, range_id: int, key: RunKey, *, branches: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Delete a run, its visibility row, the current-run pointer if it is this run, and its branches.

        A branch is (tree id, branch id). Events that a branch shares with another one stay until both branches are
        deleted.
        """
        ...

    async def create_namespace(self, namespace_id: str, name: str, payload: bytes, version: int = 1) -> None:
        """Create a namespace; raises `NamespaceConflict` if its id or name is in use."""
        ...

    async def update_namespace(self, namespace_id: str, payload: bytes, *, expected_version: int) -> int:
        """Change a namespace that has the expected version; returns its new version."""
        ...

    async def rename_namespace(self, namespace_id: str, name: str, *, expected_version: int) -> int:
        """Rename a namespace to an unused name; returns its new version."""
        ...

    async def delete_namespace(self, namespace_id: str, *, expected_version: int) -> None:
        """Delete a namespace that has the expected version."""
        ...

    async def read_namespace(
        self, *, namespace_id: str | None = None, name: str | None = None
    ) -> StoredNamespace | None:
        """A namespace by id or by name."""
        ...

    async def list_namespaces(self, *, after: str | None, limit: int) -> list[StoredNamespace]:
        """The first `limit` namespaces with ids after `after`, ordered by id."""
        ...

    async def read_metadata(self, key: str) -> StoredMetadata | None:
        """A metadata value of the cluster."""
        ...

    async def write_metadata(self, key: str, payload: bytes, *, expected_version: int) -> int:
        """Write a value that has the expected version; 0 means a new value. Returns the value's new version."""
        ...

    async def delete_metadata(self, key: str, *, expected_version: int) -> None:
        """Delete a value that has the expected version."""
        ...

    async def list_metadata(self, *, prefix: str, after: str | None, limit: int) -> list[StoredMetadata]:
        """The first `limit` values with keys that begin with `prefix` and are after `after`, ordered by key."""
        ...

    async def list_visibility(
        self,
        namespace_id: str,
        where: Predicate | None = None,
        *,
        order: Order | Sort = LATEST_FIRST,
        after: Cursor | None = None,
        limit: int,
    ) -> list[VisibilityRow]:
        """The first `limit` rows that match `where`, in the given order, after the cursor.

        Cursors of an `Order` come from `cursor_of`, those of a `Sort` from `sort_cursor_of`.
        """
        ...

    async def count_visibility(
        self, namespace_id: str, where: Predicate | None = None, *, group_by: Field | None = None
    ) -> list[Group]:
        """Count the rows that match `where`: as one group, or one group for each value of a field.

        Returns the `GROUPS_MAX` largest groups, largest first.
        """
        ...
