"""Runs begin: by a client, with a signal or without, or as somebody's child; whatever has the workflow id already."""

import json
from typing import NamedTuple

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
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

from fairlead.core.partitions import TaskList, TaskType
from fairlead.history.deployments.routing import version_in
from fairlead.history.deployments.targets import check_override
from fairlead.history.events import StartRun, Transaction, signal, start_workflow, start_workflow_task, terminate
from fairlead.history.events.copying import drop_empty_memo
from fairlead.history.events.write_start import Inherited, schedule_first_workflow_task
from fairlead.history.operations.workflow_tasks import task_answer
from fairlead.history.pages import spliced
from fairlead.history.refusals import already_started
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Operation, Scope
from fairlead.history.search.attributes import add_types
from fairlead.history.shard import Condition
from fairlead.history.state.run import Parent
from fairlead.history.state.versioning import pinned_by
from fairlead.history.writing import Step
from fairlead.storage.history_contract import Absent, CurrentRun, IsRun

_UNSUCCESSFUL = frozenset(
    {
        Status.WORKFLOW_EXECUTION_STATUS_FAILED,
        Status.WORKFLOW_EXECUTION_STATUS_CANCELED,
        Status.WORKFLOW_EXECUTION_STATUS_TERMINATED,
        Status.WORKFLOW_EXECUTION_STATUS_TIMED_OUT,
    }
)


class Started(NamedTuple):
    """What came of it: `is_new` if a run has begun, by this very request or by the same one before."""

    run_id: str
    is_new: bool
    run: LoadedRun | None = None
    status: Status.ValueType = Status.WORKFLOW_EXECUTION_STATUS_RUNNING
    first_run_id: str = ""
    # The request that was attached to the run that was there.
    attached_request_id: str = ""


class Begin(NamedTuple):
    """A run that is to begin."""

    request: StartWorkflowExecutionRequest
    parent: Parent | None = None
    root: WorkflowExecution | None = None
    signal: WorkflowExecutionSignaledEventAttributes | None = None
    # A child waits until its parent knows of it.
    schedules_task: bool = True
    inherited: Inherited | None = None


async def start(scope: Scope, request: StartWorkflowExecutionRequest) -> Message | bytes:
    """Start a workflow for a client."""
    if request.HasField("versioning_override"):
        await check_override(
            scope.services.deployments, scope.namespace.id, request.task_queue.name, request.versioning_override
        )
    async with scope.shard.lock(scope.namespace.id, request.workflow_id):
        started = await begin(scope, Begin(request))
        return await start_answer(scope, request, started)


async def start_answer(scope: Scope, request: StartWorkflowExecutionRequest, started: Started) -> bytes:
    """What the client hears; with the first workflow task, if it wants it and may have it."""
    answer = StartWorkflowExecutionResponse(
        run_id=started.run_id,
        started=started.is_new,
        status=started.status,
        first_execution_run_id=started.first_run_id or started.run_id,
    )
    link = answer.link.workflow_event
    link.namespace = scope.namespace.name
    link.workflow_id = request.workflow_id
    link.run_id = started.run_id
    if started.attached_request_id:
        link.request_id_ref.request_id = started.attached_request_id
        link.request_id_ref.event_type = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED
        return answer.SerializeToString()
    link.event_ref.event_id = 1
    link.event_ref.event_type = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
    run = started.run
    if run is None or not request.request_eager_execution or run.state.workflow_task is None:
        return answer.SerializeToString()
    task = run.state.workflow_task
    if not task.is_started:
        return answer.SerializeToString()
    return spliced(answer, "eager_workflow_task", [await task_answer(scope, run, task)])


async def begin(scope: Scope, wanted: Begin) -> Started:
    """Start a run, or do with the one that has the workflow id what the policies say. To be called with the lock."""
    request = wanted.request
    current = await scope.shard.current(scope.namespace.id, request.workflow_id)
    if current is None:
        return await _create(scope, wanted, Absent())
    if request.request_id and current.request_id == request.request_id:
        return await _repeated(scope, current)
    if current.is_closed:
        first_run_id = (await scope.shard.load(*current[:3])).state.started.first_run_id
        _check_reuse(request, current, first_run_id)
        return await _create(scope, wanted, IsRun(current.run_id))
    return await _conflict(scope, wanted, current)


async def _repeated(scope: Scope, current: CurrentRun) -> Started:
    """The same request again: the same answer."""
    run = await scope.shard.load(*current[:3])
    task = run.state.workflow_task
    # Not if the one that went with the first answer was given up, and another worker has the next.
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


async def _conflict(scope: Scope, wanted: Begin, current: CurrentRun) -> Started:
    request = wanted.request
    policy = request.workflow_id_conflict_policy
    if request.workflow_id_reuse_policy == Reuse.WORKFLOW_ID_REUSE_POLICY_TERMINATE_IF_RUNNING:
        policy = Conflict.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING
    run = await scope.shard.load(*current[:3])
    if policy == Conflict.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING:
        return await _use(scope, request, run)
    if policy == Conflict.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING:
        return await _replace(scope, wanted, run)
    raise already_started(
        f"Workflow execution is already running. WorkflowId: {current.workflow_id}, RunId: {current.run_id}.",
        request_id=current.request_id,
        run_id=current.run_id,
        first_run_id=run.state.started.first_run_id,
    )


async def _use(scope: Scope, request: StartWorkflowExecutionRequest, run: LoadedRun) -> Started:
    """The run that is there will do; what is to be attached to it is."""
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

        await scope.shard.step(scope.namespace, run, step)
    first_run_id = run.state.started.first_run_id
    return Started(
        run.key.run_id,
        is_new=False,
        status=Status.ValueType(run.state.status),
        first_run_id=first_run_id,
        attached_request_id=request.request_id if attach and options.attach_request_id else "",
    )


def _is_attached(run: LoadedRun, request_id: str) -> bool:
    """Whether a request was attached before, or will be when a worker has ended its workflow task."""
    if request_id in run.state.attached_request_ids:
        return True
    waiting = map(HistoryEvent.FromString, run.state.live.buffered)
    return bool(request_id) and any(
        event.workflow_execution_options_updated_event_attributes.attached_request_id == request_id for event in waiting
    )


async def _replace(scope: Scope, wanted: Begin, run: LoadedRun) -> Started:
    """End the run that is there, and begin anew, in one."""
    new_run_id = scope.services.new_id()
    # First: if this is refused, the run that is there goes on as it was.
    new = _begun(scope, wanted, new_run_id)
    ending = scope.shard.transaction(scope.namespace, run.state)
    terminate(
        ending,
        reason="TerminateIfRunning WorkflowIdReusePolicy",
        identity="history-service",
        details=_text(f"terminated by new runID: {new_run_id}"),
    )
    await scope.shard.write(
        scope.namespace,
        [Step(run, ending), new],
        condition=IsRun(run.key.run_id),
        request_id=wanted.request.request_id,
    )
    return Started(new_run_id, is_new=True, run=new.run)


async def _create(scope: Scope, wanted: Begin, condition: Condition) -> Started:
    new = _begun(scope, wanted, scope.services.new_id())
    await scope.shard.write(scope.namespace, [new], condition=condition, request_id=wanted.request.request_id)
    return Started(new.run.key.run_id, is_new=True, run=new.run)


def _begun(scope: Scope, wanted: Begin, run_id: str) -> Step:
    request, watchers = _apart(wanted.request)
    run = scope.shard.new_run(scope.namespace.id, request.workflow_id, run_id)
    run.state.live.watchers = watchers
    drop_empty_memo(request)
    add_types(request.search_attributes, scope.namespace)
    transaction = scope.shard.transaction(scope.namespace, run.state)
    eager = (
        request.request_eager_execution
        and not request.cron_schedule
        and not _is_delayed(request)
        and _is_at_target(scope, wanted)
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


def _is_at_target(scope: Scope, wanted: Begin) -> bool:
    """Whether the worker that wants the first task is of the version that the run begins with."""
    request = wanted.request
    pinned = pinned_by(request.versioning_override) or (wanted.inherited.pinned if wanted.inherited else None)
    task_list = TaskList(scope.namespace.id, request.task_queue.name, TaskType.WORKFLOW)
    target = pinned or scope.services.deployments.target(task_list, request.workflow_id)
    return version_in(request.eager_worker_deployment_options) == target


def _apart(request: StartWorkflowExecutionRequest) -> tuple[StartWorkflowExecutionRequest, list[bytes]]:
    """The request without the callbacks of the server itself, and these: they are kept with the run, not in its events.

    The request stays as it is: where the shard has moved, it is made again.
    """
    watchers = [each.internal.data for each in request.completion_callbacks if each.HasField("internal")]
    if not watchers:
        return request, watchers
    shown = StartWorkflowExecutionRequest()
    shown.CopyFrom(request)
    del shown.completion_callbacks[:]
    shown.completion_callbacks.extend(each for each in request.completion_callbacks if not each.HasField("internal"))
    return shown, watchers


def _is_delayed(request: StartWorkflowExecutionRequest) -> bool:
    delay = request.workflow_start_delay
    return delay.seconds > 0 or delay.nanos > 0


async def signal_with_start(scope: Scope, request: SignalWithStartWorkflowExecutionRequest) -> Message:
    """Signal a workflow, which is started if it does not run."""
    attributes = WorkflowExecutionSignaledEventAttributes(
        signal_name=request.signal_name,
        input=request.signal_input if request.HasField("signal_input") else None,
        identity=request.identity,
        header=request.header if request.HasField("header") else None,
        request_id=request.request_id,
    )
    if request.HasField("versioning_override"):
        await check_override(
            scope.services.deployments, scope.namespace.id, request.task_queue.name, request.versioning_override
        )
    shard = scope.shard
    async with shard.lock(scope.namespace.id, request.workflow_id):
        current = await shard.current(scope.namespace.id, request.workflow_id)
        terminates = (
            request.workflow_id_conflict_policy == Conflict.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING
            or request.workflow_id_reuse_policy == Reuse.WORKFLOW_ID_REUSE_POLICY_TERMINATE_IF_RUNNING
        )
        if current is not None and not current.is_closed and not terminates:
            run = await shard.load(*current[:3])
            await shard.step(
                scope.namespace, run, lambda transaction, _: signal(transaction, attributes, links=request.links)
            )
            return SignalWithStartWorkflowExecutionResponse(run_id=current.run_id, started=False)
        started = await begin(scope, Begin(_start_request(request), signal=attributes))
        return SignalWithStartWorkflowExecutionResponse(run_id=started.run_id, started=started.is_new)


def _start_request(request: SignalWithStartWorkflowExecutionRequest) -> StartWorkflowExecutionRequest:
    """The same request without its signal: all other fields have the same names, and mostly other numbers."""
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
