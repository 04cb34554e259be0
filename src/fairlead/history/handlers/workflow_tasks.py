"""Workflow tasks: workers start, complete and fail them."""

from collections.abc import Mapping
from functools import partial

from google.protobuf.message import Message
from temporalio.api.common.v1 import SearchAttributes, WorkflowExecution
from temporalio.api.enums.v1 import CommandType, TaskQueueKind, WorkflowTaskFailedCause
from temporalio.api.protocol.v1 import Message as ProtocolMessage
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflowservice.v1 import (
    PollWorkflowTaskQueueResponse,
    ResetStickyTaskQueueRequest,
    ResetStickyTaskQueueResponse,
    RespondWorkflowTaskCompletedRequest,
    RespondWorkflowTaskCompletedResponse,
    RespondWorkflowTaskFailedRequest,
    RespondWorkflowTaskFailedResponse,
)

from fairlead.api.errors import InvalidArgument
from fairlead.api.limits import LimitedSize
from fairlead.api.namespaces import Namespace
from fairlead.api.nexus_endpoints import Endpoints
from fairlead.api.search.attributes import add_types, value_problem_of
from fairlead.api.times import to_timestamp
from fairlead.api.tokens import WorkflowTaskToken, decode_token, encode_token
from fairlead.api.worker_deployments import Deployments, version_of
from fairlead.api.worker_deployments.routing import version_in
from fairlead.api.worker_versions import begins_ramping, pinned_version
from fairlead.history.commands import CommandDependencies, Completion, complete_workflow_task
from fairlead.history.commands.completion import command_name
from fairlead.history.commands.system_operation import SYSTEM_ENDPOINT
from fairlead.history.events import Transaction, fail_workflow_task, schedule_workflow_task, start_workflow_task
from fairlead.history.events.write_workflow_tasks import started_task
from fairlead.history.handlers.activity_tasks import activity_answer
from fairlead.history.handlers.history_pages import (
    HistoryPageToken,
    encode_page_token,
    read_page,
    spliced,
    unwritten_events,
)
from fairlead.history.messages.matching_tasks import MatchedWorkflowTask, StartMatched, worker_stamp
from fairlead.history.shard.context import Operation, OperationContext, Services
from fairlead.history.shard.matching_tasks import push_to_all
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.shard.updates import UpdateRegistry
from fairlead.history.shard.version_targets import declined_target, workflow_list, workflow_target
from fairlead.history.state import NotPending, RunState, TaskKind, WorkflowTask
from fairlead.history.state.run import PAUSED
from fairlead.settings import Scope as SettingScope
from fairlead.settings.dynamic.nexus import SYSTEM_ENDPOINT_ENABLED


async def start(context: OperationContext, request: StartMatched) -> bytes:
    """Start a workflow task for the worker whose poll got it."""
    matched = request.task
    if not isinstance(matched, MatchedWorkflowTask):
        raise InvalidArgument("not a workflow task")
    shard, namespace = context.shard, context.namespace
    async with shard.lock(namespace.id, matched.workflow_id):
        run = await shard.load(namespace.id, matched.workflow_id, matched.run_id)
        if version_of(request.worker) == workflow_target(context.services.deployments, run.state):
            return await _start(context, run, matched, request)
    # The task came from the queue of one version, but the run has moved to another version.
    await push_anew(context, matched)
    return b""


def start_for_worker(
    services: Services,
    transaction: Transaction,
    scheduled_event_id: int,
    *,
    identity: str,
    worker: bytes,
    unwritten_bytes: int = 0,
) -> WorkflowTask:
    """Give a workflow task to a worker; `worker` is its encoded `PollerInfo`, possibly empty."""
    deployments, state = services.deployments, transaction.state
    task = start_workflow_task(
        transaction,
        scheduled_event_id,
        request_id=services.new_id(),
        identity=identity,
        worker_version=worker_stamp(worker) if version_of(worker) is None else None,
        target_changed=_has_new_target(deployments, state),
        unwritten_bytes=unwritten_bytes,
    )
    route = deployments.route(workflow_list(state))
    if route is not None and pinned_version(state) is None:
        state.live.routing_revision = route.revision
    return task


async def _start(
    context: OperationContext, run: LoadedRun, matched: MatchedWorkflowTask, request: StartMatched
) -> bytes:
    def step(transaction: Transaction, run: LoadedRun) -> WorkflowTask:
        pending = transaction.state.workflow_task
        is_paused = transaction.state.status == PAUSED
        if is_paused or not _is_meant(pending, matched):
            raise NotPending("Workflow task not found.")
        task = start_for_worker(
            context.services,
            transaction,
            matched.scheduled_event_id,
            identity=request.identity,
            worker=request.worker,
        )
        # A speculative task is in memory only, unless its events had to be written.
        run.skip_write = task.kind is TaskKind.SPECULATIVE and not transaction.events
        return task

    task = await context.shard.step(context.namespace, run, step)
    from_event_id = run.state.completed_task_started_event_id + 1 if matched.sticky else 1
    return await task_answer(context, run, task, from_event_id=from_event_id)


def _has_new_target(deployments: Deployments, state: RunState) -> bool:
    """Whether a pinned run could move to a version that neither it nor the previous run has declined."""
    target = declined_target(deployments, state)
    declined = state.versioning.declined if state.versioning is not None else None
    return target is not None and target[0] != declined


async def task_answer(
    context: OperationContext, run: LoadedRun, task: WorkflowTask, *, from_event_id: int = 1
) -> bytes:
    """The poll response for a started task, with the history from `from_event_id` on."""
    state = run.state
    end_event_id = state.next_event_id
    events_max = context.services.limits.of(context.namespace.id).task_page_events
    payloads, next_event_id = await read_page(context.shard, state, from_event_id, end_event_id, events_max=events_max)
    token = b""
    if next_event_id < end_event_id:
        token = encode_page_token(
            HistoryPageToken(
                run.key.run_id,
                next_event_id,
                end_event_id,
                state.identity.branch_id,
                (task.scheduled_event_id, task.attempt) if task.kind is not TaskKind.NORMAL else None,
            )
        )
    elif task.kind is not TaskKind.NORMAL:
        payloads = [*payloads, unwritten_events(state, task)]
    answer = poll_answer(
        run,
        task,
        messages=[] if run.updates is None else run.updates.to_send(task.started_event_id - 1, resend=task.attempt > 1),
        queries={} if run.queries is None else run.queries.to_attach(),
    )
    answer.next_page_token = token
    return spliced(answer, "history", payloads)


def poll_answer(
    run: LoadedRun,
    task: WorkflowTask,
    *,
    messages: list[ProtocolMessage],
    queries: Mapping[str, WorkflowQuery],
) -> PollWorkflowTaskQueueResponse:
    """The poll response without the history."""
    state, key = run.state, run.key
    answer = PollWorkflowTaskQueueResponse(
        task_token=encode_token(
            WorkflowTaskToken(
                *key, task.scheduled_event_id, task.attempt, task.started_event_id, task.version, task.started_ns
            )
        ),
        workflow_execution=WorkflowExecution(workflow_id=key.workflow_id, run_id=key.run_id),
        previous_started_event_id=state.completed_task_started_event_id,
        started_event_id=task.started_event_id,
        attempt=task.attempt,
        scheduled_time=to_timestamp(task.scheduled_ns),
        started_time=to_timestamp(task.started_ns),
        messages=messages,
        queries=queries,
    )
    answer.workflow_type.name = state.started.workflow_type
    answer.workflow_execution_task_queue.name = state.started.task_queue
    answer.workflow_execution_task_queue.kind = TaskQueueKind.TASK_QUEUE_KIND_NORMAL
    return answer


async def complete(context: OperationContext, request: RespondWorkflowTaskCompletedRequest) -> Message | bytes:
    """Carry out a worker's commands."""
    token = _token(request.task_token)
    shard, namespace = context.shard, context.namespace
    endpoints = await _nexus_endpoints(context, request)
    async with shard.lock(token.namespace_id, token.workflow_id):
        run = await shard.load(token.namespace_id, token.workflow_id, token.run_id)
        updates, queries = run.updates, run.queries
        if request.return_new_workflow_task and not request.force_create_new_workflow_task:
            # Return the next task to this worker only if the worker has the version that must take it.
            target = workflow_target(context.services.deployments, run.state)
            # After its first task, a run that began with the ramping version may move to another version.
            is_settled = not begins_ramping(run.state)
            request.return_new_workflow_task = is_settled and version_in(request.deployment_options) == target
        dependencies = CommandDependencies(
            namespace=namespace.name,
            namespace_ids=partial(_namespace_id, context),
            updates={} if updates is None else updates.requests(),
            search_attributes_problem=partial(_check_search_attributes, namespace),
            warn_of_size=partial(_warn_of_size, context, token.workflow_id),
            cross_namespace_commands=context.services.limits.of(namespace.id).cross_namespace_commands,
            nexus_endpoints=endpoints,
            declined_target=declined_target(context.services.deployments, run.state),
        )

        def step(transaction: Transaction, run: LoadedRun) -> Completion:
            _check_token(transaction.state, token)
            completion = complete_workflow_task(
                transaction,
                request,
                dependencies,
                scheduled_event_id=token.scheduled_event_id,
                attempt=token.attempt,
                has_updates=updates is not None and updates.has_unsent,
            )
            run.skip_write = completion.left_no_trace and not transaction.events and not transaction.state.live.buffered
            if updates is not None:
                # If the run ends, its close notifies the updates without a message: don't reject them here.
                keeps = request.force_create_new_workflow_task or not transaction.state.is_open
                run.on_commit.append(partial(_notify_updates, updates, completion, keeps_task=keeps))
            if queries is not None:
                run.on_commit.append(partial(queries.answer, request.query_results))
            return completion

        completion = await shard.step(namespace, run, step, may_close=True)
        if completion.failed is not None:
            raise InvalidArgument(completion.message)
        if completion.outlived:
            raise NotPending("workflow task heartbeat timeout")
        if completion.doubted:
            raise NotPending(
                "Workflow task not found: the namespace has failed over, and the worker must replay the run."
            )
        answer = RespondWorkflowTaskCompletedResponse()
        for scheduled_event_id in completion.eager_activities:
            answer.activity_tasks.append(await activity_answer(context, run, scheduled_event_id))
        task = completion.new_task
        if completion.left_no_trace:
            answer.reset_history_event_id = run.state.completed_task_started_event_id
        if task is None or not task.is_started or not request.return_new_workflow_task:
            return answer
        # The worker has the events up to the task that it just completed.
        returned = await task_answer(context, run, task, from_event_id=token.started_event_id + 1)
        return spliced(answer, "workflow_task", [returned])


def _check_search_attributes(namespace: Namespace, attributes: SearchAttributes) -> str | None:
    """The problem with search attributes, apart from their sizes, or None; adds types to valid attributes."""
    problem = value_problem_of(attributes, namespace)
    if problem is None:
        add_types(attributes, namespace)
    return problem


def _warn_of_size(
    context: OperationContext, workflow_id: str, kind: LimitedSize, size: int, command_type: CommandType.ValueType
) -> None:
    limits = context.services.limits.of(context.namespace.id)
    is_memo = kind is LimitedSize.MEMO
    context.services.size_warnings.check(
        kind,
        size,
        warn=limits.memo_size_warn if is_memo else limits.blob_size_warn,
        error=limits.memo_size_max if is_memo else limits.blob_size_max,
        namespace=context.namespace.name,
        workflow_id=workflow_id,
        operation=command_name(command_type),
    )


def _notify_updates(updates: UpdateRegistry, completion: Completion, *, keeps_task: bool) -> None:
    """Apply the worker's messages to its updates; updates without a message are rejected or delivered again."""
    if completion.failed is not None:
        updates.on_task_failed(was_rejected=True)
        return
    if completion.outlived or completion.doubted:
        updates.on_task_failed()
        return
    for news in completion.update_news:
        updates.on_news(news)
    if not keeps_task:
        updates.reject_unprocessed()


async def fail(context: OperationContext, request: RespondWorkflowTaskFailedRequest) -> Message:
    """Fail a workflow task; another attempt follows."""
    token = _token(request.task_token)
    shard = context.shard

    def step(transaction: Transaction, run: LoadedRun) -> None:
        _check_token(transaction.state, token)
        started_task(transaction.state)
        fail_workflow_task(
            transaction,
            request.cause or WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNSPECIFIED,
            failure=request.failure if request.HasField("failure") else None,
            identity=request.identity,
            binary_checksum=request.binary_checksum,
        )
        schedule_workflow_task(transaction, after_failure=True)
        if run.updates is not None:
            run.on_commit.append(run.updates.on_task_failed)
        if run.queries is not None:
            failed = partial(run.queries.on_task_failed, request.failure)
            run.on_commit.append(failed)

    await shard.change(context.namespace, token.workflow_id, token.run_id, step)
    return RespondWorkflowTaskFailedResponse()


async def reset_sticky(context: OperationContext, request: ResetStickyTaskQueueRequest) -> Message:
    """Forget the worker that has the run in its cache."""

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        transaction.state.live.sticky_task_queue = ""
        transaction.state.live.sticky_timeout_ns = 0

    execution = request.execution
    await context.shard.change(context.namespace, execution.workflow_id, execution.run_id, step)
    return ResetStickyTaskQueueResponse()


async def push_anew(context: OperationContext, matched: MatchedWorkflowTask) -> Message:
    """Add a pending task to its task queue again: its sticky worker is gone, or the run moved to another version."""
    shard = context.shard
    async with shard.lock(context.namespace.id, matched.workflow_id):
        run = await shard.load(context.namespace.id, matched.workflow_id, matched.run_id)
        task = run.state.workflow_task
    if task is not None and _is_meant(task, matched) and not task.is_started:
        await push_to_all(context.services, run.key, run.state, task)
    return ResetStickyTaskQueueResponse()


def _is_meant(task: WorkflowTask | None, meant: MatchedWorkflowTask | WorkflowTaskToken) -> bool:
    """Whether a run's task is the given one. On another branch, another task may have the same event id."""
    return task is not None and (task.scheduled_event_id, task.version, task.attempt) == (
        meant.scheduled_event_id,
        meant.version,
        meant.attempt,
    )


def _check_token(state: RunState, token: WorkflowTaskToken) -> None:
    state.check_open()
    task = state.workflow_task
    if task is None or not _is_meant(task, token) or task.started_ns != (token.started_ns or task.started_ns):
        raise NotPending("Workflow task not found.")


def _token(token: bytes) -> WorkflowTaskToken:
    decoded = decode_token(token)
    if not isinstance(decoded, WorkflowTaskToken):
        raise InvalidArgument("Invalid TaskToken.")
    return decoded


async def _nexus_endpoints(context: OperationContext, request: RespondWorkflowTaskCompletedRequest) -> dict[str, str]:
    names = {
        command.schedule_nexus_operation_command_attributes.endpoint
        for command in request.commands
        if command.command_type == CommandType.COMMAND_TYPE_SCHEDULE_NEXUS_OPERATION
    }
    if not names:
        return {}
    found = await Endpoints(context.services.store).ids(names)
    if SYSTEM_ENDPOINT in names:
        settings, namespace = context.services.settings, SettingScope(context.namespace.id)
        if settings.get(SYSTEM_ENDPOINT_ENABLED, namespace):
            # The server's own endpoint has no id.
            found[SYSTEM_ENDPOINT] = ""
    return found


def _namespace_id(context: OperationContext, name: str) -> str | None:
    namespace = context.services.namespaces.cached(name)
    return None if namespace is None else namespace.id


OPERATIONS = {
    "StartWorkflowTask": Operation(StartMatched, start),
    "RespondWorkflowTaskCompleted": Operation(RespondWorkflowTaskCompletedRequest, complete),
    "RespondWorkflowTaskFailed": Operation(RespondWorkflowTaskFailedRequest, fail),
    "PushAnew": Operation(MatchedWorkflowTask, push_anew),
    "ResetStickyTaskQueue": Operation(ResetStickyTaskQueueRequest, reset_sticky),
}
