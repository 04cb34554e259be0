"""Signals and cancellations that a workflow sends to another."""

from collections.abc import Callable

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import CancelExternalWorkflowExecutionFailedCause as CancelCause
from temporalio.api.enums.v1 import SignalExternalWorkflowExecutionFailedCause as SignalCause
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionSignaledEventAttributes

from fairlead.history.duties.verifying import is_meant
from fairlead.history.events import Transaction, external_cancel_requested, external_signaled
from fairlead.history.operations.family import CancelFrom, SignalFrom
from fairlead.history.refusals import Refused
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Scope
from fairlead.history.state import Busy, NotPending, PendingExternal, RunClosed, RunState
from fairlead.history.state.tasks import CancelExternal, QueueRow, SignalExternal
from fairlead.rpc import Code


async def _pending(
    scope: Scope, row: QueueRow, event_id: int, table: Callable[[RunState], dict[int, PendingExternal]]
) -> tuple[PendingExternal, HistoryEvent]:
    shard = scope.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        external = table(run.state).get(event_id)
        if external is None or event_id in run.state.live.ending or not is_meant(run.state, row.task):
            raise NotPending("nothing is on its way")
        return external, await shard.read_event(run.state, event_id)


async def send_signal(scope: Scope, row: QueueRow, task: SignalExternal) -> None:
    """Deliver a signal, and write down what became of it."""
    event_id = task.initiated_event_id
    external, event = await _pending(scope, row, event_id, lambda state: state.external_signals)
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
        await scope.services.history.call("SignalFrom", external.namespace_id, external.workflow_id, request)
    except Busy:
        failed = SignalCause.SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE_SIGNAL_COUNT_LIMIT_EXCEEDED
    except (Refused, RunClosed) as refused:
        _check_gone(refused)
        failed = SignalCause.SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE_EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        _check_meant(transaction, task)
        external_signaled(transaction, event_id, failed)

    await scope.shard.change(scope.namespace, row.workflow_id, row.run_id, step)


async def send_cancel(scope: Scope, row: QueueRow, task: CancelExternal) -> None:
    """Deliver a request to end, and write down what became of it."""
    event_id = task.initiated_event_id
    external, event = await _pending(scope, row, event_id, lambda state: state.external_cancels)
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
        await scope.services.history.call("CancelFrom", external.namespace_id, external.workflow_id, request)
    except (Refused, RunClosed) as refused:
        _check_gone(refused)
        failed = CancelCause.CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE_EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        _check_meant(transaction, task)
        external_cancel_requested(transaction, event_id, failed)

    await scope.shard.change(scope.namespace, row.workflow_id, row.run_id, step)


def _check_meant(transaction: Transaction, task: SignalExternal | CancelExternal) -> None:
    """While the other workflow was asked, the current branch may have switched."""
    if not is_meant(transaction.state, task):
        raise NotPending("nothing is on its way")


def _check_gone(refused: Refused | RunClosed) -> None:
    if isinstance(refused, Refused) and refused.code != Code.NOT_FOUND:
        raise refused
