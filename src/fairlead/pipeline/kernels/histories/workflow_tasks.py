"""The workflow tasks of a run, from its events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from temporalio.api.enums.v1 import EventType, TaskQueueKind
from temporalio.api.history.v1 import HistoryEvent

_SCHEDULED = int(EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED)
_STARTED = int(EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)
_COMPLETED = int(EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)
_STICKY = int(TaskQueueKind.TASK_QUEUE_KIND_STICKY)


class WorkflowTaskRow(NamedTuple):
    """A workflow task. Tasks on the sticky queue of a worker have the name of its normal task queue."""

    task_list: str
    build_id: str | None
    scheduled_us: int
    started_us: int | None


@dataclass(slots=True)
class _Task:
    task_list: str
    scheduled_us: int
    started_us: int | None = None
    build_id: str | None = None


class WorkflowTasks:
    """The workflow tasks of a run, built up from its events."""

    def __init__(self, task_list: str) -> None:
        """Use `task_list` for tasks whose event names no normal task queue."""
        self._task_list = task_list
        self._by_scheduled: dict[int, _Task] = {}
        self.handlers: dict[int, Callable[[HistoryEvent], None]] = {
            _SCHEDULED: self._scheduled,
            _STARTED: self._started,
            _COMPLETED: self._completed,
        }

    @property
    def last_build_id(self) -> str | None:
        """The build id of the worker that completed the last workflow task with one."""
        return next((task.build_id for task in reversed(self._by_scheduled.values()) if task.build_id), None)

    def rows(self) -> Sequence[WorkflowTaskRow]:
        """Return the rows in the order of the events."""
        return [
            WorkflowTaskRow(task.task_list, task.build_id, task.scheduled_us, task.started_us)
            for task in self._by_scheduled.values()
        ]

    def _scheduled(self, event: HistoryEvent) -> None:
        queue = event.workflow_task_scheduled_event_attributes.task_queue
        name = queue.normal_name or (queue.name if queue.kind != _STICKY else "") or self._task_list
        self._by_scheduled[event.event_id] = _Task(name, _time_us(event))

    def _started(self, event: HistoryEvent) -> None:
        task = self._by_scheduled.get(event.workflow_task_started_event_attributes.scheduled_event_id)
        if task is not None:
            task.started_us = _time_us(event)

    def _completed(self, event: HistoryEvent) -> None:
        said = event.workflow_task_completed_event_attributes
        task = self._by_scheduled.get(said.scheduled_event_id)
        if task is not None:
            task.build_id = said.deployment_version.build_id or said.worker_version.build_id or None


def _time_us(event: HistoryEvent) -> int:
    time = event.event_time
    return time.seconds * 1_000_000 + time.nanos // 1000
