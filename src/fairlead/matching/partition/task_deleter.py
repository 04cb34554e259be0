"""Deletes started tasks of one partition from the store."""

import asyncio

from fairlead.core.fairness import LEVEL_ZERO, DeleteSchedule, Level
from fairlead.matching.clock import Clock
from fairlead.matching.partition.backlog_limits import BacklogLimits
from fairlead.matching.partition.lease import QueueLease
from fairlead.matching.partition.priority_backlogs import PriorityBacklogs
from fairlead.storage.tasks import LeaseLost, OutcomeUnknown, QueueId, StoreUnavailable, TaskStore


class TaskDeleter:
    """Deletes tasks up to the ack level of their priority."""

    def __init__(
        self,
        store: TaskStore,
        queue: QueueId,
        *,
        lease: QueueLease,
        priorities: PriorityBacklogs,
        clock: Clock,
        limits: BacklogLimits,
    ) -> None:
        self._store = store
        self._queue = queue
        self._lease = lease
        self._priorities = priorities
        self._clock = clock
        self._limits = limits
        self._schedules: dict[int, DeleteSchedule] = {}

    async def delete_acked(self) -> None:
        """Delete all started tasks now, so that a count of the store is the number of remaining tasks."""
        for priority, backlog in sorted(self._priorities.by_priority.items()):
            if backlog.ack_level > LEVEL_ZERO:
                await self._delete_through(priority, backlog.ack_level)

    async def delete_forever(self) -> None:
        """Delete in batches, as `DeleteSchedule` decides; without acks there is nothing to do."""
        acks = self._priorities.acks
        timer: asyncio.TimerHandle | None = None
        try:
            while True:
                await acks.wait()
                acks.clear()
                waiting, self._priorities.acks_waiting = self._priorities.acks_waiting, 0
                is_done = True
                for priority in sorted(self._priorities.by_priority):
                    is_done = await self._delete(priority) and is_done
                if timer is not None:
                    timer.cancel()
                    timer = None
                if not is_done:
                    # Some wait for more acks: look again after the interval.
                    self._priorities.acks_waiting += waiting
                    timer = asyncio.get_running_loop().call_later(self._limits.delete_interval_s, acks.set)
        finally:
            if timer is not None:
                timer.cancel()

    async def _delete(self, priority: int) -> bool:
        """Delete what is due; False if started tasks are left, which are deleted later."""
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
                # If our own renewal came between, nothing was deleted, and the delete can be repeated.
                self._lease.refused(range_id)

    def _schedule(self, priority: int) -> DeleteSchedule:
        if priority not in self._schedules:
            self._schedules[priority] = DeleteSchedule(
                acked_min=self._limits.delete_at_tasks, interval_s=self._limits.delete_interval_s
            )
        return self._schedules[priority]
