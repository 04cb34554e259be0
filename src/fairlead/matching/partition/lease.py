"""The lease of this host on one queue, which it holds until another host takes it."""

import asyncio

from fairlead.aio.event import LightEvent
from fairlead.core.fairness import BlockExhausted, IdBlock
from fairlead.storage.tasks import Lease, LeaseLost, OutcomeUnknown, QueueId, StoreUnavailable, TaskStore
from fairlead.telemetry import PartitionMetrics


class QueueLease:
    """Provides the range id that fences every write, and the range id's block of task ids.

    A lost lease stays lost: the queue has another owner, and this host unloads it.
    """

    __slots__ = ("_counts", "_ids", "_queue", "_range_id", "_renewing", "_store", "lost")

    def __init__(self, store: TaskStore, queue: QueueId, counts: PartitionMetrics) -> None:
        self._store = store
        self._queue = queue
        self._counts = counts
        self._range_id = 0
        self._ids: IdBlock | None = None
        # Created at the first renewal.
        self._renewing: asyncio.Lock | None = None
        self.lost = LightEvent()

    @property
    def range_id(self) -> int:
        """The range id for writes now; each renewal of the lease changes it."""
        if self.lost.is_set():
            raise LeaseLost(f"queue {self._queue.name!r} has another owner now: look up its owner again")
        return self._range_id

    async def take(self) -> Lease:
        """Take the lease from its present owner, if any."""
        self._counts.lease_requests += 1
        try:
            lease = await self._store.take_lease(self._queue)
        except (StoreUnavailable, OutcomeUnknown):
            self._counts.lease_failures += 1
            raise
        self._use(lease.range_id)
        return lease

    async def renew(self, range_id: int) -> None:
        """Replace this range id by a new range id. Afterwards, no write with the old range id can take effect any more.

        Concurrent callers with the same range id share one renewal.
        """
        if self._renewing is None:
            self._renewing = asyncio.Lock()
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
        """Take task ids that are above all earlier ids; renew the lease when its block of ids is used up."""
        while True:
            range_id, ids = self.range_id, self._ids
            if ids is not None:
                try:
                    return ids.take(count)
                except BlockExhausted:
                    pass
            await self.renew(range_id)

    def refused(self, range_id: int) -> None:
        """Handle a rejected write with this range id: the lease is lost, unless this host has renewed it since."""
        if self.range_id == range_id:
            self._counts.condition_failed_errors += 1
            self.lose()
            # Reading the range id raises `LeaseLost`.
            _ = self.range_id

    def lose(self) -> None:
        """Mark the lease as lost."""
        self.lost.set()

    def _use(self, range_id: int) -> None:
        self._range_id = range_id
        self._ids = IdBlock(range_id)
