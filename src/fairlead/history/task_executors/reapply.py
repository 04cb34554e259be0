"""Reapplies signals and updates of branches that are not current to the current branch, each of them once."""

from temporalio.api.enums.v1 import EventType, UpdateAdmittedEventOrigin
from temporalio.api.history.v1 import (
    WorkflowExecutionSignaledEventAttributes,
    WorkflowExecutionUpdateAdmittedEventAttributes,
)
from temporalio.api.update.v1 import Request
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from fairlead.core.errors import RetryLater
from fairlead.history.events import Transaction, wake
from fairlead.history.handlers.reset import reset
from fairlead.history.ndc.reapply import EventToReapply, events_to_reapply, missing
from fairlead.history.shard.commit import Step
from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import RunState, decode, encode
from fairlead.history.state.run import ClosedBy
from fairlead.history.state.tasks import QueueRow, Reapply
from fairlead.telemetry import REAPPLIED_LOST, get_log

_REASON = "signals or updates of another cluster came after the end"
_REAPPLIED = UpdateAdmittedEventOrigin.UPDATE_ADMITTED_EVENT_ORIGIN_REAPPLY
_SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
_ADMITTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED

_log = get_log("history.reapply")


class NextRunMissing(RetryLater):
    """The next run of the current run's chain is not replicated yet."""


async def reapply(context: OperationContext, row: QueueRow, _task: Reapply) -> None:
    """Reapply the signals and updates of a replaced run, or of branches that are not current, to the current branch.

    Events whose keys the current branch has are left out. A closed workflow is reset to its last workflow task.
    """
    while True:
        target = await _reapply_to_open(context, row)
        if target is None:
            return
        # Try again: after the reset, or if another request has started a run, there is an open run.
        await _reopen(context, target, row)


async def _reapply_to_open(context: OperationContext, row: QueueRow) -> LoadedRun | None:
    """Reapply if the run or the current run is open; otherwise return the run to reset."""
    shard = context.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        if not run.state.has_events_to_reapply:
            return None
        target = run if _takes_some(run.state) else await _current(context, row)
        wanted = await missing(shard, run, await events_to_reapply(shard, run))
        if wanted and not _takes_some(target.state):
            for base in (target, run):
                if base.state.completed_task_event_id:
                    return base
            _log.warning(
                "signals or updates lost: the workflow ended before its first workflow task",
                workflow_id=row.workflow_id,
                run_id=row.run_id,
                count=len(wanted),
            )
            shard.services.metrics.count(REAPPLIED_LOST, amount=len(wanted))
            wanted = []
        await _take_over(context, run, target, wanted)
        return None


def _takes_some(state: RunState) -> bool:
    return state.is_open and not state.is_zombie


async def _current(context: OperationContext, row: QueueRow) -> LoadedRun:
    current = await context.shard.load(row.namespace_id, row.workflow_id)
    state = current.state
    if not state.is_open and (state.new_run_id or state.closed_by == ClosedBy.NEWER_RUN):
        raise NextRunMissing(
            f"run {state.new_run_id}, the successor of run {current.key.run_id}, is not replicated yet"
        )
    return current


async def _take_over(
    context: OperationContext, run: LoadedRun, target: LoadedRun, wanted: list[EventToReapply]
) -> None:
    """Write the events to the target, and mark them as reapplied in the source, in one commit."""
    shard, namespace = context.shard, context.namespace
    steps = []
    if wanted:
        # Work on a copy: if the write fails, the run is unchanged.
        transaction = shard.transaction(namespace, decode(encode(target.state)))
        for one in wanted:
            _add(transaction, one)
        wake(transaction)
        steps.append(Step(target, transaction))
    if run is target and steps:
        _mark(steps[0].transaction.state)
    elif not run.state.is_zombie:
        marked = shard.transaction(namespace, decode(encode(run.state)))
        _mark(marked.state)
        steps.append(Step(run, marked))
    if steps:
        await shard.writer.write(namespace, steps)


def _add(transaction: Transaction, one: EventToReapply) -> None:
    event = one.event
    if event.event_type == _SIGNALED:
        signaled = WorkflowExecutionSignaledEventAttributes()
        signaled.CopyFrom(event.workflow_execution_signaled_event_attributes)
        signaled.request_id = one.key.partition("/")[2]
        transaction.add(signaled, links=event.links)
        transaction.state.remember_request(signaled.request_id)
        return
    if event.event_type == _ADMITTED:
        request: Request = event.workflow_execution_update_admitted_event_attributes.request
    else:
        request = event.workflow_execution_update_accepted_event_attributes.accepted_request
    transaction.add(WorkflowExecutionUpdateAdmittedEventAttributes(request=request, origin=_REAPPLIED))


def _mark(state: RunState) -> None:
    for branch in state.live.branches:
        branch.settled_event_id = branch.items[-1][0]
    state.live.is_settled = state.closed_by == ClosedBy.NEWER_RUN


async def _reopen(context: OperationContext, target: LoadedRun, row: QueueRow) -> None:
    """Reset the workflow to its last workflow task, in a new run."""
    request = ResetWorkflowExecutionRequest(
        namespace=context.namespace.name,
        reason=_REASON,
        workflow_task_finish_event_id=target.state.completed_task_event_id,
        request_id=f"{row.run_id}:{target.key.run_id}:{target.state.last_version}",
    )
    request.workflow_execution.workflow_id = row.workflow_id
    request.workflow_execution.run_id = target.key.run_id
    await reset(context, request)
