"""Reads stored tasks of one partition ahead of the polls that will take them."""

import asyncio
from collections.abc import Callable

from fairlead.matching.partition.backlog_limits import BacklogLimits
from fairlead.matching.partition.priority_backlogs import PriorityBacklogs
from fairlead.storage.tasks import QueueId, StoreUnavailable, TaskStore
from fairlead.telemetry import PartitionMetrics


class TaskReader:
    """Loads tasks in the order of their fair levels. `parked` returns the number of tasks that a rate limit holds."""

    def __init__(
        self,
        store: TaskStore,
        queue: QueueId,
        *,
        priorities: PriorityBacklogs,
        parked: Callable[[], int],
        counts: PartitionMetrics,
        limits: BacklogLimits,
    ) -> None:
        self._store = store
        self._queue = queue
        self._priorities = priorities
        self._parked = parked
        self._counts = counts
        self._limits = limits

    async def read_forever(self) -> None:
        """Read whenever a priority has room in memory and tasks left in the store."""
        backoff_s = self._limits.read_backoff_s_min
        while True:
            await self._priorities.reads.wait()
            self._priorities.reads.clear()
            for priority in sorted(self._priorities.by_priority):
                if await self._read(priority):
                    backoff_s = self._limits.read_backoff_s_min
                else:
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, self._limits.read_backoff_s_max)
                    self._priorities.reads.set()

    async def _read(self, priority: int) -> bool:
        """Read the tasks that are due; False if the store is unavailable."""
        backlog = self._priorities.by_priority[priority]
        while (read := backlog.next_read(parked=self._parked())) is not None:
            try:
                stored = await self._store.read(self._queue, priority, after=read.after, limit=read.limit)
            except StoreUnavailable:
                self._priorities.deliver(priority, backlog.read_failed(read))
                return False
            except asyncio.CancelledError:
                backlog.read_failed(read)
                raise
            self._priorities.deliver(priority, backlog.read_succeeded(read, [(task.level, task) for task in stored]))
        return True

    def wake_stuck(self, hungry_before: set[int]) -> set[int]:
        """Wake the reader for priorities that had tasks to load but loaded none for a whole interval.

        A slow read or an unavailable store looks the same; waking the reader is harmless then.
        """
        hungry = {
            one for one, backlog in self._priorities.by_priority.items() if not backlog.is_at_end and not backlog.loaded
        }
        if hungry & hungry_before:
            self._counts.fair_reader_stuck_detected += 1
            self._priorities.reads.set()
        return hungry
