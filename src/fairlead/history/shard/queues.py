"""The two task queues of a shard: transfer tasks run at once, timer tasks when they are due."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from fairlead.history.shard.context import Services
from fairlead.history.shard.ids import ShardIds
from fairlead.history.shard.ownership import Ownership
from fairlead.history.shard.queue import END_OF_TIME, TASKS_A_SHARD_MIN, TASKS_IN_MEMORY_MAX, ShardQueue
from fairlead.history.state.tasks import QueueRow, TimerTask, encode_row
from fairlead.storage.commit import TaskWrite
from fairlead.storage.history import TaskKey
from fairlead.telemetry import TASK_ERRORS

TRANSFER = "transfer"
TIMER = "timer"


class AssignedTask(NamedTuple):
    """A task that a commit will write: its queue, and its key in the queue."""

    queue: ShardQueue
    key: TaskKey
    row: QueueRow
    write: TaskWrite


class ShardQueues:
    """Assigns keys to the tasks of a commit, and passes the tasks to the queues when the commit is durable."""

    def __init__(
        self,
        ownership: Ownership,
        ids: ShardIds,
        services: Services,
        *,
        run: Callable[[QueueRow], Awaitable[None]],
        is_over: Callable[[QueueRow], bool],
    ) -> None:
        """`run` executes a task, unless `is_over` knows that the task has no effect any more."""
        self._ids = ids
        self.by_name = {
            name: ShardQueue(
                name,
                shard_id=ownership.shard_id,
                store=services.store,
                run=run,
                clock_ns=services.clock_ns,
                range_id=lambda: ownership.range_id,
                on_lost=ownership.lose,
                on_error=partial(_count_error, services, name),
                is_over=is_over,
                is_timed=name == TIMER,
                ahead_ns=services.timers_ahead_ns,
                uniform=services.uniform,
                turns=services.turns,
                tasks_max=max(TASKS_IN_MEMORY_MAX // services.shards, TASKS_A_SHARD_MIN),
            )
            for name in (TRANSFER, TIMER)
        }
        self.transfer = self.by_name[TRANSFER]
        self.timer = self.by_name[TIMER]

    async def open(self, levels: Mapping[str, TaskKey]) -> None:
        """Run the tasks in the store above `levels`, which maps queue names to levels."""
        for name, queue in self.by_name.items():
            await queue.open(levels.get(name))

    async def close(self) -> None:
        """Stop both queues; unfinished tasks stay in the store for the next owner."""
        for queue in self.by_name.values():
            await queue.close()

    def assign(self, rows: Sequence[QueueRow]) -> list[AssignedTask]:
        """Assign keys to tasks.

        Call `written` or `not_written` afterwards. An id for each task must have been reserved.
        """
        # Encode all tasks before the first gets its key: a task that can't be encoded must leave no key behind.
        payloads = [encode_row(row) for row in rows]
        return [self._assign(row, payload) for row, payload in zip(rows, payloads, strict=True)]

    def written(self, assigned: Sequence[AssignedTask]) -> None:
        """Record that the commit is durable, so that its tasks run when they are due."""
        for task in assigned:
            task.queue.written(task.key, task.row)

    def not_written(self, assigned: Sequence[AssignedTask]) -> None:
        """Forget the tasks of a commit that failed: the store has none of them."""
        for task in assigned:
            task.queue.not_written(task.key)

    def _assign(self, row: QueueRow, payload: bytes) -> AssignedTask:
        queue, fire_at_ns = self.transfer, 0
        if isinstance(row.task, TimerTask):
            queue = self.timer
            # Some stores can't hold times outside of this range.
            fire_at_ns = max(0, min(row.task.fire_at_ns - row.skipped_ns, END_OF_TIME.fire_at_ns - 1))
        key = queue.assign(fire_at_ns, self._ids.take(1))
        return AssignedTask(queue, key, row, TaskWrite(queue.name, key.fire_at_ns, key.task_id, payload))


def _count_error(services: Services, queue: str, row: QueueRow) -> None:
    services.metrics.count(TASK_ERRORS, queue, type(row.task).__name__)
