"""The loaded tasks of a shard's queue that have not started."""

import heapq
from collections.abc import Mapping

from fairlead.core.fairness import FairTurns
from fairlead.history.state.tasks import QueueRow
from fairlead.storage.history import TaskKey


class WaitingTasks:
    """Keeps timers until they are due. Among due tasks, the namespaces take turns.

    So a namespace with thousands of due tasks delays a task of another namespace by little more than the time of one
    task.
    """

    __slots__ = ("_due", "_is_timed", "_rows", "_timers")

    def __init__(self, rows: Mapping[TaskKey, QueueRow | None], *, is_timed: bool) -> None:
        """`rows` holds the loaded tasks; a task that is no longer in it is skipped."""
        self._is_timed = is_timed
        self._rows = rows
        # Keys of timers that are not yet known to be due, the earliest first.
        self._timers: list[TaskKey] = []
        self._due = FairTurns[TaskKey]()

    def __bool__(self) -> bool:
        return bool(self._timers) or len(self._due) > 0

    @property
    def first_timer(self) -> TaskKey | None:
        """The earliest timer that is not yet known to be due."""
        return self._timers[0] if self._timers else None

    def add(self, key: TaskKey) -> bool:
        """Add a task; return whether it is the earliest timer now."""
        if not self._is_timed:
            self._add_due(key)
            return False
        heapq.heappush(self._timers, key)
        return self._timers[0] is key

    def has_due(self, now_ns: int) -> bool:
        """Whether a task is due."""
        return len(self._due) > 0 or (bool(self._timers) and self._timers[0].fire_at_ns <= now_ns)

    def take(self, now_ns: int) -> TaskKey | None:
        """Remove and return the due task of the namespace whose turn it is; None if no task is due."""
        while self._timers and self._timers[0].fire_at_ns <= now_ns:
            self._add_due(heapq.heappop(self._timers))
        return self._due.next() if len(self._due) else None

    def drop_first_timer(self) -> None:
        """Forget the earliest timer."""
        heapq.heappop(self._timers)

    def _add_due(self, key: TaskKey) -> None:
        row = self._rows.get(key)
        if row is not None:
            self._due.add(row.namespace_id, key)
