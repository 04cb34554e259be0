"""Round-robin choice of partitions."""

from collections.abc import Callable

from fairlead.core.balancing.recently_used import RecentlyUsed
from fairlead.core.partitions import TaskQueueId


class RoundRobin:
    """Chooses the partitions of each task queue in turn.

    Each client starts each task queue at a random partition, so that a thousand clients that start together do not all
    start at the root. A task queue that was evicted from the cache starts at random as well: with a fixed start, a task
    queue that is always evicted before its next request would always use the same partition.
    """

    __slots__ = ("_last_picks", "_random")

    def __init__(self, *, random: Callable[[], float], task_queues_max: int) -> None:
        self._random = random
        self._last_picks: RecentlyUsed[TaskQueueId, int] = RecentlyUsed(task_queues_max)

    def pick(self, task_queue: TaskQueueId, partitions: int) -> int:
        """Return the next of `partitions`."""
        last = self._last_picks.get(task_queue)
        pick = int(self._random() * partitions) if last is None else (last + 1) % partitions
        self._last_picks.put(task_queue, pick)
        return pick
