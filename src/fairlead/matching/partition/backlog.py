"""The durable backlog of one partition: appends in batches, reads ahead of polls, deletes of started tasks."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from fairlead.aio.deadlines import Deadlines, Wakeable, new_wakes, shared_moment
from fairlead.core.fairness import WeightOverrides
from fairlead.matching.clock import Clock
from fairlead.matching.partition.backlog_limits import BacklogLimits
from fairlead.matching.partition.lease import QueueLease
from fairlead.matching.partition.priority_backlogs import LoadedTasks, PriorityBacklogs
from fairlead.matching.partition.task_deleter import TaskDeleter
from fairlead.matching.partition.task_reader import TaskReader
from fairlead.matching.partition.task_writer import TaskWriter
from fairlead.storage.tasks import Lease, LeaseLost, Levels, OutcomeUnknown, QueueId, StoreUnavailable, TaskStore
from fairlead.telemetry import PartitionMetrics, get_log

_log = get_log("matching")


class PartitionBacklog:
    """Stores tasks and loads them in the order of their fair levels, while this host has the partition's lease.

    `loaded` takes the loaded tasks. An idle backlog has no asyncio task and no timer of its own: `wakes` holds the
    times of its periodic work. The writer, the reader and the deleter are created at their first use.
    """

    __slots__ = (
        "_clock",
        "_counts",
        "_deleter",
        "_hungry",
        "_is_open",
        "_limits",
        "_loaded",
        "_queue",
        "_reader",
        "_running",
        "_store",
        "_tick",
        "_wakes",
        "_writer",
        "lease",
        "priorities",
    )

    def __init__(
        self,
        store: TaskStore,
        queue: QueueId,
        *,
        clock: Clock,
        counts: PartitionMetrics,
        overrides: WeightOverrides,
        loaded: LoadedTasks,
        limits: BacklogLimits | None = None,
        wakes: Deadlines[Wakeable] | None = None,
    ) -> None:
        self._store = store
        self._queue = queue
        self._clock = clock
        self._counts = counts
        self._loaded = loaded
        self._limits = limits = limits or BacklogLimits()
        self._wakes = new_wakes() if wakes is None else wakes
        self.lease = QueueLease(store, queue, counts)
        self.priorities = PriorityBacklogs(overrides=overrides, limits=limits, loaded=loaded, workers=self)
        self._is_open = False
        self._writer: TaskWriter | None = None
        self._reader: TaskReader | None = None
        self._deleter: TaskDeleter | None = None
        # The tick at which the levels are saved; None if the backlog is not open.
        self._tick: int | None = None
        self._hungry: tuple[int, ...] = ()
        # Kept in order of start, so that a simulation is repeatable. None while no task runs.
        self._running: dict[asyncio.Task[None], None] | None = None

    @property
    def writer(self) -> TaskWriter:
        """Stores new tasks."""
        if self._writer is None:
            self._writer = TaskWriter(
                *(self._store, self._queue),
                lease=self.lease,
                priorities=self.priorities,
                limits=self._limits,
                runner=self,
            )
        return self._writer

    @property
    def deleter(self) -> TaskDeleter:
        """Deletes started tasks."""
        if self._deleter is None:
            self._deleter = TaskDeleter(
                *(self._store, self._queue),
                lease=self.lease,
                priorities=self.priorities,
                clock=self._clock,
                limits=self._limits,
                wakes=self._wakes,
                runner=self,
            )
        return self._deleter

    @property
    def reader(self) -> TaskReader:
        """Loads tasks."""
        if self._reader is None:
            self._reader = TaskReader(
                *(self._store, self._queue),
                priorities=self.priorities,
                loaded=self._loaded,
                counts=self._counts,
                limits=self._limits,
                runner=self,
            )
        return self._reader

    def wake_reader(self) -> None:
        """Start a read if one is due and the backlog is open."""
        if self._is_open:
            self.reader.wake()

    def wake_deleter(self) -> None:
        """Start the deletes that are due, if the backlog is open."""
        if self._is_open:
            self.deleter.wake()

    async def open(self) -> Lease:
        """Take the lease, read the last pass of each fairness key, and begin to load tasks."""
        lease = await self.lease.take()
        if lease.levels:
            # The count is a first estimate, so a failure is ignored.
            with suppress(StoreUnavailable):
                self.priorities.tasks_counted = await self._store.count(self._queue, lease.range_id)
        for priority, levels in lease.levels.items():
            stored = await self._store.stored_keys(self._queue, priority, after=levels.ack_level)
            await self.priorities.restore(priority, levels, stored)
        self._is_open = True
        if self.priorities.by_priority:
            self.wake_reader()
            self.wake_deleter()
        self._save_later()
        return lease

    async def count(self) -> int:
        """Count the tasks in the store, including dispatched tasks that are not deleted yet."""
        while True:
            range_id = self.lease.range_id
            try:
                return await self._store.count(self._queue, range_id)
            except LeaseLost:
                # If this host has renewed the lease meanwhile, count again.
                self.lease.refused(range_id)

    async def close(self) -> None:
        """Store the tasks that were accepted, save the levels, and stop."""
        # Finish even a writer that was never used, so that it rejects tasks from now on.
        await self.writer.finish()
        self._is_open = False
        self.deleter.stop()
        if self._tick is not None:
            self._wakes.remove(self, self._tick)
            self._tick = None
        running = list(self._running or ())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self.writer.reject_waiting()
        with suppress(LeaseLost, StoreUnavailable, OutcomeUnknown):
            await self._save()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background."""
        task = asyncio.get_running_loop().create_task(work)
        if self._running is None:
            self._running = {}
        self._running[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """After an unexpected error, give up the lease, so that the partition is loaded again."""
        if self._running is not None:
            self._running.pop(task, None)
            if not self._running:
                self._running = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("backlog_failed", queue=self._queue.name, exc_info=error)
            self.lease.lose()

    def wake(self) -> None:
        """Save the levels: their interval has passed."""
        self.run(self._save_again())

    def _save_later(self) -> None:
        self._tick = self._wakes.add(self, shared_moment(self._limits.save_interval_s))

    async def _save_again(self) -> None:
        with suppress(StoreUnavailable, OutcomeUnknown, LeaseLost):
            await self._save()
        if self._reader is not None:
            self._hungry = self._reader.wake_stuck(self._hungry)
        self._save_later()

    async def _save(self) -> None:
        """Save the levels of each priority. Even without a change this detects a lost lease."""
        levels = {
            one: Levels(backlog.ack_level, backlog.max_level) for one, backlog in self.priorities.by_priority.items()
        }
        range_id = self.lease.range_id
        try:
            await self._store.save_levels(self._queue, range_id, levels)
        except LeaseLost:
            # If this host has renewed the lease meanwhile, do nothing: the next save stores the levels.
            self.lease.refused(range_id)
