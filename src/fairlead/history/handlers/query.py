"""Queries: answered with a workflow task that is pending anyway, or as separate query tasks."""

import asyncio

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.enums.v1 import QueryRejectCondition, TaskQueueKind, WorkflowExecutionStatus
from temporalio.api.history.v1 import History
from temporalio.api.query.v1 import QueryRejected
from temporalio.api.workflowservice.v1 import (
    PollWorkflowTaskQueueResponse,
    QueryWorkflowRequest,
    QueryWorkflowResponse,
    RespondQueryTaskCompletedRequest,
    RespondQueryTaskCompletedResponse,
)

from fairlead.aio.admission import end_turn
from fairlead.api.errors import InvalidArgument, NotFound
from fairlead.api.times import SECOND_NS
from fairlead.api.tokens import QueryTaskToken, decode_token, encode_token
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.history.events import Transaction
from fairlead.history.handlers.history_pages import HistoryPageToken, encode_page_token, read_page, spliced
from fairlead.history.handlers.update import FAILING_ATTEMPTS, deadline_exceeded
from fairlead.history.messages.matching_tasks import MatchedQuery, StartMatched, encode_matched
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.matching_tasks import is_at_target
from fairlead.history.shard.queries import Query, QueryResult, Unblocked
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.shard.updates import not_ready
from fairlead.history.shard.version_targets import workflow_queue
from fairlead.history.state import RunState
from fairlead.history.state.run import PAUSED, RUNNING
from fairlead.matching.messages import NewTask, QueueKind, StickyWorkerGone, TaskOwner
from fairlead.storage.history import RunKey

# Priority of query tasks: before all other tasks, because a client waits for the result.
_PRIORITY = 1


async def query(context: OperationContext, request: QueryWorkflowRequest) -> Message:
    """Query a workflow, and wait for the result."""
    now_s = asyncio.get_running_loop().time
    end_s = now_s() + context.timeout_s
    query_id, run_id = context.services.new_id(), request.execution.run_id
    while True:
        async with context.shard.lock(context.namespace.id, request.execution.workflow_id):
            run = await context.shard.load(context.namespace.id, request.execution.workflow_id, run_id)
            if _is_rejected(request.query_reject_condition, run.state):
                status = WorkflowExecutionStatus.ValueType(run.state.status)
                return QueryWorkflowResponse(query_rejected=QueryRejected(status=status))
            _check(run.state, deadline_ns=_now_ns(context, run.state) + int((end_s - now_s()) * SECOND_NS))
            registry = run.query_registry()
            is_direct = not run.state.is_open or (run.state.workflow_task is None and run.state.had_task)
            asked = (registry.ask_directly if is_direct else registry.buffer)(query_id, request.query)
        run_id = run.key.run_id
        try:
            end = await (_ask(context, run, asked, end_s) if is_direct else _wait(asked, end_s))
        finally:
            registry.forget(query_id)
        # No workflow task delivered the query: try again, as a query task or with the next workflow task.
        if not isinstance(end, Unblocked):
            return QueryWorkflowResponse(query_result=_result(end))


def _is_rejected(condition: QueryRejectCondition.ValueType, state: RunState) -> bool:
    if state.status == PAUSED:
        return True
    if condition == QueryRejectCondition.QUERY_REJECT_CONDITION_NOT_OPEN:
        return state.status != RUNNING
    if condition == QueryRejectCondition.QUERY_REJECT_CONDITION_NOT_COMPLETED_CLEANLY:
        return state.status not in (RUNNING, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED)
    return False


def _now_ns(context: OperationContext, state: RunState) -> int:
    return context.services.clock_ns() + state.skipped_ns


def _check(state: RunState, *, deadline_ns: int) -> None:
    """Raise an error for a query that no worker could answer, or whose deadline precedes the first workflow task."""
    if not state.is_open:
        if not state.completed_task_started_event_id:
            raise not_ready("Workflow execution closed before WorkflowTaskStarted event")
        return
    if not state.had_task and state.started.execution_ns > deadline_ns:
        raise not_ready("Workflow task is not scheduled yet.")
    if state.live.task_attempt >= FAILING_ATTEMPTS:
        raise not_ready("Unable to query workflow due to Workflow Task in failed state.")


def _result(end: QueryResult | FairleadError) -> Payloads:
    if isinstance(end, QueryResult):
        return end.result
    raise end


async def _wait(asked: Query, end_s: float) -> QueryResult | Unblocked | FairleadError:
    left_s = end_s - asyncio.get_running_loop().time()
    end_turn()
    try:
        return await asyncio.wait_for(asyncio.shield(asked.done), left_s)
    except TimeoutError:
        raise deadline_exceeded() from None


async def _ask(
    context: OperationContext, run: LoadedRun, asked: Query, end_s: float
) -> QueryResult | Unblocked | FairleadError:
    """Dispatch a query task to the worker that has the run in its cache; if it does not respond, to any worker."""
    live, now_s = run.state.live, asyncio.get_running_loop().time
    end_turn()
    # Workers evict closed runs from their caches, so a closed run is not sticky.
    if live.sticky_task_queue and run.state.is_open and is_at_target(context.services, run.state):
        asked.is_sticky = True
        sticky = TaskQueueId(run.key.namespace_id, live.sticky_task_queue, TaskType.WORKFLOW)
        sticky_end_s = min(end_s, now_s() + live.sticky_timeout_ns / SECOND_NS)
        try:
            await context.services.matching.add(sticky, _task(run.key, asked), kind=QueueKind.STICKY)
            await asyncio.wait([asked.done], timeout=max(0.0, sticky_end_s - now_s()))
        except StickyWorkerGone:
            pass
        if asked.done.done():
            return asked.done.result()
        await _forget_sticky(context, run.key)
        run.query_registry().offer_again(asked.query_id)
    normal = workflow_queue(context.services.deployments, run.state)
    await context.services.matching.add(normal, _task(run.key, asked), timeout_s=max(0.0, end_s - now_s()))
    return await _wait(asked, end_s)


def _task(key: RunKey, asked: Query) -> NewTask:
    payload = encode_matched(MatchedQuery(*key, asked.query_id))
    return NewTask(priority=_PRIORITY, fairness_key="", weight=1.0, payload=payload, owner=TaskOwner.HISTORY)


async def _forget_sticky(context: OperationContext, key: RunKey) -> None:
    """Dispatch further tasks to the normal task queue, because the sticky worker does not respond."""
    async with context.shard.lock(key.namespace_id, key.workflow_id):
        run = await context.shard.load(*key)
        if run.state.is_open and run.state.live.sticky_task_queue:

            def step(transaction: Transaction, _run: LoadedRun) -> None:
                transaction.state.live.sticky_task_queue = ""

            await context.shard.step(context.namespace, run, step)


async def start(context: OperationContext, request: StartMatched) -> bytes:
    """The query for the worker whose poll got the task; empty if its caller no longer waits."""
    matched = request.task
    if not isinstance(matched, MatchedQuery):
        raise InvalidArgument("not a query")
    async with context.shard.lock(context.namespace.id, matched.workflow_id):
        run = await context.shard.load(context.namespace.id, matched.workflow_id, matched.run_id)
        asked = None if run.queries is None else run.queries.take(matched.query_id)
        return b"" if asked is None else await _poll_answer(context, run, asked)


async def _poll_answer(context: OperationContext, run: LoadedRun, asked: Query) -> bytes:
    """The poll response with the whole history; for the sticky worker, which has it cached, with an empty history."""
    state, key = run.state, run.key
    answer = PollWorkflowTaskQueueResponse(
        task_token=encode_token(QueryTaskToken(*key, asked.query_id)),
        workflow_execution=WorkflowExecution(workflow_id=key.workflow_id, run_id=key.run_id),
        previous_started_event_id=state.completed_task_started_event_id,
        attempt=1,
        query=asked.query,
    )
    answer.workflow_type.name = state.started.workflow_type
    answer.workflow_execution_task_queue.name = state.started.task_queue
    answer.workflow_execution_task_queue.kind = TaskQueueKind.TASK_QUEUE_KIND_NORMAL
    if asked.is_sticky:
        answer.history.CopyFrom(History())
        return answer.SerializeToString()
    events_max = context.services.limits.of(context.namespace.id).task_page_events
    payloads, next_event_id = await read_page(context.shard, state, 1, state.next_event_id, events_max=events_max)
    if next_event_id < state.next_event_id:
        token = HistoryPageToken(key.run_id, next_event_id, state.next_event_id, state.identity.branch_id)
        answer.next_page_token = encode_page_token(token)
    return spliced(answer, "history", payloads)


async def respond(context: OperationContext, request: RespondQueryTaskCompletedRequest) -> Message:
    """Process a worker's response to a query task."""
    token = decode_token(request.task_token)
    if not isinstance(token, QueryTaskToken):
        raise InvalidArgument("Invalid TaskToken.")
    async with context.shard.lock(token.namespace_id, token.workflow_id):
        run = await context.shard.load(token.namespace_id, token.workflow_id, token.run_id)
        if run.queries is None or not run.queries.answer_directly(token.query_id, request):
            raise NotFound("query task not found, or already expired")
    return RespondQueryTaskCompletedResponse()


OPERATIONS = {
    "QueryWorkflow": Operation(QueryWorkflowRequest, query),
    "StartQuery": Operation(StartMatched, start),
    "RespondQueryTaskCompleted": Operation(RespondQueryTaskCompletedRequest, respond),
}
