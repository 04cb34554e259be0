"""Effects, on the sending workflow, of events about its signals and cancel requests to other workflows."""

from temporalio.api.history.v1 import HistoryEvent

from fairlead.history.events.errors import pending
from fairlead.history.state.pending import PendingExternal
from fairlead.history.state.run import RunState


def signal_initiated(state: RunState, event: HistoryEvent) -> None:
    """SignalExternalWorkflowExecutionInitiated: the signal becomes pending."""
    attributes = event.signal_external_workflow_execution_initiated_event_attributes
    state.external_signals[event.event_id] = PendingExternal(
        initiated_event_id=event.event_id,
        version=event.version,
        namespace=attributes.namespace,
        namespace_id=attributes.namespace_id,
        workflow_id=attributes.workflow_execution.workflow_id,
        run_id=attributes.workflow_execution.run_id,
        control=attributes.control,
        child_workflow_only=attributes.child_workflow_only,
        workflow_task_completed_event_id=attributes.workflow_task_completed_event_id,
    )


def signal_failed(state: RunState, event: HistoryEvent) -> None:
    """SignalExternalWorkflowExecutionFailed: the signal was not delivered."""
    _end_signal(state, event, event.signal_external_workflow_execution_failed_event_attributes.initiated_event_id)


def signal_arrived(state: RunState, event: HistoryEvent) -> None:
    """ExternalWorkflowExecutionSignaled: the signal was delivered."""
    _end_signal(state, event, event.external_workflow_execution_signaled_event_attributes.initiated_event_id)


def cancel_initiated(state: RunState, event: HistoryEvent) -> None:
    """RequestCancelExternalWorkflowExecutionInitiated: the cancel request becomes pending."""
    attributes = event.request_cancel_external_workflow_execution_initiated_event_attributes
    state.external_cancels[event.event_id] = PendingExternal(
        initiated_event_id=event.event_id,
        version=event.version,
        namespace=attributes.namespace,
        namespace_id=attributes.namespace_id,
        workflow_id=attributes.workflow_execution.workflow_id,
        run_id=attributes.workflow_execution.run_id,
        control=attributes.control,
        child_workflow_only=attributes.child_workflow_only,
        workflow_task_completed_event_id=attributes.workflow_task_completed_event_id,
    )


def cancel_failed(state: RunState, event: HistoryEvent) -> None:
    """RequestCancelExternalWorkflowExecutionFailed: the cancel request was not delivered."""
    attributes = event.request_cancel_external_workflow_execution_failed_event_attributes
    _end_cancel(state, event, attributes.initiated_event_id)


def cancel_arrived(state: RunState, event: HistoryEvent) -> None:
    """ExternalWorkflowExecutionCancelRequested: the cancel request was delivered."""
    _end_cancel(state, event, event.external_workflow_execution_cancel_requested_event_attributes.initiated_event_id)


def _end_signal(state: RunState, event: HistoryEvent, initiated_event_id: int) -> None:
    pending(state, event, state.external_signals, initiated_event_id, "signal initiated by event")
    del state.external_signals[initiated_event_id]


def _end_cancel(state: RunState, event: HistoryEvent, initiated_event_id: int) -> None:
    pending(state, event, state.external_cancels, initiated_event_id, "cancellation initiated by event")
    del state.external_cancels[initiated_event_id]
