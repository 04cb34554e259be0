"""Reports a run's close to its parent, its children and its schedule."""

from contextlib import suppress

from temporalio.api.enums.v1 import ParentClosePolicy
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import TerminateWorkflowExecutionRequest

from fairlead.api.errors import NotFound
from fairlead.history.entities.schedules.close_notification import notify_schedule
from fairlead.history.handlers.child_workflows import CancelFrom, ChildClosed
from fairlead.history.shard.context import OperationContext
from fairlead.history.state import RunClosed, RunState
from fairlead.history.state.run import ParentClose
from fairlead.history.state.tasks import CloseRun, QueueRow
from fairlead.history.task_executors.verification import is_meant

_REASON = "by parent close policy"


async def close_run(context: OperationContext, row: QueueRow, task: CloseRun) -> None:
    """Report the close to the parent, to children, and to schedules."""
    shard = context.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        state = run.state
        if not is_meant(state, task):
            return
        event = await shard.events.read_event(state, task.close_event_id)
    if task.notifies_parent:
        await _notify_parent(context, row, state, event)
    for child in task.children:
        await _close_child(context, row, child)
    await notify_schedule(context, state.live.watchers, event)


async def _notify_parent(context: OperationContext, row: QueueRow, state: RunState, event: HistoryEvent) -> None:
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
    with suppress(NotFound):
        await context.services.history.call("ChildClosed", parent.namespace_id, parent.workflow_id, closed)


async def _close_child(context: OperationContext, row: QueueRow, child: ParentClose) -> None:
    """Apply the parent close policy. A child without a run id is left to `task_executors.child_workflows`."""
    if not child.run_id:
        return
    history = context.services.history
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
    except (NotFound, RunClosed):
        return
