from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from fairlead.core.fairness import Level
from fairlead.storage.contract import StoredTask

# Inserting into a run of this length moves a few kilobytes, whatever the number of all tasks.
_RUN_TASKS_MAX = 2000


class SortedTasks:
    """Keeps the tasks of one backlog in order of their levels, a million of them as well as ten.

    They are held in runs of bounded length, so that a task in the middle, or a delete at the front, moves few others.
    """

    def __init__(self) -> None:
        self._runs: list[list[StoredTask]] = []
        # The last level of each run.
        self._ends: list[Level] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, level: Level) -> bool:
        place = bisect_left(self._ends, level)
        if place == len(self._runs):
            return False
        run = self._runs[place]
        return run[bisect_left(run, (level,))].level == level

    def add(self, task: StoredTask) -> None:
        """Put a task in its place; its level is not stored yet."""
        self._size += 1
        place = bisect_left(self._ends, task.level)
        if place == len(self._runs):
            self._append(task)
            return
        run = self._runs[place]
        insort(run, task)
        if len(run) > _RUN_TASKS_MAX:
            middle = len(run) // 2
            self._runs.insert(place + 1, run[middle:])
            del run[middle:]
            self._ends.insert(place, run[-1].level)

    def after(self, level: Level) -> Iterator[StoredTask]:
        """All tasks above `level`, in order."""
        place = bisect_right(self._ends, level)
        for index in range(place, len(self._runs)):
            run = self._runs[index]
            # A shorter tuple comes before a longer one that begins like it.
            yield from run[bisect_left(run, (_next(level),)) :] if index == place else run

    def first_after(self, level: Level, limit: int) -> list[StoredTask]:
        """The first `limit` tasks above `level`, in order."""
        found: list[StoredTask] = []
        place = bisect_right(self._ends, level)
        while len(found) < limit and place < len(self._runs):
            run = self._runs[place]
            start = bisect_left(run, (_next(level),)) if not found else 0
            found += run[start : start + limit - len(found)]
            place += 1
        return found

    def delete_through(self, level: Level, limit: int) -> int:
        """Delete the first `limit` tasks at or below `level`, and say how many there were."""
        deleted = 0
        while self._runs and deleted < limit:
            run = self._runs[0]
            end = min(bisect_left(run, (_next(level),)), limit - deleted)
            deleted += end
            if end < len(run):
                del run[:end]
                break
            del self._runs[0], self._ends[0]
        self._size -= deleted
        return deleted

    def _append(self, task: StoredTask) -> None:
        if self._runs and len(self._runs[-1]) < _RUN_TASKS_MAX:
            self._runs[-1].append(task)
            self._ends[-1] = task.level
        else:
            self._runs.append([task])
            self._ends.append(task.level)


def _next(level: Level) -> Level:
    """The first level above `level`."""
    return Level(level.pass_number, level.task_id + 1)
