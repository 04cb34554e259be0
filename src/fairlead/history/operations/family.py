"""What runs say to each other: a parent to its child, a child to its parent, and any to any other.

These are asked for by the queues of other shards, any number of times: each looks whether it was done before.
"""

from contextlib import suppress

import msgspec
from google.protobuf.message import Message
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionSignaledEventAttributes
from temporalio.api.workflowservice.v1 import (
    RequestCancelWorkflowExecutionResponse,
    SignalWorkflowExecutionResponse,
    StartWorkflowExecutionRequest,
    StartWorkflowExecutionResponse,
)

from fairlead.history.events import (
    Transaction,
    child_closed,
    child_started,
    request_cancel,
    schedule_first_workflow_task,
    signal,
    terminate,
)
from fairlead.history.events.write_start import Inherited
from fairlead.history.operations.start import Begin, begin
from fairlead.history.refusals import not_found
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Operation, Scope
from fairlead.history.state import NotPending, RunClosed
from fairlead.history.state.run import Parent
from fairlead.history.state.tasks import CloseRun
from fairlead.history.state.versioning import Version


class StartChildRun(msgspec.Struct, frozen=True, array_like=True):
    """Start a child; `request` is a StartWorkflowExecutionRequest."""

    request: bytes
    parent: Parent
    root_workflow_id: str
    root_run_id: str
    # The version that the parent is pinned to, or that it has moved to.
    pinned: Version | None = None
    auto_upgraded: Version | None = None
    revision: int = 0


class ScheduleFirstTask(msgspec.Struct, frozen=True, array_like=True):
    """The parent knows of its child: it may begin."""

    workflow_id: str
    run_id: str


class EndUnbegun(msgspec.Struct, frozen=True, array_like=True):
    """The parent has ended before it knew of its child: one that has not begun is not to begin."""

    workflow_id: str
    parent_workflow_id: str
    parent_run_id: str
    initiated_event_id: int


class TellParentAgain(msgspec.Struct, frozen=True, array_like=True):
    """The parent may not have heard of the end of its child, the chain of runs that began with this one."""

    workflow_id: str
    first_run_id: str


class ChildClosed(msgspec.Struct, frozen=True, array_like=True):
    """A child has ended as its last event says."""

    workflow_id: str
    run_id: str
    initiated_event_id: int
    child_workflow_id: str
    child_run_id: str
    child_first_run_id: str
    close_event: bytes


class SignalFrom(msgspec.Struct, frozen=True, array_like=True):
    """A signal of another workflow; `attributes` are those of the event that it becomes."""

    workflow_id: str
    run_id: str
    attributes: bytes
    child_only_of: tuple[str, str] | None
    links: tuple[bytes, ...] = ()


class CancelFrom(msgspec.Struct, frozen=True, array_like=True):
    """A request of another workflow, or of a parent that closed, to end."""

    workflow_id: str
    run_id: str
    first_run_id: str
    request_id: str
    reason: str
    external_workflow_id: str
    external_run_id: str
    external_initiated_event_id: int
    child_only_of: tuple[str, str] | None = None


async def start_child(scope: Scope, wanted: StartChildRun) -> Message:
    """Start a run whose first workflow task waits for its parent."""
    request = StartWorkflowExecutionRequest.FromString(wanted.request)
    root = WorkflowExecution(workflow_id=wanted.root_workflow_id, run_id=wanted.root_run_id)
    inherited = None
    if wanted.pinned is not None or wanted.auto_upgraded is not None:
        inherited = Inherited(wanted.pinned, wanted.auto_upgraded, revision=wanted.revision)
    async with scope.shard.lock(scope.namespace.id, request.workflow_id):
        started = await begin(
            scope, Begin(request, parent=wanted.parent, root=root, schedules_task=False, inherited=inherited)
        )
    return StartWorkflowExecutionResponse(run_id=started.run_id)


async def schedule_first_task(scope: Scope, wanted: ScheduleFirstTask) -> Message:
    """Let a child begin; nothing if it has, or has ended."""

    def step(transaction: Transaction, run: LoadedRun) -> None:
        if run.state.had_task:
            raise NotPending("the child has begun")
        schedule_first_workflow_task(transaction)

    with suppress(NotPending, RunClosed):
        await scope.shard.change(scope.namespace, wanted.workflow_id, wanted.run_id, step)
    return StartWorkflowExecutionResponse(run_id=wanted.run_id)


async def end_unbegun(scope: Scope, wanted: EndUnbegun) -> Message:
    """End a child that its parent has not let begin, and never will; nothing if it is another's, or has begun."""

    def step(transaction: Transaction, run: LoadedRun) -> None:
        parent = run.state.started.parent
        if run.state.had_task or parent is None:
            raise NotPending("the child has begun")
        if (parent.workflow_id, parent.run_id, parent.initiated_event_id) != (
            wanted.parent_workflow_id,
            wanted.parent_run_id,
            wanted.initiated_event_id,
        ):
            raise NotPending("it is not that child")
        terminate(transaction, reason="by parent close policy", identity="history-service")

    with suppress(NotPending, RunClosed):
        await scope.shard.change(scope.namespace, wanted.workflow_id, "", step)
    return StartWorkflowExecutionResponse()


async def tell_parent_again(scope: Scope, wanted: TellParentAgain) -> Message:
    """Have a child's parent told of its end once more; nothing if it has not ended."""

    def step(transaction: Transaction, run: LoadedRun) -> None:
        state = run.state
        if state.is_open or state.new_run_id or state.started.first_run_id != wanted.first_run_id:
            raise NotPending("the child has not ended")
        transaction.add_task(CloseRun(state.last_version, state.close_event_id, tells_parent=True, children=()))

    with suppress(NotPending):
        await scope.shard.change(scope.namespace, wanted.workflow_id, "", step, only_open=False)
    return StartWorkflowExecutionResponse()


async def close_child(scope: Scope, closed: ChildClosed) -> Message:
    """Tell a parent that its child has ended; nothing if it has heard so, or has ended itself."""

    def step(transaction: Transaction, run: LoadedRun) -> None:
        execution = WorkflowExecution(workflow_id=closed.child_workflow_id, run_id=closed.child_run_id)
        event = HistoryEvent.FromString(closed.close_event)
        child = transaction.state.children.get(closed.initiated_event_id)
        if child is None or child.workflow_id != closed.child_workflow_id:
            raise NotPending("Pending child execution not found.")
        if closed.initiated_event_id in transaction.state.live.ending:
            raise NotPending("Pending child execution not found.")
        # Another run may have begun another child of the same name with an event of the same number.
        if child.run_id != closed.child_first_run_id and (child.run_id or run.key.run_id != closed.run_id):
            raise NotPending("Pending child execution not found.")
        # The child may be quicker than what tells of its start.
        child_started(transaction, closed.initiated_event_id, run_id=closed.child_first_run_id)
        child_closed(transaction, closed.initiated_event_id, execution=execution, close_event=event)

    # A parent that was reset goes on in another run, which waits for the same child.
    for run_id in (closed.run_id, ""):
        with suppress(NotPending, RunClosed):
            await scope.shard.change(scope.namespace, closed.workflow_id, run_id, step)
            break
    return StartWorkflowExecutionResponse()


def _check_child(run: LoadedRun, parent: tuple[str, str] | None) -> None:
    if parent is None:
        return
    origin = run.state.started
    if origin.parent is None or (origin.parent.workflow_id, origin.parent.run_id) != parent:
        raise not_found("workflow execution is not a child of the sender")


async def signal_from(scope: Scope, wanted: SignalFrom) -> Message:
    """Hand another workflow's signal over."""
    attributes = WorkflowExecutionSignaledEventAttributes.FromString(wanted.attributes)

    def step(transaction: Transaction, run: LoadedRun) -> bool:
        _check_child(run, wanted.child_only_of)
        if attributes.request_id and attributes.request_id in run.state.live.request_ids:
            raise NotPending("it has heard that")
        return signal(transaction, attributes)

    # One that has ended since may have heard it before: then the sender is not to be told that it did not.
    with suppress(NotPending):
        await scope.shard.change(scope.namespace, wanted.workflow_id, wanted.run_id, step, only_open=False)
    return SignalWorkflowExecutionResponse()


async def cancel_from(scope: Scope, wanted: CancelFrom) -> Message:
    """Ask a workflow to end, for another one."""

    def step(transaction: Transaction, run: LoadedRun) -> bool:
        _check_child(run, wanted.child_only_of)
        if wanted.first_run_id and run.state.started.first_run_id != wanted.first_run_id:
            raise not_found("workflow execution is not the one that was meant")
        external = None
        if wanted.external_workflow_id:
            external = WorkflowExecution(workflow_id=wanted.external_workflow_id, run_id=wanted.external_run_id)
        return request_cancel(
            transaction,
            request_id=wanted.request_id,
            cause=wanted.reason,
            external=external,
            external_initiated_event_id=wanted.external_initiated_event_id,
            identity="history-service",
        )

    # What has ended need not be asked to end.
    with suppress(RunClosed):
        await scope.shard.change(scope.namespace, wanted.workflow_id, wanted.run_id, step)
    return RequestCancelWorkflowExecutionResponse()


OPERATIONS = {
    "StartChild": Operation(StartChildRun, start_child),
    "ScheduleFirstTask": Operation(ScheduleFirstTask, schedule_first_task),
    "EndUnbegun": Operation(EndUnbegun, end_unbegun),
    "TellParentAgain": Operation(TellParentAgain, tell_parent_again),
    "ChildClosed": Operation(ChildClosed, close_child),
    "SignalFrom": Operation(SignalFrom, signal_from),
    "CancelFrom": Operation(CancelFrom, cancel_from),
}
