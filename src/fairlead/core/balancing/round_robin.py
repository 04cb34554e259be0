"""Selection in turn."""

from fairlead.core.balancing.recently_used import RecentlyUsed
from fairlead.core.hashing import hash64
from fairlead.core.partitions import TaskList


class RoundRobin:
    """Takes the partitions of each task list in turn, so that any run of picks is even to within one.

    Each client starts at an offset of its own: a thousand clients that start together do not all start at the root.
    A task list that was forgotten for want of room starts at that offset again.
    """

    __slots__ = ("_client_id", "_last_picks")

    def __init__(self, *, client_id: str, task_lists_max: int) -> None:
        self._client_id = client_id
        self._last_picks: RecentlyUsed[TaskList, int] = RecentlyUsed(task_lists_max)

    def pick(self, task_list: TaskList, partitions: int) -> int:
        """The next of `partitions`."""
        last = self._last_picks.get(task_list)
        if last is None:
            namespace_id, name, task_type = task_list
            last = hash64(f"{self._client_id}:{namespace_id}:{name}:{task_type:d}")
        pick = (last + 1) % partitions
        self._last_picks.put(task_list, pick)
        return pick
