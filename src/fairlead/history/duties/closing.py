"""What follows from the end of a run, for its parent, its children, and whoever wanted to hear of it."""

from temporalio.api.enums.v1 import ParentClosePolicy
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import TerminateWorkflowExecutionRequest

from fairlead.history.duties.verifying import is_meant
from fairlead.history.operations.family import CancelFrom, ChildClosed
from fairlead.history.refusals import Refused
from fairlead.history.schedules.telling import tell_schedule
from fairlead.history.scope import Scope
from fairlead.history.state import RunClosed, RunState
from fairlead.history.state.run import ParentClose
from fairlead.history.state.tasks import CloseRun, QueueRow
from fairlead.rpc import Code

_REASON = "by parent close policy"


async def close_run(scope: Scope, row: QueueRow, task: CloseRun) -> None:
    """Tell those who are to hear that the run has closed."""
    shard = scope.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        state = run.state
        if not is_meant(state, task):
            return
        event = await shard.read_event(state, task.close_event_id)
    if task.tells_parent:
        await _tell_parent(scope, row, state, event)
    for child in task.children:
        await _close_child(scope, row, child)
    await tell_schedule(scope, state.live.watchers, event)


async def _tell_parent(scope: Scope, row: QueueRow, state: RunState, event: HistoryEvent) -> None:
    parent = state.started.parent
    if parent is None:
        return
    closed = ChildClosed(
        workflow_id=parent.workflow_id,
        run_id=parent.run_id,
        initiated_event_id=parent.initiated_event_id,
        child_workflow_id=row.workflow_id,
        child_run_id=row.run_id,
        child_first_run_id=state.started.first_run_id,
        close_event=event.SerializeToString(),
    )
    try:
        await scope.services.history.call("ChildClosed", parent.namespace_id, parent.workflow_id, closed)
    except Refused as refused:
        _check_gone(refused)


async def _close_child(scope: Scope, row: QueueRow, child: ParentClose) -> None:
    """By its policy. A child that has not started is not started any more, see `duties.children`."""
    if not child.run_id:
        return
    history = scope.services.history
    try:
        if child.policy == ParentClosePolicy.PARENT_CLOSE_POLICY_TERMINATE:
            request = TerminateWorkflowExecutionRequest(
                reason=_REASON, identity="history-service", first_execution_run_id=child.run_id
            )
            request.workflow_execution.workflow_id = child.workflow_id
            await history.call("TerminateWorkflowExecution", child.namespace_id, child.workflow_id, request)
        elif child.policy == ParentClosePolicy.PARENT_CLOSE_POLICY_REQUEST_CANCEL:
            cancel = CancelFrom(
                workflow_id=child.workflow_id,
                run_id="",
                first_run_id=child.run_id,
                request_id=f"{row.run_id}:{child.run_id}",
                reason="",
                external_workflow_id=row.workflow_id,
                external_run_id=row.run_id,
                external_initiated_event_id=0,
            )
            await history.call("CancelFrom", child.namespace_id, child.workflow_id, cancel)
    except RunClosed:
        return
    except Refused as refused:
        _check_gone(refused)


def _check_gone(refused: Refused) -> None:
    if refused.code != Code.NOT_FOUND:
        raise refused
