from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from fairlead.core.fairness import Level
from fairlead.storage.tasks import StoredTask

# Maximum number of tasks in a run, which is a sorted sublist: an insert moves at most a few kilobytes.
_RUN_TASKS_MAX = 2000


class SortedTasks:
    """The tasks of one backlog, ordered by level; efficient for millions of tasks.

    The tasks are held in runs of bounded length, so that an insert in the middle or a delete at the front moves few
    other tasks.
    """

    def __init__(self) -> None:
        self._runs: list[list[StoredTask]] = []
        # The last level of each run.
        self._ends: list[Level] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, level: Level) -> bool:
        position = bisect_left(self._ends, level)
        if position == len(self._runs):
            return False
        run = self._runs[position]
        return run[bisect_left(run, (level,))].level == level

    def add(self, task: StoredTask) -> None:
        """Insert a task; its level must be new."""
        self._size += 1
        position = bisect_left(self._ends, task.level)
        if position == len(self._runs):
            self._append(task)
            return
        run = self._runs[position]
        insort(run, task)
        if len(run) > _RUN_TASKS_MAX:
            middle = len(run) // 2
            self._runs.insert(position + 1, run[middle:])
            del run[middle:]
            self._ends.insert(position, run[-1].level)

    def after(self, level: Level) -> Iterator[StoredTask]:
        """All tasks above `level`, in order."""
        position = bisect_right(self._ends, level)
        for index in range(position, len(self._runs)):
            run = self._runs[index]
            # A tuple sorts before a longer tuple that begins with it.
            yield from run[bisect_left(run, (_next(level),)) :] if index == position else run

    def first_after(self, level: Level, limit: int) -> list[StoredTask]:
        """The first `limit` tasks above `level`, in order."""
        found: list[StoredTask] = []
        position = bisect_right(self._ends, level)
        while len(found) < limit and position < len(self._runs):
            run = self._runs[position]
            start = bisect_left(run, (_next(level),)) if not found else 0
            found += run[start : start + limit - len(found)]
            position += 1
        return found

    def delete_through(self, level: Level, limit: int) -> int:
        """Delete the first `limit` tasks at or below `level`; returns their number."""
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
