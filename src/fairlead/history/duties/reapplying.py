"""Signals and updates of a line that has lost come to the one that has won: each once."""

from temporalio.api.enums.v1 import EventType, UpdateAdmittedEventOrigin
from temporalio.api.history.v1 import (
    WorkflowExecutionSignaledEventAttributes,
    WorkflowExecutionUpdateAdmittedEventAttributes,
)
from temporalio.api.update.v1 import Request
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from fairlead.core.errors import RetryLater
from fairlead.history.applying.debts import Debt, debts_of, missing
from fairlead.history.events import Transaction, wake
from fairlead.history.operations.reset import reset
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Scope
from fairlead.history.state import RunState, decode, encode
from fairlead.history.state.run import ClosedBy
from fairlead.history.state.tasks import QueueRow, Reapply
from fairlead.history.writing import Step
from fairlead.telemetry import REAPPLIED_LOST, get_log

_REASON = "signals or updates of another cluster came after the end"
_REAPPLIED = UpdateAdmittedEventOrigin.UPDATE_ADMITTED_EVENT_ORIGIN_REAPPLY
_SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
_ADMITTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED

_log = get_log("history.reapplying")


class NextRunMissing(RetryLater):
    """A run gave way to another one, which has not come from its cluster yet."""


async def reapply(scope: Scope, row: QueueRow, _task: Reapply) -> None:
    """Bring what a run, or branches of it, were told to the line that has won.

    Whatever is there already, by its key, is left out. A workflow that has ended goes on from its last workflow task.
    """
    while True:
        target = await _reapply_to_open(scope, row)
        if target is None:
            return
        # Then there is an open run, or somebody else has begun one.
        await _reopen(scope, target, row)


async def _reapply_to_open(scope: Scope, row: QueueRow) -> LoadedRun | None:
    """Do it, if the run or the current one is open; else, the run that is to be reset."""
    shard = scope.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        if not run.state.owes:
            return None
        target = run if _takes_some(run.state) else await _current(scope, row)
        wanted = await missing(shard, run, await debts_of(shard, run))
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
        await _take_over(scope, run, target, wanted)
        return None


def _takes_some(state: RunState) -> bool:
    return state.is_open and not state.is_zombie


async def _current(scope: Scope, row: QueueRow) -> LoadedRun:
    current = await scope.shard.load(row.namespace_id, row.workflow_id)
    state = current.state
    if not state.is_open and (state.new_run_id or state.closed_by == ClosedBy.NEWER_RUN):
        raise NextRunMissing(f"run {current.key.run_id} gave way to run {state.new_run_id}, which is not here yet")
    return current


async def _take_over(scope: Scope, run: LoadedRun, target: LoadedRun, wanted: list[Debt]) -> None:
    """Write them to the target, and in the same commit that the run owes nothing any more."""
    shard, namespace = scope.shard, scope.namespace
    steps = []
    if wanted:
        # On a copy: if this comes to nothing, the run is as it was.
        transaction = shard.transaction(namespace, decode(encode(target.state)))
        for debt in wanted:
            _add(transaction, debt)
        wake(transaction)
        steps.append(Step(target, transaction))
    if run is target and steps:
        _mark(steps[0].transaction.state)
    elif not run.state.is_zombie:
        marked = shard.transaction(namespace, decode(encode(run.state)))
        _mark(marked.state)
        steps.append(Step(run, marked))
    if steps:
        await shard.write(namespace, steps)


def _add(transaction: Transaction, debt: Debt) -> None:
    event = debt.event
    if event.event_type == _SIGNALED:
        signaled = WorkflowExecutionSignaledEventAttributes()
        signaled.CopyFrom(event.workflow_execution_signaled_event_attributes)
        signaled.request_id = debt.key.partition("/")[2]
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


async def _reopen(scope: Scope, target: LoadedRun, row: QueueRow) -> None:
    """Let the workflow go on from its last workflow task, in a new run."""
    request = ResetWorkflowExecutionRequest(
        namespace=scope.namespace.name,
        reason=_REASON,
        workflow_task_finish_event_id=target.state.completed_task_event_id,
        request_id=f"{row.run_id}:{target.key.run_id}:{target.state.last_version}",
    )
    request.workflow_execution.workflow_id = row.workflow_id
    request.workflow_execution.run_id = target.key.run_id
    await reset(scope, request)
