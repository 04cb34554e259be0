"""The steps by which a parent records the start and the end of its children."""

from google.protobuf.message import Message
from temporalio.api.common.v1 import Header, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import EventType, RetryState, StartChildWorkflowExecutionFailedCause
from temporalio.api.history.v1 import (
    ChildWorkflowExecutionCanceledEventAttributes,
    ChildWorkflowExecutionCompletedEventAttributes,
    ChildWorkflowExecutionFailedEventAttributes,
    ChildWorkflowExecutionStartedEventAttributes,
    ChildWorkflowExecutionTerminatedEventAttributes,
    ChildWorkflowExecutionTimedOutEventAttributes,
    HistoryEvent,
    StartChildWorkflowExecutionFailedEventAttributes,
)

from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_workflow_tasks import wake
from fairlead.history.state.errors import BadRequest, NotPending
from fairlead.history.state.pending import PendingChild


def child_started(
    transaction: Transaction, initiated_event_id: int, *, run_id: str, header: Header | None = None
) -> bool:
    """Record that the child has started; return False if the parent has recorded it already."""
    state = transaction.state
    child = _find(transaction, initiated_event_id)
    if _has_started(transaction, child):
        return False
    transaction.add(
        ChildWorkflowExecutionStartedEventAttributes(
            namespace=child.namespace,
            namespace_id=child.namespace_id,
            initiated_event_id=initiated_event_id,
            workflow_execution=WorkflowExecution(workflow_id=child.workflow_id, run_id=run_id),
            workflow_type=WorkflowType(name=child.workflow_type),
            header=header,
        )
    )
    # A negative id stands for the child's start in the buffer; a positive id for its end.
    state.live.ending.add(-initiated_event_id)
    wake(transaction)
    return True


def child_start_failed(
    transaction: Transaction, initiated_event_id: int, cause: StartChildWorkflowExecutionFailedCause.ValueType
) -> None:
    """Record that the child could not be started."""
    child = _find(transaction, initiated_event_id)
    if _has_started(transaction, child):
        raise NotPending(f"the child initiated by event {initiated_event_id} has started")
    transaction.add(
        StartChildWorkflowExecutionFailedEventAttributes(
            namespace=child.namespace,
            namespace_id=child.namespace_id,
            workflow_id=child.workflow_id,
            workflow_type=WorkflowType(name=child.workflow_type),
            cause=cause,
            control=child.control,
            initiated_event_id=initiated_event_id,
        )
    )
    transaction.state.live.ending.add(initiated_event_id)
    wake(transaction)


def child_closed(
    transaction: Transaction, initiated_event_id: int, *, execution: WorkflowExecution, close_event: HistoryEvent
) -> None:
    """Record the child's end, as its last event tells.

    `execution` is the last run of the child's chain.
    """
    state = transaction.state
    child = _find(transaction, initiated_event_id)
    if not _has_started(transaction, child):
        raise NotPending(f"the child initiated by event {initiated_event_id} is not known to have started yet")
    attributes = _closed_attributes(child, execution, close_event)
    transaction.add(attributes)
    state.live.ending.add(initiated_event_id)
    wake(transaction)


def _closed_attributes(child: PendingChild, execution: WorkflowExecution, event: HistoryEvent) -> Message:
    attributes: Message
    match event.event_type:
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            result = event.workflow_execution_completed_event_attributes
            attributes = ChildWorkflowExecutionCompletedEventAttributes(
                result=result.result if result.HasField("result") else None
            )
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            failed = event.workflow_execution_failed_event_attributes
            attributes = ChildWorkflowExecutionFailedEventAttributes(
                failure=failed.failure, retry_state=failed.retry_state
            )
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
            canceled = event.workflow_execution_canceled_event_attributes
            attributes = ChildWorkflowExecutionCanceledEventAttributes(
                details=canceled.details if canceled.HasField("details") else None
            )
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
            attributes = ChildWorkflowExecutionTimedOutEventAttributes(
                retry_state=event.workflow_execution_timed_out_event_attributes.retry_state
                or RetryState.RETRY_STATE_TIMEOUT
            )
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
            attributes = ChildWorkflowExecutionTerminatedEventAttributes()
        case other:
            raise BadRequest(f"a child does not end with an event of type {EventType.Name(other)}")
    return _with_child(attributes, child, execution)


def _with_child(attributes: Message, child: PendingChild, execution: WorkflowExecution) -> Message:
    """Set the fields that identify the child: all five messages have them, but share no base class."""
    whose = ChildWorkflowExecutionTerminatedEventAttributes(
        namespace=child.namespace,
        namespace_id=child.namespace_id,
        workflow_execution=execution,
        workflow_type=WorkflowType(name=child.workflow_type),
        initiated_event_id=child.initiated_event_id,
    )
    for field, value in whose.ListFields():
        if field.message_type is not None:
            getattr(attributes, field.name).CopyFrom(value)
        else:
            setattr(attributes, field.name, value)
    return attributes


def _has_started(transaction: Transaction, child: PendingChild) -> bool:
    """Whether the child's start is in the history or in the buffer."""
    return child.started_event_id > 0 or -child.initiated_event_id in transaction.state.live.ending


def _find(transaction: Transaction, initiated_event_id: int) -> PendingChild:
    state = transaction.state
    state.check_open()
    child = state.children.get(initiated_event_id)
    if child is None or initiated_event_id in state.live.ending:
        raise NotPending("Pending child execution not found.")
    return child
