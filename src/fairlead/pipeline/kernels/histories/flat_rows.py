"""Reduces the events of one run to a row for the run, and a row for each activity that it scheduled."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from temporalio.api.enums.v1 import EventType, TimeoutType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent

from fairlead.pipeline.kernels.histories.actions import ActionRow, count_actions
from fairlead.pipeline.kernels.histories.workflow_tasks import WorkflowTaskRow, WorkflowTasks
from fairlead.pipeline.statuses import CLOSED_BY, PAUSED, STATUS_NAMES, next_run_id

MESSAGE_CHARACTERS_MAX = 500
CAUSES_MAX = 20
# Constants, because reading protobuf enumerations is slow.
_ACTIVITY_TASK_CANCELED = int(EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED)
_ACTIVITY_TASK_COMPLETED = int(EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED)
_ACTIVITY_TASK_FAILED = int(EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED)
_ACTIVITY_TASK_SCHEDULED = int(EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED)
_ACTIVITY_TASK_STARTED = int(EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED)
_ACTIVITY_TASK_TIMED_OUT = int(EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT)
_START_CHILD_WORKFLOW_EXECUTION_INITIATED = int(EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED)
_TIMER_STARTED = int(EventType.EVENT_TYPE_TIMER_STARTED)
_FAILED = int(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED)
_SIGNALED = int(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
_TERMINATED = int(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED)
_UPDATE_ACCEPTED = int(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED)
_WORKFLOW_TASK_FAILED = int(EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED)
_WORKFLOW_TASK_SCHEDULED = int(EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED)
_WORKFLOW_TASK_STARTED = int(EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)
_WORKFLOW_TASK_TIMED_OUT = int(EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT)
_RESET = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW

# Timeout types of later releases are missing here.
_TIMEOUTS = {int(number): name.removeprefix("TIMEOUT_TYPE_").lower() for name, number in TimeoutType.items()}

# Names for failures without a type. Failures in `_WRAPPERS` get the name of their cause.
_FAILURES = {
    "application_failure_info": "ApplicationFailure",
    "timeout_failure_info": "TimeoutFailure",
    "canceled_failure_info": "CanceledFailure",
    "terminated_failure_info": "TerminatedFailure",
    "server_failure_info": "ServerFailure",
    "reset_workflow_failure_info": "ResetWorkflowFailure",
    "activity_failure_info": "ActivityFailure",
    "child_workflow_execution_failure_info": "ChildWorkflowFailure",
    "nexus_operation_execution_failure_info": "NexusOperationFailure",
    "nexus_handler_failure_info": "NexusHandlerFailure",
}
_WRAPPERS = {
    "activity_failure_info",
    "child_workflow_execution_failure_info",
    "nexus_operation_execution_failure_info",
    "nexus_handler_failure_info",
}


class WorkflowRow(NamedTuple):
    """A run, as a row of the table `workflows`."""

    workflow_type: str
    task_list: str
    status: str
    attempt: int
    started_us: int
    closed_us: int | None
    duration_s: float | None
    first_task_wait_s: float | None
    events: int
    signals: int
    updates: int
    timers: int
    children: int
    activities: int
    workflow_tasks: int
    workflow_tasks_failed: int
    workflow_tasks_timed_out: int
    first_run_id: str | None
    continued_from_run_id: str | None
    continued_as_run_id: str | None
    reset_from_run_id: str | None
    parent_workflow_id: str | None
    parent_run_id: str | None
    cron_schedule: str | None
    failure_type: str | None
    failure_message: str | None
    build_id: str | None


class ActivityRow(NamedTuple):
    """An activity, as a row of the table `activities`."""

    activity_id: str
    scheduled_event_id: int
    activity_type: str
    task_list: str
    outcome: str
    attempt: int | None
    retries: int | None
    scheduled_us: int
    started_us: int | None
    closed_us: int | None
    queue_wait_s: float | None
    run_s: float | None
    total_s: float | None
    timeout_type: str | None
    failure_type: str | None
    failure_message: str | None
    retried_failure_type: str | None
    retried_failure_message: str | None
    build_id: str | None


class FlatRun(NamedTuple):
    """The rows of one run, for all tables."""

    workflow: WorkflowRow
    activities: Sequence[ActivityRow]
    workflow_tasks: Sequence[WorkflowTaskRow]
    actions: Sequence[ActionRow]


@dataclass(slots=True)
class _Activity:
    activity_id: str
    scheduled_event_id: int
    activity_type: str
    task_list: str
    scheduled_us: int
    outcome: str = ""
    attempt: int | None = None
    started_us: int | None = None
    closed_us: int | None = None
    timeout_type: str | None = None
    failure_type: str | None = None
    failure_message: str | None = None
    retried_failure_type: str | None = None
    retried_failure_message: str | None = None
    build_id: str | None = None

    def row(self, *, is_closed: bool) -> ActivityRow:
        # The history has only the last attempt of a retried activity, and not the time at which that attempt was
        # queued.
        queue_wait_s = _seconds(self.scheduled_us, self.started_us) if self.attempt == 1 else None
        return ActivityRow(
            self.activity_id,
            self.scheduled_event_id,
            self.activity_type,
            self.task_list,
            self.outcome or ("abandoned" if is_closed else "open"),
            self.attempt,
            None if self.attempt is None else self.attempt - 1,
            self.scheduled_us,
            self.started_us,
            self.closed_us,
            queue_wait_s,
            _seconds(self.started_us, self.closed_us),
            _seconds(self.scheduled_us, self.closed_us),
            self.timeout_type,
            self.failure_type,
            self.failure_message,
            self.retried_failure_type,
            self.retried_failure_message,
            self.build_id,
        )


class _Activities:
    """The activities of a run, built up from its events."""

    def __init__(self) -> None:
        self.by_scheduled: dict[int, _Activity] = {}
        self.handlers: dict[int, Callable[[HistoryEvent], None]] = {
            _ACTIVITY_TASK_SCHEDULED: self._scheduled,
            _ACTIVITY_TASK_STARTED: self._started,
            _ACTIVITY_TASK_COMPLETED: self._completed,
            _ACTIVITY_TASK_FAILED: self._failed,
            _ACTIVITY_TASK_TIMED_OUT: self._timed_out,
            _ACTIVITY_TASK_CANCELED: self._canceled,
        }

    def _scheduled(self, event: HistoryEvent) -> None:
        said = event.activity_task_scheduled_event_attributes
        self.by_scheduled[event.event_id] = _Activity(
            said.activity_id, event.event_id, said.activity_type.name, said.task_queue.name, _time_us(event)
        )

    def _started(self, event: HistoryEvent) -> None:
        said = event.activity_task_started_event_attributes
        activity = self.by_scheduled.get(said.scheduled_event_id)
        if activity is not None:
            activity.attempt, activity.started_us = said.attempt or 1, _time_us(event)
            activity.build_id = said.worker_version.build_id or None
            if said.HasField("last_failure"):
                activity.retried_failure_type, activity.retried_failure_message = describe_failure(said.last_failure)

    def _completed(self, event: HistoryEvent) -> None:
        self._close(event, event.activity_task_completed_event_attributes.scheduled_event_id, "completed")

    def _canceled(self, event: HistoryEvent) -> None:
        self._close(event, event.activity_task_canceled_event_attributes.scheduled_event_id, "canceled")

    def _failed(self, event: HistoryEvent) -> None:
        said = event.activity_task_failed_event_attributes
        activity = self._close(event, said.scheduled_event_id, "failed")
        if activity is not None:
            activity.failure_type, activity.failure_message = describe_failure(said.failure)

    def _timed_out(self, event: HistoryEvent) -> None:
        said = event.activity_task_timed_out_event_attributes
        activity = self._close(event, said.scheduled_event_id, "timed_out")
        if activity is not None:
            activity.failure_type, activity.failure_message = describe_failure(said.failure)
            activity.timeout_type = _TIMEOUTS.get(said.failure.timeout_failure_info.timeout_type, "unknown")

    def _close(self, event: HistoryEvent, scheduled_event_id: int, outcome: str) -> _Activity | None:
        activity = self.by_scheduled.get(scheduled_event_id)
        if activity is not None:
            activity.outcome, activity.closed_us = outcome, _time_us(event)
        return activity


def flatten(run_id: str, events: Sequence[HistoryEvent], *, status: int) -> FlatRun:
    """Return the rows of a run from all of its events; `status` is used if no event closes the run."""
    activities = _Activities()
    tasks = WorkflowTasks(events[0].workflow_execution_started_event_attributes.task_queue.name)
    handlers = activities.handlers | tasks.handlers
    counts: Counter[int] = Counter()
    first_of: dict[int, HistoryEvent] = {}
    resets: list[HistoryEvent] = []
    closing: HistoryEvent | None = None
    for event in events:
        kind = event.event_type
        counts[kind] += 1
        first_of.setdefault(kind, event)
        if (handler := handlers.get(kind)) is not None:
            handler(event)
        elif kind in CLOSED_BY:
            closing = event
        elif kind == _WORKFLOW_TASK_FAILED and _is_reset(event):
            resets.append(event)
    row = _workflow_row(run_id, events, counts=counts, first_of=first_of, resets=resets, closing=closing, status=status)
    return FlatRun(
        row._replace(build_id=tasks.last_build_id),
        [each.row(is_closed=closing is not None) for each in activities.by_scheduled.values()],
        tasks.rows(),
        count_actions(run_id, events),
    )


def _workflow_row(
    run_id: str,
    events: Sequence[HistoryEvent],
    *,
    counts: Counter[int],
    first_of: dict[int, HistoryEvent],
    resets: Sequence[HistoryEvent],
    closing: HistoryEvent | None,
    status: int,
) -> WorkflowRow:
    said = events[0].workflow_execution_started_event_attributes
    started_us = _time_us(events[0])
    closed_us = None if closing is None else _time_us(closing)
    scheduled, started = (first_of.get(kind) for kind in (_WORKFLOW_TASK_SCHEDULED, _WORKFLOW_TASK_STARTED))
    wait_s = None if scheduled is None or started is None else _seconds(_time_us(scheduled), _time_us(started))
    made_by = [event.workflow_task_failed_event_attributes for event in resets]
    failure_type, failure_message = _end_of(closing)
    return WorkflowRow(
        workflow_type=said.workflow_type.name,
        task_list=said.task_queue.name,
        status=_status_name(closing, status),
        attempt=said.attempt or 1,
        started_us=started_us,
        closed_us=closed_us,
        duration_s=_seconds(started_us, closed_us),
        first_task_wait_s=wait_s,
        events=len(events),
        signals=counts[_SIGNALED],
        updates=counts[_UPDATE_ACCEPTED],
        timers=counts[_TIMER_STARTED],
        children=counts[_START_CHILD_WORKFLOW_EXECUTION_INITIATED],
        activities=counts[_ACTIVITY_TASK_SCHEDULED],
        workflow_tasks=counts[_WORKFLOW_TASK_SCHEDULED],
        workflow_tasks_failed=counts[_WORKFLOW_TASK_FAILED] - len(resets),
        workflow_tasks_timed_out=counts[_WORKFLOW_TASK_TIMED_OUT],
        first_run_id=said.first_execution_run_id or None,
        continued_from_run_id=said.continued_execution_run_id or None,
        continued_as_run_id=None if closing is None else next_run_id(closing),
        reset_from_run_id=next((each.base_run_id for each in made_by if each.new_run_id == run_id), None),
        parent_workflow_id=said.parent_workflow_execution.workflow_id or None,
        parent_run_id=said.parent_workflow_execution.run_id or None,
        cron_schedule=said.cron_schedule or None,
        failure_type=failure_type,
        failure_message=failure_message,
        build_id=None,
    )


def describe_failure(failure: Failure) -> tuple[str | None, str | None]:
    """Return the type and the message of a failure; if the failure only wraps a cause, those of the cause."""
    for _ in range(CAUSES_MAX):
        if failure.WhichOneof("failure_info") not in _WRAPPERS or not failure.HasField("cause"):
            break
        failure = failure.cause
    kind = failure.WhichOneof("failure_info")
    name = _FAILURES.get(kind or "", "Failure")
    if kind == "application_failure_info":
        name = failure.application_failure_info.type or name
    return name, failure.message[:MESSAGE_CHARACTERS_MAX]


def _end_of(closing: HistoryEvent | None) -> tuple[str | None, str | None]:
    """Return the type and message of the failure, or the reason of the termination."""
    if closing is None:
        return None, None
    if closing.event_type == _FAILED:
        return describe_failure(closing.workflow_execution_failed_event_attributes.failure)
    if closing.event_type == _TERMINATED:
        reason = closing.workflow_execution_terminated_event_attributes.reason
        return None, reason[:MESSAGE_CHARACTERS_MAX] or None
    return None, None


def _status_name(closing: HistoryEvent | None, status: int) -> str:
    if closing is not None:
        return STATUS_NAMES[CLOSED_BY[closing.event_type]]
    return "paused" if status == PAUSED else "running"


def _is_reset(event: HistoryEvent) -> bool:
    return event.workflow_task_failed_event_attributes.cause == _RESET


def _time_us(event: HistoryEvent) -> int:
    time = event.event_time
    return time.seconds * 1_000_000 + time.nanos // 1000


def _seconds(from_us: int | None, to_us: int | None) -> float | None:
    return None if from_us is None or to_us is None else (to_us - from_us) / 1e6
