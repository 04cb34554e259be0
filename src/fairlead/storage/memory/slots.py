# ruff: noqa: D102 - the contract documents each method
"""The slots of the history contract, in memory."""

from abc import abstractmethod

from fairlead.core.concurrency import Full, Slot, SlotLimits, SlotTable
from fairlead.storage.memory.clusterwide import MemoryClusterwide
from fairlead.storage.memory.faults import FaultsAt


class MemorySlots(MemoryClusterwide):
    """Slots of a `HistoryStore`, without disk, clock or threads."""

    def __init__(self, faults: FaultsAt[int | None] | None = None) -> None:
        super().__init__(faults)
        self._slots = SlotTable()

    @abstractmethod
    def _check_owned(self, shard_id: int, range_id: int) -> None:
        """Raise `LeaseLost` unless the shard has this range id."""

    async def take_slot(self, range_id: int, slot: Slot, limits: SlotLimits) -> Full | None:
        def take() -> Full | None:
            self._check_owned(slot.shard_id, range_id)
            return self._slots.take(slot, limits)

        return await self._change("take_slot", slot.shard_id, take)

    async def free_slot(self, token: str) -> None:
        await self._change("free_slot", None, lambda: self._slots.free(token))

    async def list_slots(self, shard_id: int) -> list[Slot]:
        return await self._read("list_slots", shard_id, lambda: self._slots.of_shard(shard_id))

    async def count_slots(self, namespace_id: str, task_queue: str) -> dict[str, int]:
        return await self._read("count_slots", None, lambda: dict(self._slots.counts(namespace_id, task_queue)))
