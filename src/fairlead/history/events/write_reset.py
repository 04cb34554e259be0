"""The steps of a reset: a new run begins with the first events of a base run, and continues from there."""

from collections.abc import Collection, Iterable
from typing import Any

from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType, UpdateAdmittedEventOrigin
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import (
    HistoryEvent,
    WorkflowExecutionUpdateAdmittedEventAttributes,
    WorkflowTaskFailedEventAttributes,
)

from fairlead.api.times import shorter
from fairlead.history.events.activity_attempts import begin_attempts
from fairlead.history.events.kinds import RESETTER, field_of
from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_close import terminate
from fairlead.history.events.write_nexus import refresh_operation
from fairlead.history.events.write_signals import signal
from fairlead.history.events.write_workflow_tasks import (
    HISTORY_SERVICE,
    schedule_workflow_task,
    start_workflow_task,
    write_unwritten,
)
from fairlead.history.state.errors import BadRequest
from fairlead.history.state.requests import request_id_of
from fairlead.history.state.run import RunState
from fairlead.history.state.tasks import (
    CancelExternal,
    ExecutionTimeout,
    RunTimeout,
    SignalExternal,
    StartChild,
    UserTimer,
)
from fairlead.history.state.workflow_task import WorkflowTask

# Request id that Temporal writes for a task that no worker has polled.
_NO_REQUEST = "emptyUuid"

_SIGNAL = ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL
_UPDATE = ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE
_NEXUS = ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_NEXUS
_CHILD_STARTED = EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED
_CHILD_ENDS = frozenset(
    {
        EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT,
        EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED,
    }
)
_NEXUS_STARTED = EventType.EVENT_TYPE_NEXUS_OPERATION_STARTED
_NEXUS_ENDS = frozenset(
    {
        EventType.EVENT_TYPE_NEXUS_OPERATION_COMPLETED,
        EventType.EVENT_TYPE_NEXUS_OPERATION_FAILED,
        EventType.EVENT_TYPE_NEXUS_OPERATION_CANCELED,
        EventType.EVENT_TYPE_NEXUS_OPERATION_TIMED_OUT,
    }
)


def terminate_for_reset(transaction: Transaction, *, reason: str) -> None:
    """Terminate the run that a reset replaces; its parent is not notified, and its children continue."""
    terminate(transaction, reason=reason, identity=RESETTER)


def begin_reset(transaction: Transaction, *, base_run_id: str, reason: str) -> None:
    """Fail the workflow task to which the run is reset, so that a worker repeats it.

    `transaction` begins with the base run's state just before the response to the task. Raises `BadRequest` if that
    state has no pending workflow task.
    """
    state = transaction.state
    finish_event_id, base_version = state.next_event_id, state.last_version
    if state.task is None and state.live.task_attempt > 1:
        # The previous attempt failed, so the pending task is transient and has no events yet.
        schedule_workflow_task(transaction, push=False)
    task = state.workflow_task
    if task is None:
        raise BadRequest(
            "Can only reset workflow to event ID in range [WorkflowTaskScheduled +1, WorkflowTaskStarted + 1]: "
            f"{finish_event_id}"
        )
    if not task.is_started:
        start_workflow_task(transaction, task.scheduled_event_id, request_id=_NO_REQUEST, identity=HISTORY_SERVICE)
        task = write_unwritten(transaction)
    transaction.add(_failed(task, base_run_id, state.identity.run_id, base_version, reason))
    state.live.task_attempt = 1
    # Drop the tasks of the workflow task: it was started only to be failed.
    transaction.tasks.clear()


def _failed(
    task: WorkflowTask, base_run_id: str, new_run_id: str, base_version: int, reason: str
) -> WorkflowTaskFailedEventAttributes:
    failure = Failure(message=reason)
    failure.reset_workflow_failure_info.SetInParent()
    return WorkflowTaskFailedEventAttributes(
        scheduled_event_id=task.scheduled_event_id,
        started_event_id=task.started_event_id,
        cause=Cause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
        failure=failure,
        identity=HISTORY_SERVICE,
        base_run_id=base_run_id,
        new_run_id=new_run_id,
        fork_event_version=base_version,
    )


def reapply(
    transaction: Transaction,
    events: Iterable[HistoryEvent],
    *,
    excluded: Collection[ResetReapplyExcludeType.ValueType],
    is_base: bool,
) -> None:
    """Reapply the events from outside the run that follow the reset point, in the same order.

    These are signals, updates and attached requests, except the `excluded` types. From the base run (`is_base`), also
    reapply the results of children and Nexus operations that are pending in this run. Cancel requests are not
    reapplied.
    """
    for event in events:
        if _is_wanted(transaction.state, event, excluded, is_base=is_base):
            _add(transaction, event)
            # Flush each event separately, to keep the order.
            transaction.flush()


def _is_wanted(
    state: RunState,
    event: HistoryEvent,
    excluded: Collection[ResetReapplyExcludeType.ValueType],
    *,
    is_base: bool,
) -> bool:
    attributes = _attributes(event)
    match event.event_type:
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            return _SIGNAL not in excluded
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED:
            return _UPDATE not in excluded and attributes.request.meta.update_id not in state.updates
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            # An accepted event without a request belongs to an update that was admitted by an earlier event.
            return (
                _UPDATE not in excluded
                and attributes.HasField("accepted_request")
                and attributes.accepted_request.meta.update_id not in state.updates
            )
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED:
            return attributes.attached_request_id not in state.attached_request_ids
        case _:
            return is_base and _is_of_pending(state, event, excluded)


def _is_of_pending(
    state: RunState, event: HistoryEvent, excluded: Collection[ResetReapplyExcludeType.ValueType]
) -> bool:
    attributes = _attributes(event)
    if event.event_type == _CHILD_STARTED or event.event_type in _CHILD_ENDS:
        child = state.children.get(attributes.initiated_event_id)
        return child is not None and (event.event_type in _CHILD_ENDS or not child.started_event_id)
    if event.event_type == _NEXUS_STARTED or event.event_type in _NEXUS_ENDS:
        operation = state.nexus_operations.get(attributes.scheduled_event_id)
        is_open = operation is not None and (event.event_type in _NEXUS_ENDS or not operation.started_event_id)
        return is_open and _NEXUS not in excluded
    return False


def _attributes(event: HistoryEvent) -> Any:
    """The attributes of the event; the type of the message depends on the type of the event."""
    return getattr(event, field_of(event.event_type))


def _add(transaction: Transaction, event: HistoryEvent) -> None:
    attributes = _attributes(event)
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
        signal(transaction, attributes, links=event.links, wakes=False)
    elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
        transaction.add(
            WorkflowExecutionUpdateAdmittedEventAttributes(
                request=attributes.accepted_request,
                origin=UpdateAdmittedEventOrigin.UPDATE_ADMITTED_EVENT_ORIGIN_REAPPLY,
            )
        )
    else:
        transaction.add(attributes, links=event.links)


def finish_reset(transaction: Transaction) -> None:
    """Schedule the workflow task, and add the tasks of all pending items.

    Requests that the base run may already have sent keep their request ids, so that they take effect only once.
    """
    state = transaction.state
    schedule_workflow_task(transaction)
    for activity in state.activities.values():
        begin_attempts(transaction, activity, push=True)
    for timer in state.timers.values():
        transaction.add_task(UserTimer(timer.version, timer.fire_at_ns, timer.timer_id, timer.started_event_id))
    for child in state.children.values():
        if not child.started_event_id:
            transaction.add_task(StartChild(child.version, child.initiated_event_id, request_id_of(state, child)))
    for signaled in state.external_signals.values():
        transaction.add_task(
            SignalExternal(signaled.version, signaled.initiated_event_id, request_id_of(state, signaled))
        )
    for canceled in state.external_cancels.values():
        transaction.add_task(
            CancelExternal(canceled.version, canceled.initiated_event_id, request_id_of(state, canceled))
        )
    for operation in state.nexus_operations.values():
        refresh_operation(transaction, operation)
    _add_timeouts(transaction)
    transaction.show()


def _add_timeouts(transaction: Transaction) -> None:
    """Restart the run's timeouts: they count from the reset."""
    origin, now_ns = transaction.state.started, transaction.now_ns
    run_ns = shorter(origin.run_timeout_ns, origin.execution_timeout_ns)
    if run_ns:
        transaction.add_task(RunTimeout(transaction.version, now_ns + run_ns))
    if origin.execution_timeout_ns:
        due_ns = now_ns + origin.execution_timeout_ns
        transaction.add_task(ExecutionTimeout(transaction.version, due_ns, origin.first_run_id))
