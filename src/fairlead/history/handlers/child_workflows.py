"""Requests from a run to another run, for example from a parent to its child: start, signal, cancel and close.

Task executors of other shards may send a request more than once: each handler first checks whether it was carried out
before.
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

from fairlead.api.errors import NotFound
from fairlead.api.worker_versions import Version
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
from fairlead.history.handlers.start import Begin, begin
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import NotPending, RunClosed
from fairlead.history.state.run import Parent
from fairlead.history.state.tasks import CloseRun


class StartChildRun(msgspec.Struct, frozen=True, array_like=True):
    """Start a child; `request` is a StartWorkflowExecutionRequest."""

    request: bytes
    parent: Parent
    root_workflow_id: str
    root_run_id: str
    # The version to which the parent is pinned, or, for a parent with auto-upgrade, the version that it uses.
    pinned: Version | None = None
    auto_upgraded: Version | None = None
    revision: int = 0
    # Nanoseconds by which the parent's clock is ahead of the wall clock.
    skipped_ns: int = 0


class ScheduleFirstTask(msgspec.Struct, frozen=True, array_like=True):
    """Schedule the first workflow task of a child, because the parent has recorded the child's start."""

    workflow_id: str
    run_id: str


class EndUnbegun(msgspec.Struct, frozen=True, array_like=True):
    """Terminate a child without workflow task, because the parent closed before it recorded the child's start."""

    workflow_id: str
    parent_workflow_id: str
    parent_run_id: str
    initiated_event_id: int


class NotifyParentAgain(msgspec.Struct, frozen=True, array_like=True):
    """Report the close of a child to its parent again; `first_run_id` is the first run of the child's chain."""

    workflow_id: str
    first_run_id: str


class ChildClosed(msgspec.Struct, frozen=True, array_like=True):
    """Report to the parent that a child has closed, with the child's last event."""

    workflow_id: str
    run_id: str
    initiated_event_id: int
    child_workflow_id: str
    child_run_id: str
    child_first_run_id: str
    close_event: bytes


class SignalFrom(msgspec.Struct, frozen=True, array_like=True):
    """A signal from another workflow; `attributes` is a serialized WorkflowExecutionSignaledEventAttributes."""

    workflow_id: str
    run_id: str
    attributes: bytes
    child_only_of: tuple[str, str] | None
    links: tuple[bytes, ...] = ()


class CancelFrom(msgspec.Struct, frozen=True, array_like=True):
    """A cancel request from another workflow, or because of a parent's close."""

    workflow_id: str
    run_id: str
    first_run_id: str
    request_id: str
    reason: str
    external_workflow_id: str
    external_run_id: str
    external_initiated_event_id: int
    child_only_of: tuple[str, str] | None = None


async def start_child(context: OperationContext, wanted: StartChildRun) -> Message:
    """Start a child whose first workflow task waits until the parent has recorded the start."""
    request = StartWorkflowExecutionRequest.FromString(wanted.request)
    root = WorkflowExecution(workflow_id=wanted.root_workflow_id, run_id=wanted.root_run_id)
    inherited = None
    if wanted.pinned is not None or wanted.auto_upgraded is not None:
        inherited = Inherited(wanted.pinned, wanted.auto_upgraded, revision=wanted.revision)
    async with context.shard.lock(context.namespace.id, request.workflow_id):
        started = await begin(
            context,
            Begin(
                request,
                parent=wanted.parent,
                root=root,
                schedules_task=False,
                inherited=inherited,
                skipped_ns=wanted.skipped_ns,
            ),
        )
    return StartWorkflowExecutionResponse(run_id=started.run_id)


async def schedule_first_task(context: OperationContext, wanted: ScheduleFirstTask) -> Message:
    """Schedule a child's first workflow task; do nothing if the child has had one, or has closed."""

    def step(transaction: Transaction, run: LoadedRun) -> None:
        if run.state.had_task:
            raise NotPending("the child has had a workflow task")
        schedule_first_workflow_task(transaction)

    with suppress(NotPending, RunClosed):
        await context.shard.change(context.namespace, wanted.workflow_id, wanted.run_id, step)
    return StartWorkflowExecutionResponse(run_id=wanted.run_id)


async def end_unbegun(context: OperationContext, wanted: EndUnbegun) -> Message:
    """Terminate a child that has had no workflow task; do nothing if it has had one, or has another parent."""

    def step(transaction: Transaction, run: LoadedRun) -> None:
        parent = run.state.started.parent
        if run.state.had_task or parent is None:
            raise NotPending("the child has had a workflow task")
        if (parent.workflow_id, parent.run_id, parent.initiated_event_id) != (
            wanted.parent_workflow_id,
            wanted.parent_run_id,
            wanted.initiated_event_id,
        ):
            raise NotPending("the child has another parent")
        terminate(transaction, reason="by parent close policy", identity="history-service")

    with suppress(NotPending, RunClosed):
        await context.shard.change(context.namespace, wanted.workflow_id, "", step)
    return StartWorkflowExecutionResponse()


async def notify_parent_again(context: OperationContext, wanted: NotifyParentAgain) -> Message:
    """Report a child's close to its parent again; do nothing if the child is open."""

    def step(transaction: Transaction, run: LoadedRun) -> None:
        state = run.state
        if state.is_open or state.new_run_id or state.started.first_run_id != wanted.first_run_id:
            raise NotPending("the child is open")
        transaction.add_task(CloseRun(state.last_version, state.close_event_id, notifies_parent=True, children=()))

    with suppress(NotPending):
        await context.shard.change(context.namespace, wanted.workflow_id, "", step, only_open=False)
    return StartWorkflowExecutionResponse()


async def close_child(context: OperationContext, closed: ChildClosed) -> Message:
    """Record a child's close in its parent; do nothing if the parent has recorded it, or has closed."""

    def step(transaction: Transaction, run: LoadedRun) -> None:
        execution = WorkflowExecution(workflow_id=closed.child_workflow_id, run_id=closed.child_run_id)
        event = HistoryEvent.FromString(closed.close_event)
        child = transaction.state.children.get(closed.initiated_event_id)
        if child is None or child.workflow_id != closed.child_workflow_id:
            raise NotPending("Pending child execution not found.")
        if closed.initiated_event_id in transaction.state.live.ending:
            raise NotPending("Pending child execution not found.")
        # In another run, the same event id may have started another child with the same workflow id.
        if child.run_id != closed.child_first_run_id and (child.run_id or run.key.run_id != closed.run_id):
            raise NotPending("Pending child execution not found.")
        # The report of the child's close may arrive before the report of its start.
        child_started(transaction, closed.initiated_event_id, run_id=closed.child_first_run_id)
        child_closed(transaction, closed.initiated_event_id, execution=execution, close_event=event)

    # If the parent was reset, its new run waits for the same child.
    for run_id in (closed.run_id, ""):
        with suppress(NotPending, RunClosed):
            await context.shard.change(context.namespace, closed.workflow_id, run_id, step)
            break
    return StartWorkflowExecutionResponse()


def _check_child(run: LoadedRun, parent: tuple[str, str] | None) -> None:
    if parent is None:
        return
    origin = run.state.started
    if origin.parent is None or (origin.parent.workflow_id, origin.parent.run_id) != parent:
        raise NotFound("workflow execution is not a child of the sender")


async def signal_from(context: OperationContext, wanted: SignalFrom) -> Message:
    """Signal a workflow for another workflow."""
    attributes = WorkflowExecutionSignaledEventAttributes.FromString(wanted.attributes)

    def step(transaction: Transaction, run: LoadedRun) -> bool:
        _check_child(run, wanted.child_only_of)
        if attributes.request_id and attributes.request_id in run.state.live.request_ids:
            raise NotPending("the signal was delivered before")
        return signal(transaction, attributes)

    # A closed run may have received the signal before it closed: a retry of the request must not report a failure.
    with suppress(NotPending):
        await context.shard.change(context.namespace, wanted.workflow_id, wanted.run_id, step, only_open=False)
    return SignalWorkflowExecutionResponse()


async def cancel_from(context: OperationContext, wanted: CancelFrom) -> Message:
    """Request the cancellation of a workflow for another workflow."""

    def step(transaction: Transaction, run: LoadedRun) -> bool:
        _check_child(run, wanted.child_only_of)
        if wanted.first_run_id and run.state.started.first_run_id != wanted.first_run_id:
            raise NotFound("workflow execution belongs to another chain of runs")
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

    # A closed run needs no cancel request.
    with suppress(RunClosed):
        await context.shard.change(context.namespace, wanted.workflow_id, wanted.run_id, step)
    return RequestCancelWorkflowExecutionResponse()


OPERATIONS = {
    "StartChild": Operation(StartChildRun, start_child),
    "ScheduleFirstTask": Operation(ScheduleFirstTask, schedule_first_task),
    "EndUnbegun": Operation(EndUnbegun, end_unbegun),
    "NotifyParentAgain": Operation(NotifyParentAgain, notify_parent_again),
    "ChildClosed": Operation(ChildClosed, close_child),
    "SignalFrom": Operation(SignalFrom, signal_from),
    "CancelFrom": Operation(CancelFrom, cancel_from),
}
