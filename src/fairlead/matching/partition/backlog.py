"""The durable backlog of one partition: appends in batches, reads ahead, deletes behind, under one lease."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from fairlead.core.fairness import WeightOverrides
from fairlead.matching.clock import Clock
from fairlead.matching.partition.backlog_limits import BacklogLimits
from fairlead.matching.partition.lease import QueueLease
from fairlead.matching.partition.matcher import HeldTask, Position
from fairlead.matching.partition.priority_backlogs import PriorityBacklogs
from fairlead.matching.partition.task_deleter import TaskDeleter
from fairlead.matching.partition.task_reader import TaskReader
from fairlead.matching.partition.task_writer import TaskWriter
from fairlead.storage.tasks import Lease, LeaseLost, Levels, OutcomeUnknown, QueueId, StoreUnavailable, TaskStore
from fairlead.telemetry import PartitionMetrics, get_log

_log = get_log("matching")


class PartitionBacklog:
    """Stores tasks and loads them in the order of their fair levels, while this host has the partition's lease.

    `on_loaded` gets the tasks that were loaded, `on_evicted` the places of tasks that must leave memory again.
    """

    def __init__(
        self,
        store: TaskStore,
        queue: QueueId,
        *,
        clock: Clock,
        counts: PartitionMetrics,
        overrides: WeightOverrides,
        on_loaded: Callable[[Sequence[HeldTask[bytes]]], None],
        on_evicted: Callable[[Sequence[Position]], None],
        parked: Callable[[], int] = lambda: 0,
        limits: BacklogLimits | None = None,
    ) -> None:
        self._store = store
        self._queue = queue
        self._limits = limits = limits or BacklogLimits()
        self.lease = QueueLease(store, queue, counts)
        self.priorities = PriorityBacklogs(
            overrides=overrides, limits=limits, on_loaded=on_loaded, on_evicted=on_evicted
        )
        self.writer = TaskWriter(
            store, queue, lease=self.lease, priorities=self.priorities, limits=limits, run=self._run
        )
        self._reader = TaskReader(store, queue, priorities=self.priorities, parked=parked, counts=counts, limits=limits)
        self.deleter = TaskDeleter(
            store, queue, lease=self.lease, priorities=self.priorities, clock=clock, limits=limits
        )
        # In order of start, so that a simulation repeats itself.
        self._running: dict[asyncio.Task[None], None] = {}

    async def open(self) -> Lease:
        """Take the lease, read the last pass of each fairness key, and begin to load tasks."""
        lease = await self.lease.take()
        if lease.levels:
            # Only a first estimate, so a failure is ignored.
            with suppress(StoreUnavailable):
                self.priorities.tasks_counted = await self._store.count(self._queue, lease.range_id)
        for priority, levels in lease.levels.items():
            stored = await self._store.stored_keys(self._queue, priority, after=levels.ack_level)
            self.priorities.add(priority, levels, stored)
        for loop in (
            self._reader.read_forever,
            self.deleter.delete_forever,
            self._save_forever,
        ):
            self._run(loop())
        return lease

    async def count(self) -> int:
        """Count the tasks in the store, including dispatched tasks that are not deleted yet."""
        while True:
            range_id = self.lease.range_id
            try:
                return await self._store.count(self._queue, range_id)
            except LeaseLost:
                # If our own renewal came between, count again.
                self.lease.refused(range_id)

    async def close(self) -> None:
        """Store the tasks that were accepted, save the levels, and stop."""
        await self.writer.finish()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self.writer.reject_waiting()
        with suppress(LeaseLost, StoreUnavailable, OutcomeUnknown):
            await self._save()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """After an unexpected error give up the lease, so that the partition is loaded again."""
        self._running.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("backlog_failed", queue=self._queue.name, exc_info=error)
            self.lease.lose()

    async def _save_forever(self) -> None:
        hungry: set[int] = set()
        while True:
            await asyncio.sleep(self._limits.save_interval_s)
            with suppress(StoreUnavailable, OutcomeUnknown, LeaseLost):
                await self._save()
            hungry = self._reader.wake_stuck(hungry)

    async def _save(self) -> None:
        """Save the levels of each priority. Even without a change this detects a lost lease."""
        levels = {
            one: Levels(backlog.ack_level, backlog.max_level) for one, backlog in self.priorities.by_priority.items()
        }
        range_id = self.lease.range_id
        try:
            await self._store.save_levels(self._queue, range_id, levels)
        except LeaseLost:
            # If our own renewal came between, the next save is early enough.
            self.lease.refused(range_id)
