"""Reads stored tasks of one partition ahead of the polls that will take them."""

import asyncio

from fairlead.aio.backoff import Backoff, jitter_of
from fairlead.matching.partition.backlog_limits import BacklogLimits
from fairlead.matching.partition.priority_backlogs import LoadedTasks, PriorityBacklogs
from fairlead.matching.partition.runner import Runner
from fairlead.storage.tasks import QueueId, StoreUnavailable, TaskStore
from fairlead.telemetry import PartitionMetrics


class TaskReader:
    """Loads tasks in the order of their fair levels, in an asyncio task that `runner` starts when a read is due."""

    __slots__ = ("_counts", "_is_reading", "_limits", "_loaded", "_priorities", "_queue", "_runner", "_store")

    def __init__(
        self,
        store: TaskStore,
        queue: QueueId,
        *,
        priorities: PriorityBacklogs,
        loaded: LoadedTasks,
        counts: PartitionMetrics,
        limits: BacklogLimits,
        runner: Runner,
    ) -> None:
        self._store = store
        self._queue = queue
        self._priorities = priorities
        self._loaded = loaded
        self._counts = counts
        self._limits = limits
        self._runner = runner
        self._is_reading = False

    def wake(self) -> None:
        """Begin to read if a priority has room in memory and tasks left in the store."""
        if not self._is_reading and self._is_due():
            self._is_reading = True
            self._runner.run(self._read_all())

    def _is_due(self) -> bool:
        parked = self._loaded.parked()
        return any(backlog.is_read_due(parked=parked) for backlog in self._priorities.by_priority.values())

    async def _read_all(self) -> None:
        """Read until no read is due."""
        backoff = Backoff(
            self._limits.read_backoff_s_min, self._limits.read_backoff_s_max, random=jitter_of(repr(self._queue))
        )
        try:
            while self._is_due():
                for priority in sorted(self._priorities.by_priority):
                    if await self._read(priority):
                        backoff.reset()
                    else:
                        await asyncio.sleep(backoff.next_s())
        finally:
            self._is_reading = False

    async def _read(self, priority: int) -> bool:
        """Read the tasks that are due; False if the store is unavailable."""
        backlog = self._priorities.by_priority[priority]
        while (read := backlog.next_read(parked=self._loaded.parked())) is not None:
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

    def wake_stuck(self, hungry_before: tuple[int, ...]) -> tuple[int, ...]:
        """Wake the reader for priorities that had tasks to load but loaded none for a whole interval.

        A slow read or an unavailable store looks the same; waking the reader is harmless then.
        """
        hungry = tuple(
            one for one, backlog in self._priorities.by_priority.items() if not backlog.is_at_end and not backlog.loaded
        )
        if any(one in hungry_before for one in hungry):
            self._counts.fair_reader_stuck_detected += 1
            self.wake()
        return hungry
