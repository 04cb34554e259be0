"""Deletes started tasks of one partition from the store."""

from fairlead.aio.deadlines import Deadlines, Wakeable, shared_moment
from fairlead.core.fairness import LEVEL_ZERO, DeleteSchedule, Level
from fairlead.matching.clock import Clock
from fairlead.matching.partition.backlog_limits import BacklogLimits
from fairlead.matching.partition.lease import QueueLease
from fairlead.matching.partition.priority_backlogs import PriorityBacklogs
from fairlead.matching.partition.runner import Runner
from fairlead.storage.tasks import LeaseLost, OutcomeUnknown, QueueId, StoreUnavailable, TaskStore


class TaskDeleter:
    """Deletes tasks up to the ack level of their priority, in an asyncio task that `runner` starts.

    `wakes` starts it again when an interval has passed.
    """

    __slots__ = (
        "_clock",
        "_is_deleting",
        "_is_woken",
        "_lease",
        "_limits",
        "_priorities",
        "_queue",
        "_runner",
        "_schedules",
        "_store",
        "_tick",
        "_wakes",
    )

    def __init__(
        self,
        store: TaskStore,
        queue: QueueId,
        *,
        lease: QueueLease,
        priorities: PriorityBacklogs,
        clock: Clock,
        limits: BacklogLimits,
        wakes: Deadlines[Wakeable],
        runner: Runner,
    ) -> None:
        self._store = store
        self._queue = queue
        self._lease = lease
        self._priorities = priorities
        self._clock = clock
        self._limits = limits
        self._wakes = wakes
        self._runner = runner
        self._schedules: dict[int, DeleteSchedule] = {}
        self._is_deleting = False
        self._is_woken = False
        # Tick at which the deleter is woken; None if no delete waits for an interval.
        self._tick: int | None = None

    async def delete_acked(self) -> None:
        """Delete all started tasks now, so that a count of the store is the number of remaining tasks."""
        for priority, backlog in sorted(self._priorities.by_priority.items()):
            if backlog.ack_level > LEVEL_ZERO:
                await self._delete_through(priority, backlog.ack_level)

    def wake(self) -> None:
        """Start the deletes that are due; `DeleteSchedule` decides which."""
        self._is_woken = True
        if not self._is_deleting:
            self._is_deleting = True
            self._runner.run(self._delete_due())

    def stop(self) -> None:
        """Cancel the timer of the interval."""
        if self._tick is not None:
            self._wakes.remove(self, self._tick)
            self._tick = None

    async def _delete_due(self) -> None:
        try:
            while self._is_woken:
                self._is_woken = False
                waiting, self._priorities.acks_waiting = self._priorities.acks_waiting, 0
                is_done = True
                for priority in sorted(self._priorities.by_priority):
                    is_done = await self._delete(priority) and is_done
                self.stop()
                if not is_done:
                    # Some priorities wait for more acks: check again after the interval.
                    self._priorities.acks_waiting += waiting
                    self._tick = self._wakes.add(self, shared_moment(self._limits.delete_interval_s))
        finally:
            self._is_deleting = False

    async def _delete(self, priority: int) -> bool:
        """Delete the tasks that are due; False if started tasks are left for a later delete."""
        backlog, schedule = self._priorities.by_priority[priority], self._schedule(priority)
        delete = schedule.next_delete(ack_level=backlog.ack_level, acks_passed=backlog.acks_passed, now_s=self._clock())
        if delete is None:
            return not schedule.has_waiting(backlog.acks_passed)
        try:
            await self._delete_through(priority, delete.through)
        except (LeaseLost, StoreUnavailable, OutcomeUnknown):
            schedule.delete_failed(delete)
            return False
        schedule.delete_succeeded(delete)
        return not schedule.has_waiting(backlog.acks_passed)

    async def _delete_through(self, priority: int, through: Level) -> None:
        limit = self._limits.delete_batch_tasks
        gone = limit
        while gone == limit:
            range_id = self._lease.range_id
            try:
                gone = await self._store.delete_through(self._queue, range_id, priority, through=through, limit=limit)
            except LeaseLost:
                # If this host has renewed the lease meanwhile, nothing was deleted: repeat the delete.
                self._lease.refused(range_id)

    def _schedule(self, priority: int) -> DeleteSchedule:
        if priority not in self._schedules:
            self._schedules[priority] = DeleteSchedule(
                acked_min=self._limits.delete_at_tasks, interval_s=self._limits.delete_interval_s
            )
        return self._schedules[priority]
