"""What the matching service asks of a store, and what a store promises in return.

Acknowledged means durable: when a call has returned, its change survives a crash. Every write to a queue carries the
range id of its owner's lease and is refused, without any change, once another owner has taken the lease; that is
checked in the same transaction as the write, whatever it writes: tasks, levels, deletes, the configuration. A queue
that nobody has taken yet has no owner: its writes are refused and its reads are empty.

Saved levels never go back: of two, the higher stays. The writes of one owner may arrive in another order than they
were made in, and an older ack level must not return below what has been deleted.

A caller that is cancelled while it waits for a write knows as little as after `OutcomeUnknown`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fairlead.core.errors import GiveUp, RetryElsewhere, RetryLater
from fairlead.core.fairness import Level, StoredKey
from fairlead.core.partitions import PartitionConfig, TaskType


class LeaseLost(RetryElsewhere):
    """Another owner has taken the queue's lease: nothing was changed."""


class OutcomeUnknown(RetryLater):
    """The store did not say whether a write took effect; it may have, and may yet do so until the lease is renewed."""


class StoreUnavailable(RetryLater):
    """The store can't be reached, or is closing: nothing was changed."""


class LevelTaken(GiveUp):
    """A task is stored at this level of this queue and priority already: nothing was changed."""


class SchemaTooNew(GiveUp):
    """The database was written by a newer release, which this one does not understand."""


# A member that was silent for this long after its time is removed when another says that it is alive.
MEMBER_FORGOTTEN_AFTER_S = 3600.0


class QueueId(NamedTuple):
    """One partition of a task list, as it is stored: `name` is the partition's own."""

    namespace_id: str
    name: str
    type: TaskType


class StoredTask(NamedTuple):
    """One task of a backlog. `payload` is whatever the service makes of it; the store does not look inside.

    `created_s` is when the task was first added, by the wall clock; 0 where nobody said.
    """

    level: Level
    fairness_key: str
    weight: float
    payload: bytes
    created_s: float = 0.0


class Levels(NamedTuple):
    """How far one priority of a queue has come: A and M of seed 003."""

    ack_level: Level
    max_level: Level


@dataclass(frozen=True, slots=True)
class Lease:
    """What a new owner learns when it takes a queue: its range id, and what the last owner has saved.

    `levels` holds each priority that was ever written; `config` is None until it was saved for the first time.
    """

    range_id: int
    levels: dict[int, Levels]
    config: PartitionConfig | None


@dataclass(frozen=True, slots=True)
class Member:
    """One host of the cluster, alive until `expires_s` of the wall clock unless it says so again."""

    host: str
    expires_s: float


class TaskStore(Protocol):
    """A store of task queues. All methods may raise `StoreUnavailable`; all writes may raise `OutcomeUnknown`."""

    async def take_lease(self, queue: QueueId) -> Lease:
        """Make the caller the queue's owner, whoever was before; the queue is created if it was not there."""
        ...

    async def renew_lease(self, queue: QueueId, range_id: int) -> int:
        """The next range id for the same owner: its earlier writes have taken effect by now, or never will."""
        ...

    async def append(
        self, queue: QueueId, range_id: int, priority: int, tasks: Sequence[StoredTask], levels: Levels
    ) -> None:
        """Store all of the tasks or none, and save the levels with them; `LevelTaken` if a level is stored already."""
        ...

    async def read(self, queue: QueueId, priority: int, *, after: Level, limit: int) -> list[StoredTask]:
        """The first `limit` tasks above `after`, in order of their levels; fewer only if there are no more."""
        ...

    async def stored_keys(self, queue: QueueId, priority: int, *, after: Level) -> list[StoredKey]:
        """For each fairness key with tasks above `after`: its lowest and highest pass, and the weight of that task."""
        ...

    async def delete_through(self, queue: QueueId, range_id: int, priority: int, *, through: Level, limit: int) -> int:
        """Delete up to `limit` tasks at or below `through`, save it as the ack level, and say how many are gone."""
        ...

    async def save_levels(self, queue: QueueId, range_id: int, levels: dict[int, Levels]) -> None:
        """Save how far each of the given priorities has come."""
        ...

    async def save_config(self, queue: QueueId, range_id: int, config: PartitionConfig) -> None:
        """Save the partition configuration, which the root of a task list keeps."""
        ...

    async def load_config(self, queue: QueueId) -> PartitionConfig | None:
        """The partition configuration as it was saved last; whoever asks need not own the queue."""
        ...

    async def save_rules(self, queue: QueueId, range_id: int, config: PartitionConfig, rules: bytes) -> None:
        """Save the rules by which a task list dispatches, and the configuration with them: both, or nothing."""
        ...

    async def load_rules(self, queue: QueueId) -> bytes | None:
        """The rules as they were saved last, None if they never were; whoever asks need not own the queue."""
        ...

    async def count(self, queue: QueueId, range_id: int) -> int:
        """How many tasks the queue holds in all priorities, read under the lease."""
        ...

    async def list_queues(self, namespace_id: str | None, *, after: QueueId | None, limit: int) -> list[QueueId]:
        """The first `limit` queues after `after`, by code points and type; of one namespace, or of all."""
        ...

    async def heartbeat(self, member: Member) -> None:
        """Say that a host is alive until then; forget the members that were silent for long before it."""
        ...

    async def leave(self, host: str) -> None:
        """Take a host out of the cluster at once."""
        ...

    async def members(self, *, now_s: float) -> list[Member]:
        """The hosts whose `expires_s` is above `now_s`, by name."""
        ...

    async def close(self) -> None:
        """Finish what was begun, and let go of everything."""
        ...
