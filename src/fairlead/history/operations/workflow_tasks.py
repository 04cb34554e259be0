"""Workflow tasks: given to a worker, and answered by it."""

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

from fairlead.history.commands import Completion, Surroundings, complete_workflow_task
from fairlead.history.deployments import Deployments, version_of
from fairlead.history.deployments.routing import version_in
from fairlead.history.deployments.targets import declined_target, workflow_list, workflow_target
from fairlead.history.events import Transaction, fail_workflow_task, schedule_workflow_task, start_workflow_task
from fairlead.history.events.write_workflow_tasks import started_task
from fairlead.history.namespaces import Namespace
from fairlead.history.nexus.endpoints import Endpoints
from fairlead.history.operations.activity_tasks import activity_answer
from fairlead.history.pages import PageToken, encode_page_token, read_page, spliced, unwritten_events
from fairlead.history.pushing import push_to_all
from fairlead.history.refusals import invalid
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Operation, Scope
from fairlead.history.search.attributes import add_types, problem_of
from fairlead.history.state import NotPending, RunState, TaskKind, WorkflowTask
from fairlead.history.state.run import PAUSED
from fairlead.history.state.times import to_timestamp
from fairlead.history.state.versioning import pinned_version
from fairlead.history.tasks_wire import MatchedWorkflowTask, StartMatched
from fairlead.history.tokens import WorkflowTaskToken, decode_token, encode_token
from fairlead.history.updates import UpdateRegistry


async def start(scope: Scope, request: StartMatched) -> bytes:
    """Give a workflow task to the worker whose poll took it."""
    matched = request.task
    if not isinstance(matched, MatchedWorkflowTask):
        raise invalid("not a workflow task")
    shard, namespace = scope.shard, scope.namespace
    async with shard.lock(namespace.id, matched.workflow_id):
        run = await shard.load(namespace.id, matched.workflow_id, matched.run_id)
        if version_of(request.worker) == workflow_target(scope.services.deployments, run.state):
            return await _start(scope, run, matched, request)
    # It came into the list of one version, and another one is to have it since.
    await push_anew(scope, matched)
    return b""


async def _start(scope: Scope, run: LoadedRun, matched: MatchedWorkflowTask, request: StartMatched) -> bytes:
    deployments = scope.services.deployments

    def step(transaction: Transaction, run: LoadedRun) -> WorkflowTask:
        pending = transaction.state.workflow_task
        is_paused = transaction.state.status == PAUSED
        if is_paused or not _is_meant(pending, matched):
            raise NotPending("Workflow task not found.")
        task = start_workflow_task(
            transaction,
            matched.scheduled_event_id,
            request_id=scope.services.new_id(),
            identity=request.identity,
            worker_version=request.worker_version if version_of(request.worker) is None else None,
            target_changed=_has_new_target(deployments, transaction.state),
        )
        route = deployments.route(workflow_list(transaction.state))
        if route is not None and pinned_version(transaction.state) is None:
            transaction.state.live.routing_revision = route.revision
        # A speculative task is known to this memory only, unless it had to be written.
        run.skip_write = task.kind is TaskKind.SPECULATIVE and not transaction.events
        return task

    task = await scope.shard.step(scope.namespace, run, step)
    from_event_id = run.state.completed_task_started_event_id + 1 if matched.sticky else 1
    return await task_answer(scope, run, task, from_event_id=from_event_id)


def _has_new_target(deployments: Deployments, state: RunState) -> bool:
    """Whether a pinned run could go to a version that neither it nor the run before has declined yet."""
    target = declined_target(deployments, state)
    declined = state.versioning.declined if state.versioning is not None else None
    return target is not None and target[0] != declined


async def task_answer(scope: Scope, run: LoadedRun, task: WorkflowTask, *, from_event_id: int = 1) -> bytes:
    """What a worker is told of the task that it has, with the history from the first event that it does not know."""
    state = run.state
    end_event_id = state.next_event_id
    payloads, next_event_id = await read_page(scope.shard, state, from_event_id, end_event_id)
    token = b""
    if next_event_id < end_event_id:
        token = encode_page_token(
            PageToken(
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
    """All of it but the history."""
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


async def complete(scope: Scope, request: RespondWorkflowTaskCompletedRequest) -> Message | bytes:
    """Carry out what the worker wants."""
    token = _token(request.task_token)
    shard, namespace = scope.shard, scope.namespace
    endpoints = await _nexus_endpoints(scope, request)
    async with shard.lock(token.namespace_id, token.workflow_id):
        run = await shard.load(token.namespace_id, token.workflow_id, token.run_id)
        updates, queries = run.updates, run.queries
        if request.return_new_workflow_task and not request.force_create_new_workflow_task:
            # Another version is to have the next one, if the worker that answers is not of the right one any more.
            target = workflow_target(scope.services.deployments, run.state)
            request.return_new_workflow_task = version_in(request.deployment_options) == target
        surroundings = Surroundings(
            namespace=namespace.name,
            namespace_ids=partial(_namespace_id, scope),
            updates={} if updates is None else updates.requests(),
            search_attributes_problem=partial(_check_search_attributes, namespace),
            nexus_endpoints=endpoints,
            declined_target=declined_target(scope.services.deployments, run.state),
        )

        def step(transaction: Transaction, run: LoadedRun) -> Completion:
            _check_token(transaction.state, token)
            completion = complete_workflow_task(
                transaction,
                request,
                surroundings,
                scheduled_event_id=token.scheduled_event_id,
                attempt=token.attempt,
                has_updates=updates is not None and updates.has_unsent,
            )
            run.skip_write = completion.left_no_trace and not transaction.events and not transaction.state.live.buffered
            if updates is not None:
                # Of a run that ends, each hears that it ended.
                keeps = request.force_create_new_workflow_task or not transaction.state.is_open
                run.on_commit.append(partial(_tell_updates, updates, completion, keeps_task=keeps))
            if queries is not None:
                run.on_commit.append(partial(queries.answer, request.query_results))
            return completion

        completion = await shard.step(namespace, run, step, may_close=True)
        if completion.failed is not None:
            raise invalid(completion.message)
        if completion.outlived:
            raise NotPending("workflow task heartbeat timeout")
        if completion.doubted:
            raise NotPending("Workflow task not found: the namespace has failed over, and the worker is to replay it.")
        answer = RespondWorkflowTaskCompletedResponse()
        for scheduled_event_id in completion.eager_activities:
            answer.activity_tasks.append(await activity_answer(scope, run, scheduled_event_id))
        task = completion.new_task
        if completion.left_no_trace:
            answer.reset_history_event_id = run.state.completed_task_started_event_id
        if task is None or not task.is_started or not request.return_new_workflow_task:
            return answer
        # The worker has seen all up to the task that it just answered.
        returned = await task_answer(scope, run, task, from_event_id=token.started_event_id + 1)
        return spliced(answer, "workflow_task", [returned])


def _check_search_attributes(namespace: Namespace, attributes: SearchAttributes) -> str | None:
    """What is wrong with them; what is right is completed."""
    problem = problem_of(attributes, namespace)
    if problem is None:
        add_types(attributes, namespace)
    return problem


def _tell_updates(updates: UpdateRegistry, completion: Completion, *, keeps_task: bool) -> None:
    """What the worker said of the updates that it was given, and what follows from what it did not say."""
    if completion.failed is not None:
        updates.on_task_failed(was_refused=True)
        return
    if completion.outlived or completion.doubted:
        updates.on_task_failed()
        return
    for news in completion.update_news:
        updates.on_news(news)
    if not keeps_task:
        updates.reject_unprocessed()


async def fail(scope: Scope, request: RespondWorkflowTaskFailedRequest) -> Message:
    """The worker could not answer the task: another attempt follows."""
    token = _token(request.task_token)
    shard = scope.shard

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
        schedule_workflow_task(transaction)
        if run.updates is not None:
            run.on_commit.append(run.updates.on_task_failed)
        if run.queries is not None:
            failed = partial(run.queries.on_task_failed, request.failure)
            run.on_commit.append(failed)

    await shard.change(scope.namespace, token.workflow_id, token.run_id, step)
    return RespondWorkflowTaskFailedResponse()


async def reset_sticky(scope: Scope, request: ResetStickyTaskQueueRequest) -> Message:
    """Forget which worker has the run in its cache."""

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        transaction.state.live.sticky_task_queue = ""
        transaction.state.live.sticky_timeout_ns = 0

    execution = request.execution
    await scope.shard.change(scope.namespace, execution.workflow_id, execution.run_id, step)
    return ResetStickyTaskQueueResponse()


async def push_anew(scope: Scope, matched: MatchedWorkflowTask) -> Message:
    """The worker whose own task list a task went to has gone: offer the task to all, if it still waits."""
    shard = scope.shard
    async with shard.lock(scope.namespace.id, matched.workflow_id):
        run = await shard.load(scope.namespace.id, matched.workflow_id, matched.run_id)
        task = run.state.workflow_task
    if task is not None and _is_meant(task, matched) and not task.is_started:
        await push_to_all(scope.services, run.key, run.state, task)
    return ResetStickyTaskQueueResponse()


def _is_meant(task: WorkflowTask | None, meant: MatchedWorkflowTask | WorkflowTaskToken) -> bool:
    """Whether a run's task is the very one: on another branch of its events, another one may have the same number."""
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
        raise invalid("Invalid TaskToken.")
    return decoded


async def _nexus_endpoints(scope: Scope, request: RespondWorkflowTaskCompletedRequest) -> dict[str, str]:
    names = {
        command.schedule_nexus_operation_command_attributes.endpoint
        for command in request.commands
        if command.command_type == CommandType.COMMAND_TYPE_SCHEDULE_NEXUS_OPERATION
    }
    return await Endpoints(scope.services.store).ids(names) if names else {}


def _namespace_id(scope: Scope, name: str) -> str | None:
    namespace = scope.services.namespaces.cached(name)
    return None if namespace is None else namespace.id


OPERATIONS = {
    "StartWorkflowTask": Operation(StartMatched, start),
    "RespondWorkflowTaskCompleted": Operation(RespondWorkflowTaskCompletedRequest, complete),
    "RespondWorkflowTaskFailed": Operation(RespondWorkflowTaskFailedRequest, fail),
    "PushAnew": Operation(MatchedWorkflowTask, push_anew),
    "ResetStickyTaskQueue": Operation(ResetStickyTaskQueueRequest, reset_sticky),
}
