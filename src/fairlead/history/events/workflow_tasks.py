"""Effects of the events of workflow tasks."""

from temporalio.api.enums.v1 import TaskQueueKind, TimeoutType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent, WorkflowTaskCompletedEventAttributes
from temporalio.api.workflow.v1 import ResetPointInfo

from fairlead.api import worker_versions
from fairlead.api.limits import RESET_POINTS_MAX
from fairlead.api.times import from_duration, from_timestamp
from fairlead.history.events.errors import cannot_follow
from fairlead.history.state import problems
from fairlead.history.state.run import RunState
from fairlead.history.state.workflow_task import TaskKind, WorkflowTask

_STICKY = TaskQueueKind.TASK_QUEUE_KIND_STICKY


def scheduled(state: RunState, event: HistoryEvent) -> None:
    """WorkflowTaskScheduled: the task becomes pending."""
    if state.task is not None:
        raise cannot_follow(state, event, f"workflow task {state.task.scheduled_event_id} is pending")
    attributes = event.workflow_task_scheduled_event_attributes
    scheduled_ns = from_timestamp(event.event_time)
    queue = attributes.task_queue
    sticky = queue.kind == _STICKY
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
    """WorkflowTaskStarted: a worker has the task."""
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
    """WorkflowTaskCompleted: the worker responded; the events of its commands follow."""
    attributes = event.workflow_task_completed_event_attributes
    _named(state, event, attributes.scheduled_event_id, started_event_id=attributes.started_event_id)
    state.task = None
    state.live.task_attempt = 1
    state.live.task_problem = state.live.reported_problems = ()
    state.completed_task_started_event_id = attributes.started_event_id
    state.completed_task_event_id = event.event_id
    if attributes.HasField("worker_version"):
        state.worker_version = attributes.worker_version.SerializeToString(deterministic=True)
    _add_reset_point(state, event, attributes)
    state.versioning = worker_versions.completed(state.versioning, attributes)


def failed(state: RunState, event: HistoryEvent) -> None:
    """WorkflowTaskFailed: the worker failed the task, or sent commands that the server could not carry out."""
    attributes = event.workflow_task_failed_event_attributes
    _named(state, event, attributes.scheduled_event_id, started_event_id=attributes.started_event_id)
    state.task = None
    if attributes.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
        _begin_anew(state, from_timestamp(event.event_time))
        state.reset_base_run_id, state.reset_event_id = attributes.base_run_id, event.event_id
    elif attributes.started_event_id:
        # Count only a started task: otherwise the run was paused before a worker took the task.
        state.live.task_attempt += 1
        state.live.task_problem = problems.failed(attributes.cause)


def _begin_anew(state: RunState, now_ns: int) -> None:
    """Restart the timeouts of the run and of its activities, after a reset."""
    origin = state.started
    state.live.task_attempt = 1
    state.live.task_problem = state.live.reported_problems = ()
    origin.started_ns = now_ns
    origin.first_backoff_ns = 0
    if origin.execution_timeout_ns:
        origin.expires_at_ns = now_ns + origin.execution_timeout_ns
    for activity in state.activities.values():
        activity.scheduled_ns = now_ns


def timed_out(state: RunState, event: HistoryEvent) -> None:
    """WorkflowTaskTimedOut: only a start-to-close timeout counts as a failed attempt."""
    attributes = event.workflow_task_timed_out_event_attributes
    _named(state, event, attributes.scheduled_event_id, started_event_id=attributes.started_event_id)
    state.task = None
    if attributes.timeout_type == TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE:
        state.live.task_attempt += 1
        state.live.task_problem = problems.TIMED_OUT


def _named(state: RunState, event: HistoryEvent, scheduled_event_id: int, *, started_event_id: int) -> WorkflowTask:
    """The pending workflow task; raises `EventCannotFollow` if the event names another task."""
    task = state.task
    if task is None:
        raise cannot_follow(state, event, "no workflow task is pending")
    present = task.scheduled_event_id, task.started_event_id
    if present != (scheduled_event_id, started_event_id):
        raise cannot_follow(
            state,
            event,
            f"it names the workflow task scheduled by event {scheduled_event_id} and started by event "
            f"{started_event_id}, but the pending one has events {present[0]} and {present[1]}",
        )
    return task


def _add_reset_point(state: RunState, event: HistoryEvent, attributes: WorkflowTaskCompletedEventAttributes) -> None:
    """Add a reset point for the first workflow task that this build or binary completed."""
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
