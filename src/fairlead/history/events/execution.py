"""Effects of the events of a run as a whole: start, close, cancel request, signals, options, pause."""

from temporalio.api.enums.v1 import EventType, ParentClosePolicy, WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionStartedEventAttributes

from fairlead.api.limits import RESET_POINTS_MAX
from fairlead.api.times import from_duration, from_timestamp
from fairlead.api.worker_versions import begun
from fairlead.history.events import time_skipping
from fairlead.history.events.attributes import merge_payloads
from fairlead.history.events.errors import cannot_follow, pending
from fairlead.history.events.kinds import NEWER_RUN, RESETTER
from fairlead.history.events.updates import add_callbacks
from fairlead.history.state.run import PAUSED, RUNNING, ClosedBy, Origin, Parent, ParentClose, Pause, RunState

_STATUSES = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: (
        WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW
    ),
}

_TERMINATORS = {RESETTER: ClosedBy.RESET, NEWER_RUN: ClosedBy.NEWER_RUN}


def started(state: RunState, event: HistoryEvent) -> None:
    """WorkflowExecutionStarted: set the run's origin."""
    if state.origin is not None:
        raise cannot_follow(state, event, "the run has started already")
    attributes = event.workflow_execution_started_event_attributes
    # Most of these fields are unset in most runs, and checking for a field is cheaper than reading an unset message.
    has, callbacks = attributes.HasField, attributes.completion_callbacks
    retry_policy = attributes.retry_policy.SerializeToString(deterministic=True) if has("retry_policy") else None
    root = attributes.root_workflow_execution if has("root_workflow_execution") else None
    parent = _parent(attributes)
    started_ns = from_timestamp(event.event_time)
    state.origin = Origin(
        workflow_type=attributes.workflow_type.name,
        task_queue=attributes.task_queue.name,
        execution_timeout_ns=(
            from_duration(attributes.workflow_execution_timeout) if has("workflow_execution_timeout") else 0
        ),
        run_timeout_ns=from_duration(attributes.workflow_run_timeout) if has("workflow_run_timeout") else 0,
        task_timeout_ns=from_duration(attributes.workflow_task_timeout),
        expires_at_ns=(
            from_timestamp(attributes.workflow_execution_expiration_time)
            if has("workflow_execution_expiration_time")
            else 0
        ),
        started_ns=started_ns,
        first_backoff_ns=from_duration(attributes.first_workflow_task_backoff),
        attempt=attributes.attempt,
        first_run_id=attributes.first_execution_run_id,
        original_run_id=attributes.original_execution_run_id,
        continued_run_id=attributes.continued_execution_run_id,
        initiator=attributes.initiator,
        cron_schedule=attributes.cron_schedule,
        retry_policy=retry_policy,
        priority=attributes.priority.SerializeToString(deterministic=True) if has("priority") else None,
        parent=parent,
        root_workflow_id=(root.workflow_id if root is not None else "") or state.identity.workflow_id,
        root_run_id=(root.run_id if root is not None else "") or state.identity.run_id,
        identity=attributes.identity,
        completion_callbacks=[callback.SerializeToString(deterministic=True) for callback in callbacks],
        version=event.version,
        callback_times_ns=[started_ns] * len(callbacks),
    )
    if has("memo"):
        merge_payloads(state.memo, attributes.memo.fields)
    if has("search_attributes"):
        merge_payloads(state.search_attributes, attributes.search_attributes.indexed_fields)
    if has("versioning_override"):
        state.versioning_override = attributes.versioning_override.SerializeToString(deterministic=True)
    if has("prev_auto_reset_points"):
        points = attributes.prev_auto_reset_points.points[-RESET_POINTS_MAX:]
        state.reset_points = [point.SerializeToString(deterministic=True) for point in points]
    state.versioning = begun(attributes)
    state.time_skipping = time_skipping.begun(event)


def _parent(attributes: WorkflowExecutionStartedEventAttributes) -> Parent | None:
    if not attributes.HasField("parent_workflow_execution"):
        return None
    return Parent(
        namespace=attributes.parent_workflow_namespace,
        namespace_id=attributes.parent_workflow_namespace_id,
        workflow_id=attributes.parent_workflow_execution.workflow_id,
        run_id=attributes.parent_workflow_execution.run_id,
        initiated_event_id=attributes.parent_initiated_event_id,
        initiated_version=attributes.parent_initiated_event_version,
    )


def closed(state: RunState, event: HistoryEvent) -> None:
    """Close the run: nothing stays pending, not even a workflow task."""
    state.status = _STATUSES[event.event_type]
    state.closed_ns = from_timestamp(event.event_time)
    state.close_event_id = event.event_id
    state.new_run_id = _new_run_id(event)
    state.closed_by = _closed_by(event)
    state.closed_children = children_to_close(state)
    state.task = None
    for table in (
        state.activities,
        state.activity_ids,
        state.timers,
        state.children,
        state.external_signals,
        state.external_cancels,
        state.nexus_operations,
    ):
        table.clear()


def children_to_close(state: RunState) -> list[ParentClose]:
    """The pending children, except abandoned ones, to whom the parent close policy applies; none after a reset."""
    if state.closed_by == ClosedBy.RESET:
        return []
    return [
        ParentClose(child.namespace_id, child.workflow_id, child.run_id, child.parent_close_policy)
        for child in state.children.values()
        if child.parent_close_policy != ParentClosePolicy.PARENT_CLOSE_POLICY_ABANDON
    ]


def _closed_by(event: HistoryEvent) -> ClosedBy:
    identity = event.workflow_execution_terminated_event_attributes.identity
    return _TERMINATORS.get(identity, ClosedBy.ITSELF)


def _new_run_id(event: HistoryEvent) -> str:
    """The run id of the next run (continue-as-new, cron or retry); empty without a next run."""
    match event.WhichOneof("attributes"):
        case "workflow_execution_continued_as_new_event_attributes":
            return event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        case "workflow_execution_completed_event_attributes":
            return event.workflow_execution_completed_event_attributes.new_execution_run_id
        case "workflow_execution_failed_event_attributes":
            return event.workflow_execution_failed_event_attributes.new_execution_run_id
        case "workflow_execution_timed_out_event_attributes":
            return event.workflow_execution_timed_out_event_attributes.new_execution_run_id
        case _:
            return ""


def cancel_requested(state: RunState, event: HistoryEvent) -> None:
    """WorkflowExecutionCancelRequested: a run can have this event only once."""
    if state.cancel_requested:
        raise cannot_follow(state, event, f"event {state.cancel_event_id} already requested cancellation")
    state.cancel_requested = True
    state.cancel_event_id = event.event_id


def signaled(state: RunState, event: HistoryEvent) -> None:
    """WorkflowExecutionSignaled: count the signal and remember its request id."""
    state.signal_count += 1
    state.remember_request(event.workflow_execution_signaled_event_attributes.request_id)


def options_updated(state: RunState, event: HistoryEvent) -> None:
    """WorkflowExecutionOptionsUpdated: a request was attached, or the priority or versioning override changed."""
    attributes = event.workflow_execution_options_updated_event_attributes
    if attributes.attached_request_id:
        state.attached_request_ids[attributes.attached_request_id] = event.event_id
    origin = state.started
    origin.completion_callbacks.extend(
        callback.SerializeToString(deterministic=True) for callback in attributes.attached_completion_callbacks
    )
    attached = len(attributes.attached_completion_callbacks)
    origin.callback_times_ns.extend([from_timestamp(event.event_time)] * attached)
    for update in attributes.workflow_update_options:
        if update.attached_request_id:
            state.attached_request_ids[update.attached_request_id] = event.event_id
        record = pending(state, event, state.updates, update.update_id, "update")
        add_callbacks(record, update.attached_completion_callbacks, event)
    if attributes.HasField("priority"):
        origin.priority = attributes.priority.SerializeToString(deterministic=True)
    if attributes.unset_versioning_override:
        state.versioning_override = b""
    elif attributes.HasField("versioning_override"):
        state.versioning_override = attributes.versioning_override.SerializeToString(deterministic=True)
    time_skipping.configured(state, event)


def paused(state: RunState, event: HistoryEvent) -> None:
    """WorkflowExecutionPaused: workers get no workflow tasks or activities until the run is unpaused."""
    if state.status != RUNNING:
        raise cannot_follow(state, event, "the run is not running")
    state.status = PAUSED
    attributes = event.workflow_execution_paused_event_attributes
    state.pause = Pause(
        paused_ns=from_timestamp(event.event_time),
        identity=attributes.identity,
        reason=attributes.reason,
        request_id=attributes.request_id,
    )


def unpaused(state: RunState, event: HistoryEvent) -> None:
    """WorkflowExecutionUnpaused: the run is running again."""
    if state.status != PAUSED:
        raise cannot_follow(state, event, "the run is not paused")
    state.status = RUNNING
    state.pause = None
