"""Starts a run: for a client, with a signal, or as a child. If the workflow id is in use, policies decide."""

import json
from typing import NamedTuple

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload, Payloads, TimeSkippingStatePropagation, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.api.enums.v1 import WorkflowIdConflictPolicy as Conflict
from temporalio.api.enums.v1 import WorkflowIdReusePolicy as Reuse
from temporalio.api.history.v1 import (
    HistoryEvent,
    WorkflowExecutionOptionsUpdatedEventAttributes,
    WorkflowExecutionSignaledEventAttributes,
)
from temporalio.api.workflowservice.v1 import (
    SignalWithStartWorkflowExecutionRequest,
    SignalWithStartWorkflowExecutionResponse,
    StartWorkflowExecutionRequest,
    StartWorkflowExecutionResponse,
)

from fairlead.api.error_details import already_started
from fairlead.api.links import signal_link
from fairlead.api.search.attributes import add_types
from fairlead.api.times import to_duration
from fairlead.api.worker_deployments.routing import version_in
from fairlead.api.worker_versions import pinned_by
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.history.events import StartRun, Transaction, signal, start_workflow, start_workflow_task, terminate
from fairlead.history.events.field_copies import drop_empty_memo, without_internal_callbacks
from fairlead.history.events.write_start import Inherited, schedule_first_workflow_task
from fairlead.history.handlers.history_pages import spliced
from fairlead.history.handlers.workflow_tasks import task_answer
from fairlead.history.shard.commit import Step
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.shard.version_targets import check_override
from fairlead.history.shard.writer import Condition
from fairlead.history.state.run import Parent
from fairlead.storage.commit import Absent, IsRun
from fairlead.storage.history import CurrentRun, RunKey
from fairlead.storage.history_conflicts import CurrentConflict

_STARTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
_OPTIONS_UPDATED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED
_ABSENT = Absent()
_UNSUCCESSFUL = frozenset(
    {
        Status.WORKFLOW_EXECUTION_STATUS_FAILED,
        Status.WORKFLOW_EXECUTION_STATUS_CANCELED,
        Status.WORKFLOW_EXECUTION_STATUS_TERMINATED,
        Status.WORKFLOW_EXECUTION_STATUS_TIMED_OUT,
    }
)


class Started(NamedTuple):
    """The result of a start. `is_new` is true if this request, or an earlier attempt of it, started the run."""

    run_id: str
    is_new: bool
    run: LoadedRun | None = None
    status: Status.ValueType = Status.WORKFLOW_EXECUTION_STATUS_RUNNING
    first_run_id: str = ""
    # The request id that was attached to the existing run.
    attached_request_id: str = ""


class Begin(NamedTuple):
    """A request to start a run."""

    request: StartWorkflowExecutionRequest
    parent: Parent | None = None
    root: WorkflowExecution | None = None
    signal: WorkflowExecutionSignaledEventAttributes | None = None
    # False for a child: its first workflow task waits until the parent has recorded its start.
    schedules_task: bool = True
    inherited: Inherited | None = None
    # False if the first workflow task must not start in the same commit, because it is to deliver an update.
    may_start_task: bool = True
    # Nanoseconds by which the parent's clock is ahead of the wall clock.
    skipped_ns: int = 0


async def start(context: OperationContext, request: StartWorkflowExecutionRequest) -> Message | bytes:
    """Start a workflow for a client."""
    if request.HasField("versioning_override"):
        await check_override(
            context.services.deployments, context.namespace.id, request.task_queue.name, request.versioning_override
        )
    async with context.shard.lock(context.namespace.id, request.workflow_id):
        started = await begin(context, Begin(request))
        return await start_answer(context, request, started)


async def start_answer(context: OperationContext, request: StartWorkflowExecutionRequest, started: Started) -> bytes:
    """The response to the client; with the first workflow task if the client requested it and may have it."""
    run_id = started.run_id
    answer = StartWorkflowExecutionResponse(
        run_id=run_id,
        started=started.is_new,
        status=started.status,
        first_execution_run_id=started.first_run_id or run_id,
    )
    link = answer.link.workflow_event
    link.namespace = context.namespace.name
    link.workflow_id = request.workflow_id
    link.run_id = run_id
    if started.attached_request_id:
        link.request_id_ref.request_id = started.attached_request_id
        link.request_id_ref.event_type = _OPTIONS_UPDATED
        return answer.SerializeToString()
    event = link.event_ref
    event.event_id = 1
    event.event_type = _STARTED
    run = started.run
    if run is None or not request.request_eager_execution or run.state.workflow_task is None:
        return answer.SerializeToString()
    task = run.state.workflow_task
    if not task.is_started:
        return answer.SerializeToString()
    return spliced(answer, "eager_workflow_task", [await task_answer(context, run, task)])


async def begin(context: OperationContext, wanted: Begin) -> Started:
    """Start a run, or apply the policies if the workflow id is in use. The caller must hold the lock."""
    request = wanted.request
    # Most workflow ids are new: don't read first, since the commit detects an existing run.
    has_read = context.shard.current_runs.is_cached(context.namespace.id, request.workflow_id)
    while True:
        condition = await _apply_policies(context, wanted) if has_read else _ABSENT
        if isinstance(condition, Started):
            return condition
        new = _begun(context, wanted, context.services.new_id())
        try:
            await context.shard.write_step(
                context.namespace,
                new.run,
                new.transaction,
                condition=condition,
                request_id=request.request_id,
                may_start=wanted.may_start_task,
            )
        except CurrentConflict:
            if has_read:
                raise
            has_read = True
        else:
            return Started(new.run.key.run_id, is_new=True, run=new.run)


async def _apply_policies(context: OperationContext, wanted: Begin) -> Started | Condition:
    """The condition on the current run under which a new run may start; or the result, if no new run starts."""
    request = wanted.request
    current = await context.shard.current_runs.find(context.namespace.id, request.workflow_id)
    if current is None:
        return Absent()
    if request.request_id and current.request_id == request.request_id:
        return await _repeated(context, current)
    if current.is_closed:
        first_run_id = (await context.shard.load(*RunKey.of(current))).state.started.first_run_id
        _check_reuse(request, current, first_run_id)
        return IsRun(current.run_id)
    return await _conflict(context, wanted, current)


async def _repeated(context: OperationContext, current: CurrentRun) -> Started:
    """The response to a retry of the request: the same as to its first attempt."""
    run = await context.shard.load(*RunKey.of(current))
    task = run.state.workflow_task
    # Leave out the eager task if it has timed out and another worker has the next task.
    has_first_task = (
        task is not None and run.state.completed_task_event_id == 0 and task.request_id == current.request_id
    )
    return Started(
        current.run_id, is_new=True, run=run if has_first_task else None, status=Status.ValueType(current.status)
    )


def _check_reuse(request: StartWorkflowExecutionRequest, current: CurrentRun, first_run_id: str) -> None:
    policy = request.workflow_id_reuse_policy
    whose = f"WorkflowId: {current.workflow_id}, RunId: {current.run_id}."
    if policy == Reuse.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY and current.status not in _UNSUCCESSFUL:
        raise already_started(
            f"Workflow execution already finished successfully. {whose} Workflow Id reuse policy: allow duplicate "
            "workflow Id if last run failed.",
            request_id=current.request_id,
            run_id=current.run_id,
            first_run_id=first_run_id,
        )
    if policy == Reuse.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE:
        raise already_started(
            f"Workflow execution already finished. {whose} Workflow Id reuse policy: reject duplicate workflow Id.",
            request_id=current.request_id,
            run_id=current.run_id,
            first_run_id=first_run_id,
        )


async def _conflict(context: OperationContext, wanted: Begin, current: CurrentRun) -> Started:
    request = wanted.request
    policy = request.workflow_id_conflict_policy
    if request.workflow_id_reuse_policy == Reuse.WORKFLOW_ID_REUSE_POLICY_TERMINATE_IF_RUNNING:
        policy = Conflict.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING
    run = await context.shard.load(*RunKey.of(current))
    if policy == Conflict.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING:
        return await _use(context, request, run)
    if policy == Conflict.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING:
        return await _replace(context, wanted, run)
    raise already_started(
        f"Workflow execution is already running. WorkflowId: {current.workflow_id}, RunId: {current.run_id}.",
        request_id=current.request_id,
        run_id=current.run_id,
        first_run_id=run.state.started.first_run_id,
    )


async def _use(context: OperationContext, request: StartWorkflowExecutionRequest, run: LoadedRun) -> Started:
    """Use the existing run, and attach to it what the request contains."""
    options = request.on_conflict_options
    attach = request.HasField("on_conflict_options") and (
        options.attach_request_id or options.attach_completion_callbacks or options.attach_links
    )
    if attach and not _is_attached(run, request.request_id):

        def step(transaction: Transaction, _run: LoadedRun) -> None:
            attributes = WorkflowExecutionOptionsUpdatedEventAttributes(
                attached_request_id=request.request_id if options.attach_request_id else "",
                attached_completion_callbacks=(
                    request.completion_callbacks if options.attach_completion_callbacks else ()
                ),
            )
            transaction.add(attributes, links=request.links if options.attach_links else ())

        await context.shard.step(context.namespace, run, step)
    first_run_id = run.state.started.first_run_id
    return Started(
        run.key.run_id,
        is_new=False,
        status=Status.ValueType(run.state.status),
        first_run_id=first_run_id,
        attached_request_id=request.request_id if attach and options.attach_request_id else "",
    )


def _is_attached(run: LoadedRun, request_id: str) -> bool:
    """Whether a request is attached to the run, or is in a buffered event."""
    if request_id in run.state.attached_request_ids:
        return True
    waiting = map(HistoryEvent.FromString, run.state.live.buffered)
    return bool(request_id) and any(
        event.workflow_execution_options_updated_event_attributes.attached_request_id == request_id for event in waiting
    )


async def _replace(context: OperationContext, wanted: Begin, run: LoadedRun) -> Started:
    """Terminate the existing run and start a new one, in one transaction."""
    new_run_id = context.services.new_id()
    # Begin the new run first: if this raises an API error, the existing run continues unchanged.
    new = _begun(context, wanted, new_run_id)
    ending = context.shard.transaction(context.namespace, run.state)
    terminate(
        ending,
        reason="TerminateIfRunning WorkflowIdReusePolicy",
        identity="history-service",
        details=_text(f"terminated by new runID: {new_run_id}"),
    )
    await context.shard.writer.write(
        context.namespace,
        [Step(run, ending), new],
        condition=IsRun(run.key.run_id),
        request_id=wanted.request.request_id,
    )
    return Started(new_run_id, is_new=True, run=new.run)


def _begun(context: OperationContext, wanted: Begin, run_id: str) -> Step:
    request, watchers = without_internal_callbacks(wanted.request)
    run = context.shard.new_run(context.namespace.id, request.workflow_id, run_id)
    run.state.live.watchers = watchers
    drop_empty_memo(request)
    if request.HasField("search_attributes"):
        add_types(request.search_attributes, context.namespace)
    transaction = context.shard.transaction(context.namespace, run.state, skipped_ns=wanted.skipped_ns)
    skipped = None
    if wanted.skipped_ns:
        skipped = TimeSkippingStatePropagation(initial_skipped_duration=to_duration(wanted.skipped_ns))
    eager = (
        request.request_eager_execution
        and transaction.limits.eager_start
        and not request.cron_schedule
        and not _is_delayed(request)
        and _is_at_target(context, wanted)
    )
    start_workflow(
        transaction,
        StartRun(
            request,
            parent=wanted.parent,
            root=wanted.root,
            eager_execution_accepted=eager,
            schedules_task=wanted.schedules_task and wanted.signal is None,
            inherited=wanted.inherited,
            skipped=skipped,
        ),
    )
    if wanted.signal is not None:
        signal(transaction, wanted.signal, links=request.links, wakes=False)
        schedule_first_workflow_task(transaction)
    task = transaction.state.workflow_task
    if eager and task is not None:
        start_workflow_task(
            transaction, task.scheduled_event_id, request_id=request.request_id, identity=request.identity
        )
    return Step(run, transaction)


def _text(text: str) -> Payloads:
    return Payloads(payloads=[Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(text).encode())])


def _is_at_target(context: OperationContext, wanted: Begin) -> bool:
    """Whether the worker that requests the first task has the version with which the run begins."""
    request = wanted.request
    pinned = pinned_by(request.versioning_override) or (wanted.inherited.pinned if wanted.inherited else None)
    task_queue = TaskQueueId(context.namespace.id, request.task_queue.name, TaskType.WORKFLOW)
    target = pinned or context.services.deployments.target(task_queue, request.workflow_id)
    return version_in(request.eager_worker_deployment_options) == target


def _is_delayed(request: StartWorkflowExecutionRequest) -> bool:
    if not request.HasField("workflow_start_delay"):
        return False
    delay = request.workflow_start_delay
    return delay.seconds > 0 or delay.nanos > 0


async def signal_with_start(context: OperationContext, request: SignalWithStartWorkflowExecutionRequest) -> Message:
    """Signal a workflow; if it is not running, start it first."""
    attributes = WorkflowExecutionSignaledEventAttributes(
        signal_name=request.signal_name,
        input=request.signal_input if request.HasField("signal_input") else None,
        identity=request.identity,
        header=request.header if request.HasField("header") else None,
        request_id=request.request_id,
    )
    if request.HasField("versioning_override"):
        await check_override(
            context.services.deployments, context.namespace.id, request.task_queue.name, request.versioning_override
        )
    shard = context.shard
    async with shard.lock(context.namespace.id, request.workflow_id):
        current = await shard.current_runs.find(context.namespace.id, request.workflow_id)
        terminates = (
            request.workflow_id_conflict_policy == Conflict.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING
            or request.workflow_id_reuse_policy == Reuse.WORKFLOW_ID_REUSE_POLICY_TERMINATE_IF_RUNNING
        )
        if current is not None and not current.is_closed and not terminates:
            run = await shard.load(*RunKey.of(current))
            await shard.step(
                context.namespace, run, lambda transaction, _: signal(transaction, attributes, links=request.links)
            )
            started = Started(current.run_id, is_new=False, first_run_id=run.state.started.first_run_id)
        else:
            started = await begin(context, Begin(_start_request(request), signal=attributes))
    link = signal_link(
        namespace=context.namespace.name,
        workflow_id=request.workflow_id,
        run_id=started.run_id,
        request_id=attributes.request_id,
    )
    return SignalWithStartWorkflowExecutionResponse(
        run_id=started.run_id,
        first_execution_run_id=started.first_run_id or started.run_id,
        started=started.is_new,
        signal_link=link,
    )


def _start_request(request: SignalWithStartWorkflowExecutionRequest) -> StartWorkflowExecutionRequest:
    """The start request in a signal-with-start: the fields have the same names, but mostly different numbers."""
    wanted = StartWorkflowExecutionRequest()
    for field, value in request.ListFields():
        if field.name in ("signal_name", "signal_input", "control"):
            continue
        if field.is_repeated:
            getattr(wanted, field.name).extend(value)
        elif field.message_type is not None:
            getattr(wanted, field.name).CopyFrom(value)
        else:
            setattr(wanted, field.name, value)
    return wanted


OPERATIONS = {
    "StartWorkflowExecution": Operation(StartWorkflowExecutionRequest, start),
    "SignalWithStartWorkflowExecution": Operation(SignalWithStartWorkflowExecutionRequest, signal_with_start),
}
