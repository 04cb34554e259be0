"""Sends signals and cancel requests from one workflow to another."""

from collections.abc import Callable

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import CancelExternalWorkflowExecutionFailedCause as CancelCause
from temporalio.api.enums.v1 import SignalExternalWorkflowExecutionFailedCause as SignalCause
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionSignaledEventAttributes

from fairlead.api.errors import NotFound
from fairlead.history.events import Transaction, external_cancel_requested, external_signaled
from fairlead.history.handlers.child_workflows import CancelFrom, SignalFrom
from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import NotPending, PendingExternal, RunClosed, RunState, TooManySignals
from fairlead.history.state.tasks import CancelExternal, QueueRow, SignalExternal
from fairlead.history.task_executors.verification import is_meant


async def _pending(
    context: OperationContext, row: QueueRow, event_id: int, table: Callable[[RunState], dict[int, PendingExternal]]
) -> tuple[PendingExternal, HistoryEvent]:
    shard = context.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        external = table(run.state).get(event_id)
        if external is None or event_id in run.state.live.ending or not is_meant(run.state, row.task):
            raise NotPending("the request to the other workflow is not pending")
        return external, await shard.events.read_event(run.state, event_id)


async def send_signal(context: OperationContext, row: QueueRow, task: SignalExternal) -> None:
    """Deliver a signal, and record the result in the sender."""
    event_id = task.initiated_event_id
    external, event = await _pending(context, row, event_id, lambda state: state.external_signals)
    wanted = event.signal_external_workflow_execution_initiated_event_attributes
    attributes = WorkflowExecutionSignaledEventAttributes(
        signal_name=wanted.signal_name,
        input=wanted.input if wanted.HasField("input") else None,
        header=wanted.header if wanted.HasField("header") else None,
        identity="history-service",
        external_workflow_execution=WorkflowExecution(workflow_id=row.workflow_id, run_id=row.run_id),
        request_id=task.request_id,
    )
    failed: SignalCause.ValueType | None = None
    request = SignalFrom(
        external.workflow_id,
        external.run_id,
        attributes.SerializeToString(),
        (row.workflow_id, row.run_id) if external.child_workflow_only else None,
    )
    try:
        await context.services.history.call("SignalFrom", external.namespace_id, external.workflow_id, request)
    except TooManySignals:
        failed = SignalCause.SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE_SIGNAL_COUNT_LIMIT_EXCEEDED
    except (NotFound, RunClosed):
        failed = SignalCause.SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE_EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        _check_meant(transaction, task)
        external_signaled(transaction, event_id, failed)

    await context.shard.change(context.namespace, row.workflow_id, row.run_id, step)


async def send_cancel(context: OperationContext, row: QueueRow, task: CancelExternal) -> None:
    """Deliver a cancel request, and record the result in the sender."""
    event_id = task.initiated_event_id
    external, event = await _pending(context, row, event_id, lambda state: state.external_cancels)
    wanted = event.request_cancel_external_workflow_execution_initiated_event_attributes
    request = CancelFrom(
        workflow_id=external.workflow_id,
        run_id=external.run_id,
        first_run_id="",
        request_id=task.request_id,
        reason=wanted.reason,
        external_workflow_id=row.workflow_id,
        external_run_id=row.run_id,
        external_initiated_event_id=event_id,
        child_only_of=(row.workflow_id, row.run_id) if external.child_workflow_only else None,
    )
    failed: CancelCause.ValueType | None = None
    try:
        await context.services.history.call("CancelFrom", external.namespace_id, external.workflow_id, request)
    except (NotFound, RunClosed):
        failed = CancelCause.CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE_EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        _check_meant(transaction, task)
        external_cancel_requested(transaction, event_id, failed)

    await context.shard.change(context.namespace, row.workflow_id, row.run_id, step)


def _check_meant(transaction: Transaction, task: SignalExternal | CancelExternal) -> None:
    """Check again: the current branch may have changed during the call to the other workflow."""
    if not is_meant(transaction.state, task):
        raise NotPending("the request to the other workflow is not pending")
