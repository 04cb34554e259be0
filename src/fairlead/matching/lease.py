"""The hold that this host has on one queue, until another host takes it."""

import asyncio

from fairlead.core.fairness import BlockExhausted, IdBlock
from fairlead.storage.contract import Lease, LeaseLost, OutcomeUnknown, QueueId, StoreUnavailable, TaskStore
from fairlead.telemetry import PartitionMetrics


class QueueLease:
    """Gives out the range id that fences every write, and the task ids that come with it.

    Once lost it stays lost: the queue has another owner, and all that is left to do is to unload it.
    """

    def __init__(self, store: TaskStore, queue: QueueId, counts: PartitionMetrics) -> None:
        self._store = store
        self._queue = queue
        self._counts = counts
        self._range_id = 0
        self._ids: IdBlock | None = None
        self._renewing = asyncio.Lock()
        self.lost = asyncio.Event()

    @property
    def range_id(self) -> int:
        """The range id to write with now; it changes whenever the lease is renewed."""
        if self.lost.is_set():
            raise LeaseLost(f"queue {self._queue.name!r} has another owner by now: ask for its owner again")
        return self._range_id

    async def take(self) -> Lease:
        """Become the owner, whoever was before."""
        self._counts.lease_requests += 1
        try:
            lease = await self._store.take_lease(self._queue)
        except (StoreUnavailable, OutcomeUnknown):
            self._counts.lease_failures += 1
            raise
        self._use(lease.range_id)
        return lease

    async def renew(self, range_id: int) -> None:
        """Go on with another range id than this one: what was written with it has taken effect, or never will.

        Those who ask at the same time share one renewal.
        """
        async with self._renewing:
            if range_id != self.range_id:
                return
            self._counts.lease_requests += 1
            try:
                self._use(await self._store.renew_lease(self._queue, range_id))
            except LeaseLost:
                self._counts.lease_failures += 1
                self.lose()
                raise
            except (StoreUnavailable, OutcomeUnknown):
                self._counts.lease_failures += 1
                raise

    async def take_ids(self, count: int) -> range:
        """Task ids above all that were given before; the lease is renewed when its block is used up."""
        while True:
            range_id, ids = self.range_id, self._ids
            if ids is not None:
                try:
                    return ids.take(count)
                except BlockExhausted:
                    pass
            await self.renew(range_id)

    def refused(self, range_id: int) -> None:
        """A write with this range id was refused: the lease is lost, unless it has been renewed since."""
        if self.range_id == range_id:
            self._counts.condition_failed_errors += 1
            self.lose()
            # Says so to the caller.
            _ = self.range_id

    def lose(self) -> None:
        """Another owner has been seen."""
        self.lost.set()

    def _use(self, range_id: int) -> None:
        self._range_id = range_id
        self._ids = IdBlock(range_id)
