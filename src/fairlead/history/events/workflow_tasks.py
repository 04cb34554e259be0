"""What the events of workflow tasks do."""

from temporalio.api.enums.v1 import TaskQueueKind, TimeoutType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent, WorkflowTaskCompletedEventAttributes
from temporalio.api.workflow.v1 import ResetPointInfo

from fairlead.history.events.refusal import refusal
from fairlead.history.state import versioning
from fairlead.history.state.limits import RESET_POINTS_MAX
from fairlead.history.state.run import RunState
from fairlead.history.state.times import from_duration, from_timestamp
from fairlead.history.state.workflow_task import TaskKind, WorkflowTask


def scheduled(state: RunState, event: HistoryEvent) -> None:
    """A workflow task waits for a worker."""
    if state.task is not None:
        raise refusal(state, event, f"workflow task {state.task.scheduled_event_id} is pending")
    attributes = event.workflow_task_scheduled_event_attributes
    scheduled_ns = from_timestamp(event.event_time)
    queue = attributes.task_queue
    sticky = queue.kind == TaskQueueKind.TASK_QUEUE_KIND_STICKY
    state.task = WorkflowTask(
        kind=TaskKind.NORMAL,
        version=event.version,
        scheduled_event_id=event.event_id,
        attempt=attributes.attempt,
        timeout_ns=from_duration(attributes.start_to_close_timeout),
        scheduled_ns=scheduled_ns,
        task_queue=queue.name,
        sticky=sticky,
    )


def started(state: RunState, event: HistoryEvent) -> None:
    """A worker has it."""
    attributes = event.workflow_task_started_event_attributes
    task = _named(state, event, attributes.scheduled_event_id, started_event_id=0)
    task.started_event_id = event.event_id
    task.started_ns = from_timestamp(event.event_time)
    task.request_id = attributes.request_id
    task.identity = attributes.identity
    if attributes.HasField("worker_version"):
        task.worker_version = attributes.worker_version.SerializeToString(deterministic=True)
    task.suggest_continue_as_new = attributes.suggest_continue_as_new
    task.target_changed = attributes.target_worker_deployment_version_changed
    task.history_size_bytes = attributes.history_size_bytes


def completed(state: RunState, event: HistoryEvent) -> None:
    """The worker has answered; what it wants follows in events of its own."""
    attributes = event.workflow_task_completed_event_attributes
    _named(state, event, attributes.scheduled_event_id, started_event_id=attributes.started_event_id)
    state.task = None
    state.live.task_attempt = 1
    state.completed_task_started_event_id = attributes.started_event_id
    state.completed_task_event_id = event.event_id
    if attributes.HasField("worker_version"):
        state.worker_version = attributes.worker_version.SerializeToString(deterministic=True)
    _add_reset_point(state, event, attributes)
    state.versioning = versioning.completed(state.versioning, attributes)


def failed(state: RunState, event: HistoryEvent) -> None:
    """The worker could not carry it out, or the server could not carry out what it answered."""
    attributes = event.workflow_task_failed_event_attributes
    _named(state, event, attributes.scheduled_event_id, started_event_id=attributes.started_event_id)
    state.task = None
    if attributes.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
        _begin_anew(state, from_timestamp(event.event_time))
        state.reset_base_run_id, state.reset_event_id = attributes.base_run_id, event.event_id
    elif attributes.started_event_id:
        # One that nobody had is no failed attempt: the run was paused.
        state.live.task_attempt += 1


def _begin_anew(state: RunState, now_ns: int) -> None:
    """The run was reset: it has all of its time again, and so have its activities."""
    origin = state.started
    state.live.task_attempt = 1
    origin.started_ns = now_ns
    origin.first_backoff_ns = 0
    if origin.execution_timeout_ns:
        origin.expires_at_ns = now_ns + origin.execution_timeout_ns
    for activity in state.activities.values():
        activity.scheduled_ns = now_ns


def timed_out(state: RunState, event: HistoryEvent) -> None:
    """Nobody has answered in time. That nobody took it from a worker's own queue is no failed attempt."""
    attributes = event.workflow_task_timed_out_event_attributes
    _named(state, event, attributes.scheduled_event_id, started_event_id=attributes.started_event_id)
    state.task = None
    if attributes.timeout_type == TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE:
        state.live.task_attempt += 1


def _named(state: RunState, event: HistoryEvent, scheduled_event_id: int, *, started_event_id: int) -> WorkflowTask:
    """The pending task, if it is the one that the event names."""
    task = state.task
    if task is None:
        raise refusal(state, event, "no workflow task is pending")
    present = task.scheduled_event_id, task.started_event_id
    if present != (scheduled_event_id, started_event_id):
        raise refusal(
            state,
            event,
            f"it names the workflow task scheduled by event {scheduled_event_id} and started by event "
            f"{started_event_id}, but the pending one is of events {present[0]} and {present[1]}",
        )
    return task


def _add_reset_point(state: RunState, event: HistoryEvent, attributes: WorkflowTaskCompletedEventAttributes) -> None:
    """Where a reset to the first work of a worker's build would begin."""
    build_id = attributes.worker_version.build_id
    checksum = attributes.binary_checksum
    if not build_id and not checksum:
        return
    if any(
        (point.build_id, point.binary_checksum) == (build_id, checksum)
        for point in map(ResetPointInfo.FromString, state.reset_points)
    ):
        return
    point = ResetPointInfo(
        build_id=build_id,
        binary_checksum=checksum,
        run_id=state.identity.run_id,
        first_workflow_task_completed_id=event.event_id,
        create_time=event.event_time,
        resettable=not (state.children or state.external_signals or state.external_cancels),
    )
    state.reset_points = [*state.reset_points[1 - RESET_POINTS_MAX :], point.SerializeToString(deterministic=True)]
