"""The contract between the matching service and its store.

A write is durable when it has returned: it survives a crash. Every write to a queue carries the range id of its owner's
lease; once another owner has taken the lease, the write fails and changes nothing. The range id is checked in the same
transaction as the write, for tasks, levels, deletes and the configuration. A queue without a lease has no owner: its
writes fail and its reads are empty.

Saved levels never decrease, because the writes of one owner may arrive out of order: an older ack level must not
replace a higher one, below which tasks were deleted.

If a write is cancelled, its outcome is unknown, as after `OutcomeUnknown`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fairlead.core.errors import GiveUp, RetryElsewhere, RetryLater
from fairlead.core.fairness import Level, StoredKey
from fairlead.core.partitions import PartitionConfig, TaskType, parse_partition_name


class LeaseLost(RetryElsewhere):
    """Another owner has taken the queue's lease: nothing was changed."""


class OutcomeUnknown(RetryLater):
    """It is unknown whether a write took effect. It may still take effect until the lease is renewed."""


class StoreUnavailable(RetryLater):
    """The store can't be reached, or is closing: nothing was changed."""


class LevelTaken(GiveUp):
    """A task with this level is already stored in this queue and priority: nothing was changed."""


class SchemaTooNew(GiveUp):
    """A newer release wrote the database; this release can't read it."""


# Seconds after which an expired member is removed, by the next heartbeat of another member.
MEMBER_FORGOTTEN_AFTER_S = 3600.0


class QueueId(NamedTuple):
    """One stored partition of a task queue: `name` is the partition's name."""

    namespace_id: str
    name: str
    type: TaskType


def partitions_of(root: QueueId, found: Iterable[tuple[str, bool | int]]) -> dict[int, bool]:
    """Map each partition number of `root` to whether it holds tasks; skips names that belong to other task queues."""
    partitions: dict[int, bool] = {}
    for name, has_tasks in found:
        # Partition names of the task queue "a/b" have the same prefix as partition names of "a".
        task_queue_name, number = parse_partition_name(name)
        if task_queue_name == root.name and number:
            partitions[number] = bool(has_tasks)
    return partitions


class StoredTask(NamedTuple):
    """One task of a backlog. `payload` is opaque to the store.

    `created_s` is the wall clock time at which the task was first added; 0 if unknown.
    """

    level: Level
    fairness_key: str
    weight: float
    payload: bytes
    created_s: float = 0.0


class Levels(NamedTuple):
    """The ack level (A) and the max level (M) of one priority of a queue (FB-3, FB-6)."""

    ack_level: Level
    max_level: Level


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of a queue's new owner: its range id, and the state that the previous owner saved.

    `levels` has all priorities that were ever written; `config` is None until it is saved for the first time.
    """

    range_id: int
    levels: dict[int, Levels]
    config: PartitionConfig | None


@dataclass(frozen=True, slots=True)
class Member:
    """A host of the cluster; alive until the wall clock time `expires_s`, which each heartbeat extends."""

    host: str
    expires_s: float


class TaskStore(Protocol):
    """A store of task queues. All methods may raise `StoreUnavailable`; all writes may raise `OutcomeUnknown`."""

    async def take_lease(self, queue: QueueId) -> Lease:
        """Make the caller the queue's owner, in place of an earlier owner; creates the queue if it does not exist."""
        ...

    async def renew_lease(self, queue: QueueId, range_id: int) -> int:
        """Renew the lease and return the next range id. Earlier writes have then taken effect, or never will."""
        ...

    async def append(
        self, queue: QueueId, range_id: int, priority: int, tasks: Sequence[StoredTask], levels: Levels
    ) -> None:
        """Store all tasks or none, together with the levels; raises `LevelTaken` if a level is stored already."""
        ...

    async def read(self, queue: QueueId, priority: int, *, after: Level, limit: int) -> list[StoredTask]:
        """The first `limit` tasks above `after`, ordered by level; fewer if the backlog ends."""
        ...

    async def stored_keys(self, queue: QueueId, priority: int, *, after: Level) -> list[StoredKey]:
        """For each fairness key with tasks above `after`: its lowest and highest pass, and its last task's weight."""
        ...

    async def delete_through(self, queue: QueueId, range_id: int, priority: int, *, through: Level, limit: int) -> int:
        """Delete up to `limit` tasks at or below `through`, and save it as the ack level; returns their number."""
        ...

    async def save_levels(self, queue: QueueId, range_id: int, levels: dict[int, Levels]) -> None:
        """Save the levels of the given priorities."""
        ...

    async def save_config(self, queue: QueueId, range_id: int, config: PartitionConfig) -> None:
        """Save the partition configuration; only the root partition of a task queue has one."""
        ...

    async def load_config(self, queue: QueueId) -> PartitionConfig | None:
        """The last saved partition configuration; the caller need not own the queue."""
        ...

    async def save_rules(self, queue: QueueId, range_id: int, config: PartitionConfig, rules: bytes) -> None:
        """Save a task queue's dispatch rules together with its partition configuration: both or neither."""
        ...

    async def load_rules(self, queue: QueueId) -> bytes | None:
        """The last saved dispatch rules; None if there are none. The caller need not own the queue."""
        ...

    async def count(self, queue: QueueId, range_id: int) -> int:
        """The number of tasks of all priorities in the queue; needs the lease."""
        ...

    async def list_partitions(self, root: QueueId) -> dict[int, bool]:
        """Map each stored partition of a task queue, except its root, to whether it holds tasks."""
        ...

    async def list_queues(self, namespace_id: str | None, *, after: QueueId | None, limit: int) -> list[QueueId]:
        """The first `limit` queues after `after`, ordered by code points and type; of one namespace, or of all."""
        ...

    async def heartbeat(self, member: Member, *, now_s: float = 0.0) -> list[Member]:
        """Record that a host is alive until `expires_s`; remove members that expired long ago.

        Also returns the members, as `members` does, to save a round trip: every host needs both every second.
        """
        ...

    async def leave(self, host: str) -> None:
        """Remove a host from the cluster at once."""
        ...

    async def members(self, *, now_s: float) -> list[Member]:
        """The hosts whose `expires_s` is above `now_s`, ordered by name."""
        ...

    async def close(self) -> None:
        """Finish the calls that have begun, and release all resources."""
        ...
