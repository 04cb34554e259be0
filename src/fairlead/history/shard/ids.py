"""The task ids and transaction ids of one shard, taken from the range of its lease."""

import asyncio

from fairlead.history.shard.ownership import Ownership
from fairlead.history.shard.store_writes import StoreWrites

# Bits of an id below the range id: the number of ids in one range is 2 to this power.
_RANGE_BITS = 24


class ShardIds:
    """Gives out ids in increasing order, which no other owner of the shard gives out."""

    def __init__(self, ownership: Ownership, writes: StoreWrites) -> None:
        self._ownership = ownership
        self._writes = writes
        self._next_id = 0
        self._last_id = 0
        self._renewing = asyncio.Lock()

    @property
    def next_id(self) -> int:
        """The next id to be given out."""
        return self._next_id

    def begin_range(self) -> None:
        """Continue with the ids of the owner's current range id."""
        range_id = self._ownership.range_id
        self._next_id = range_id << _RANGE_BITS
        self._last_id = (range_id + 1) << _RANGE_BITS

    def take(self, count: int) -> int:
        """Take `count` consecutive ids and return the first; `ensure` must have reserved that number."""
        first = self._next_id
        self._next_id += count
        return first

    async def ensure(self, wanted: int) -> None:
        """Renew the lease if fewer than `wanted` ids are left, after all writes with the old range id have ended."""
        if self._next_id + wanted < self._last_id:
            return
        async with self._renewing:
            if self._next_id + wanted < self._last_id:
                return
            # After the renewal, the store rejects writes with the old range id.
            await self._writes.drain()
            await self._ownership.renew()
            self.begin_range()
