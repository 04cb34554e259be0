"""Effects of the events of child workflows on their parent."""

from temporalio.api.history.v1 import HistoryEvent

from fairlead.history.events.errors import cannot_follow, pending
from fairlead.history.state.pending import PendingChild
from fairlead.history.state.run import RunState


def initiated(state: RunState, event: HistoryEvent) -> None:
    """StartChildWorkflowExecutionInitiated: the child becomes pending."""
    attributes = event.start_child_workflow_execution_initiated_event_attributes
    state.children[event.event_id] = PendingChild(
        initiated_event_id=event.event_id,
        version=event.version,
        namespace=attributes.namespace,
        namespace_id=attributes.namespace_id,
        workflow_id=attributes.workflow_id,
        workflow_type=attributes.workflow_type.name,
        parent_close_policy=attributes.parent_close_policy,
        control=attributes.control,
        workflow_task_completed_event_id=attributes.workflow_task_completed_event_id,
    )


def start_failed(state: RunState, event: HistoryEvent) -> None:
    """StartChildWorkflowExecutionFailed: the child was not started."""
    initiated_event_id = event.start_child_workflow_execution_failed_event_attributes.initiated_event_id
    _end(state, event, initiated_event_id, started_event_id=0)


def started(state: RunState, event: HistoryEvent) -> None:
    """ChildWorkflowExecutionStarted: the child's run id is known."""
    attributes = event.child_workflow_execution_started_event_attributes
    child = pending(state, event, state.children, attributes.initiated_event_id, "child initiated by event")
    if child.started_event_id:
        raise cannot_follow(state, event, f"the child was started by event {child.started_event_id}")
    child.started_event_id = event.event_id
    child.run_id = attributes.workflow_execution.run_id


def completed(state: RunState, event: HistoryEvent) -> None:
    """ChildWorkflowExecutionCompleted: the child is no longer pending."""
    attributes = event.child_workflow_execution_completed_event_attributes
    _end(state, event, attributes.initiated_event_id, started_event_id=attributes.started_event_id)


def failed(state: RunState, event: HistoryEvent) -> None:
    """ChildWorkflowExecutionFailed: the child is no longer pending."""
    attributes = event.child_workflow_execution_failed_event_attributes
    _end(state, event, attributes.initiated_event_id, started_event_id=attributes.started_event_id)


def canceled(state: RunState, event: HistoryEvent) -> None:
    """ChildWorkflowExecutionCanceled: the child is no longer pending."""
    attributes = event.child_workflow_execution_canceled_event_attributes
    _end(state, event, attributes.initiated_event_id, started_event_id=attributes.started_event_id)


def timed_out(state: RunState, event: HistoryEvent) -> None:
    """ChildWorkflowExecutionTimedOut: the child is no longer pending."""
    attributes = event.child_workflow_execution_timed_out_event_attributes
    _end(state, event, attributes.initiated_event_id, started_event_id=attributes.started_event_id)


def terminated(state: RunState, event: HistoryEvent) -> None:
    """ChildWorkflowExecutionTerminated: the child is no longer pending."""
    attributes = event.child_workflow_execution_terminated_event_attributes
    _end(state, event, attributes.initiated_event_id, started_event_id=attributes.started_event_id)


def _end(state: RunState, event: HistoryEvent, initiated_event_id: int, *, started_event_id: int) -> None:
    child = pending(state, event, state.children, initiated_event_id, "child initiated by event")
    if child.started_event_id != started_event_id:
        raise cannot_follow(
            state,
            event,
            f"it names started event {started_event_id}, but that of child {initiated_event_id} is "
            f"{child.started_event_id}",
        )
    del state.children[initiated_event_id]
