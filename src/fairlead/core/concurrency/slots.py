"""Slots of running activities: each started attempt of a limited task queue holds one, from before it starts."""

from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class Full(IntEnum):
    """The limit that refuses a slot."""

    KEY = 1  # The fairness key is at its limit.
    QUEUE = 2  # The whole task queue is at its limit.


class SlotLimits(NamedTuple):
    """How many activities may run at once, of a fairness key and of a whole task queue; 0 for no limit."""

    key_max: int = 0
    queue_max: int = 0

    @property
    def is_limiting(self) -> bool:
        """Whether there is a limit at all."""
        return bool(self.key_max or self.queue_max)


class Slot(NamedTuple):
    """A slot. `token` is unique to one start of an attempt.

    `queue_namespace_id` is the namespace of the task queue; `namespace_id`, `workflow_id` and `run_id` name the row of
    the run or entity in its shard.
    """

    token: str
    shard_id: int
    queue_namespace_id: str
    task_queue: str
    fairness_key: str
    namespace_id: str
    workflow_id: str
    run_id: str
    event_id: int


class SlotTable:
    """The slots of a cluster, in memory. All stores behave like this table."""

    def __init__(self, slots: Iterable[Slot] = ()) -> None:
        self._slots: dict[str, Slot] = {slot.token: slot for slot in slots}

    def __len__(self) -> int:
        return len(self._slots)

    def take(self, slot: Slot, limits: SlotLimits) -> Full | None:
        """Add a slot, or return the limit that is reached. Adding the same slot again has no effect."""
        if slot.token in self._slots:
            return None
        running = self.counts(slot.queue_namespace_id, slot.task_queue)
        if limits.key_max and running[slot.fairness_key] >= limits.key_max:
            return Full.KEY
        if limits.queue_max and running.total() >= limits.queue_max:
            return Full.QUEUE
        self._slots[slot.token] = slot
        return None

    def free(self, token: str) -> None:
        """Remove a slot, if it exists."""
        self._slots.pop(token, None)

    def of_shard(self, shard_id: int) -> list[Slot]:
        """The slots of runs of a shard, by token."""
        return sorted(slot for slot in self._slots.values() if slot.shard_id == shard_id)

    def counts(self, namespace_id: str, task_queue: str) -> Counter[str]:
        """The number of slots of a task queue, by fairness key."""
        return Counter(
            slot.fairness_key
            for slot in self._slots.values()
            if (slot.queue_namespace_id, slot.task_queue) == (namespace_id, task_queue)
        )
