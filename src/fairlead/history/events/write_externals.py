"""The steps that record the results of signals and cancel requests to other workflows."""

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import CancelExternalWorkflowExecutionFailedCause as CancelCause
from temporalio.api.enums.v1 import SignalExternalWorkflowExecutionFailedCause as SignalCause
from temporalio.api.history.v1 import (
    ExternalWorkflowExecutionCancelRequestedEventAttributes,
    ExternalWorkflowExecutionSignaledEventAttributes,
    RequestCancelExternalWorkflowExecutionFailedEventAttributes,
    SignalExternalWorkflowExecutionFailedEventAttributes,
)

from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_workflow_tasks import wake
from fairlead.history.state.errors import NotPending
from fairlead.history.state.pending import PendingExternal


def external_signaled(
    transaction: Transaction, initiated_event_id: int, failed: SignalCause.ValueType | None = None
) -> None:
    """Record that the signal was delivered, or that it failed."""
    external = _find(transaction, transaction.state.external_signals, initiated_event_id)
    execution = WorkflowExecution(workflow_id=external.workflow_id, run_id=external.run_id)
    if failed is None:
        transaction.add(
            ExternalWorkflowExecutionSignaledEventAttributes(
                initiated_event_id=initiated_event_id,
                namespace=external.namespace,
                namespace_id=external.namespace_id,
                workflow_execution=execution,
                control=external.control,
            )
        )
    else:
        transaction.add(
            SignalExternalWorkflowExecutionFailedEventAttributes(
                cause=failed,
                initiated_event_id=initiated_event_id,
                namespace=external.namespace,
                namespace_id=external.namespace_id,
                workflow_execution=execution,
                control=external.control,
            )
        )
    transaction.state.live.ending.add(initiated_event_id)
    wake(transaction)


def external_cancel_requested(
    transaction: Transaction, initiated_event_id: int, failed: CancelCause.ValueType | None = None
) -> None:
    """Record that the cancel request was delivered, or that it failed."""
    external = _find(transaction, transaction.state.external_cancels, initiated_event_id)
    execution = WorkflowExecution(workflow_id=external.workflow_id, run_id=external.run_id)
    if failed is None:
        transaction.add(
            ExternalWorkflowExecutionCancelRequestedEventAttributes(
                initiated_event_id=initiated_event_id,
                namespace=external.namespace,
                namespace_id=external.namespace_id,
                workflow_execution=execution,
            )
        )
    else:
        transaction.add(
            RequestCancelExternalWorkflowExecutionFailedEventAttributes(
                cause=failed,
                initiated_event_id=initiated_event_id,
                namespace=external.namespace,
                namespace_id=external.namespace_id,
                workflow_execution=execution,
                control=external.control,
            )
        )
    transaction.state.live.ending.add(initiated_event_id)
    wake(transaction)


def _find(transaction: Transaction, table: dict[int, PendingExternal], initiated_event_id: int) -> PendingExternal:
    state = transaction.state
    state.check_open()
    external = table.get(initiated_event_id)
    if external is None or initiated_event_id in state.live.ending:
        raise NotPending(f"no signal or cancel request of event {initiated_event_id} is pending")
    return external
