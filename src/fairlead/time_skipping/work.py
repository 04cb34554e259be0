"""Counts the tasks in flight of all runs."""

from collections import Counter
from collections.abc import Callable

from fairlead.history.state.work import NO_WORK, WaitingTask, Work
from fairlead.storage.history import RunKey


class WorkWatch:
    """Counts the tasks that workers are running, and the tasks that wait for a worker, by task queue."""

    def __init__(self) -> None:
        self.workflow_tasks = 0
        self.activities = 0
        self.waiting: Counter[WaitingTask] = Counter()
        # Called after each change.
        self.on_change: Callable[[], None] = lambda: None
        self._runs: dict[RunKey, Work] = {}

    def report(self, key: RunKey, work: Work) -> None:
        """Replace the tasks in flight of a run."""
        before = self._runs.pop(key, NO_WORK)
        if work != NO_WORK:
            self._runs[key] = work
        if work == before:
            return
        self.workflow_tasks += work.workflow_tasks - before.workflow_tasks
        self.activities += work.activities - before.activities
        for task in before.waiting:
            self.waiting[task] -= 1
            if not self.waiting[task]:
                del self.waiting[task]
        self.waiting.update(work.waiting)
        self.on_change()
