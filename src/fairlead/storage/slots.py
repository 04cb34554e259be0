"""The part of the history contract that holds the slots of running activities."""

from typing import Protocol

from fairlead.core.concurrency import Full, Slot, SlotLimits


class SlotStore(Protocol):
    """The slots of all running activities of limited task queues; `core.concurrency.SlotTable` is their model."""

    async def take_slot(self, range_id: int, slot: Slot, limits: SlotLimits) -> Full | None:
        """Take a slot for the owner of its shard, or return the limit that is reached; check and change are atomic.

        Taking the same slot again has no effect. Raises `LeaseLost`.
        """
        ...

    async def free_slot(self, token: str) -> None:
        """Free a slot, if it exists."""
        ...

    async def list_slots(self, shard_id: int) -> list[Slot]:
        """The slots of runs of a shard, by token."""
        ...

    async def count_slots(self, namespace_id: str, task_queue: str) -> dict[str, int]:
        """The number of slots of a task queue, by fairness key."""
        ...
