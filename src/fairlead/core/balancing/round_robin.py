"""Selection in turn."""

from collections.abc import Callable

from fairlead.core.balancing.recently_used import RecentlyUsed
from fairlead.core.partitions import TaskList


class RoundRobin:
    """Takes the partitions of each task list in turn: even to within one while their number stays the same.

    Each client starts each task list at random, so that a thousand clients that start together do not all start at
    the root. So does a task list that was forgotten for want of room: were the start the same every time, one that is
    always forgotten before its next request would only ever meet that partition.
    """

    __slots__ = ("_last_picks", "_random")

    def __init__(self, *, random: Callable[[], float], task_lists_max: int) -> None:
        self._random = random
        self._last_picks: RecentlyUsed[TaskList, int] = RecentlyUsed(task_lists_max)

    def pick(self, task_list: TaskList, partitions: int) -> int:
        """The next of `partitions`."""
        last = self._last_picks.get(task_list)
        pick = int(self._random() * partitions) if last is None else (last + 1) % partitions
        self._last_picks.put(task_list, pick)
        return pick
