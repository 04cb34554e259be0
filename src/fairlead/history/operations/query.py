"""Queries: asked of a worker, with the workflow task that is on its way or on their own."""

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

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskList, TaskType
from fairlead.history.deployments.targets import workflow_place
from fairlead.history.events import Transaction
from fairlead.history.operations.update import FAILING_ATTEMPTS, deadline_exceeded
from fairlead.history.pages import PageToken, encode_page_token, read_page, spliced
from fairlead.history.pushing import is_at_target
from fairlead.history.queries import Answered, Query, Unblocked
from fairlead.history.refusals import invalid, not_found
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Operation, Scope
from fairlead.history.state import RunState
from fairlead.history.state.run import PAUSED, RUNNING
from fairlead.history.state.times import SECOND_NS
from fairlead.history.tasks_wire import MatchedQuery, StartMatched, encode_matched
from fairlead.history.tokens import QueryTaskToken, decode_token, encode_token
from fairlead.history.updates import not_ready
from fairlead.matching.messages import NewTask, StickyWorkerGone, TaskListKind
from fairlead.storage.history_contract import RunKey

# Somebody waits for the answer: before all other tasks.
_PRIORITY = 1


async def query(scope: Scope, request: QueryWorkflowRequest) -> Message:
    """Ask a workflow something, and wait for the answer."""
    end_s = asyncio.get_running_loop().time() + scope.timeout_s
    query_id, run_id = scope.services.new_id(), request.execution.run_id
    while True:
        async with scope.shard.lock(scope.namespace.id, request.execution.workflow_id):
            run = await scope.shard.load(scope.namespace.id, request.execution.workflow_id, run_id)
            if _is_rejected(request.query_reject_condition, run.state):
                status = WorkflowExecutionStatus.ValueType(run.state.status)
                return QueryWorkflowResponse(query_rejected=QueryRejected(status=status))
            _check(run.state)
            registry = run.query_registry()
            is_direct = not run.state.is_open or run.state.workflow_task is None
            asked = (registry.ask_directly if is_direct else registry.buffer)(query_id, request.query)
        run_id = run.key.run_id
        try:
            end = await (_ask(scope, run, asked, end_s) if is_direct else _wait(asked, end_s))
        finally:
            registry.forget(query_id)
        # What waited for a workflow task in vain is asked again, on its own by now or with the next one.
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


def _check(state: RunState) -> None:
    """Refuse a query that no worker could answer."""
    if not state.is_open:
        if not state.completed_task_started_event_id:
            raise not_ready("Workflow execution closed before WorkflowTaskStarted event")
        return
    if not state.had_task:
        raise not_ready("Workflow task is not scheduled yet.")
    if state.live.task_attempt >= FAILING_ATTEMPTS:
        raise not_ready("Unable to query workflow due to Workflow Task in failed state.")


def _result(end: Answered | FairleadError) -> Payloads:
    if isinstance(end, Answered):
        return end.result
    raise end


async def _wait(asked: Query, end_s: float) -> Answered | Unblocked | FairleadError:
    left_s = end_s - asyncio.get_running_loop().time()
    try:
        return await asyncio.wait_for(asyncio.shield(asked.done), left_s)
    except TimeoutError:
        raise deadline_exceeded() from None


async def _ask(scope: Scope, run: LoadedRun, asked: Query, end_s: float) -> Answered | Unblocked | FairleadError:
    """Have a worker asked: the one that has the run in its cache, if there is one and it answers, or any."""
    live, now_s = run.state.live, asyncio.get_running_loop().time
    # A worker lets go of a run that has ended.
    if live.sticky_task_queue and run.state.is_open and is_at_target(scope.services, run.state):
        asked.is_sticky = True
        sticky = TaskList(run.key.namespace_id, live.sticky_task_queue, TaskType.WORKFLOW)
        sticky_end_s = min(end_s, now_s() + live.sticky_timeout_ns / SECOND_NS)
        try:
            await scope.services.matching.add(sticky, _task(run.key, asked), kind=TaskListKind.STICKY)
            await asyncio.wait([asked.done], timeout=max(0.0, sticky_end_s - now_s()))
        except StickyWorkerGone:
            pass
        if asked.done.done():
            return asked.done.result()
        await _forget_sticky(scope, run.key)
        run.query_registry().offer_again(asked.query_id)
    normal = workflow_place(scope.services.deployments, run.state)
    await scope.services.matching.add(normal, _task(run.key, asked), timeout_s=max(0.0, end_s - now_s()))
    return await _wait(asked, end_s)


def _task(key: RunKey, asked: Query) -> NewTask:
    payload = encode_matched(MatchedQuery(*key, asked.query_id))
    return NewTask(priority=_PRIORITY, fairness_key="", weight=1.0, payload=payload)


async def _forget_sticky(scope: Scope, key: RunKey) -> None:
    """The worker that had the run in its cache does not answer: whatever comes next is for all of them."""
    async with scope.shard.lock(key.namespace_id, key.workflow_id):
        run = await scope.shard.load(*key)
        if run.state.is_open and run.state.live.sticky_task_queue:

            def step(transaction: Transaction, _run: LoadedRun) -> None:
                transaction.state.live.sticky_task_queue = ""

            await scope.shard.step(scope.namespace, run, step)


async def start(scope: Scope, request: StartMatched) -> bytes:
    """Give a query to the worker whose poll took it; empty if nobody waits for it any more."""
    matched = request.task
    if not isinstance(matched, MatchedQuery):
        raise invalid("not a query")
    async with scope.shard.lock(scope.namespace.id, matched.workflow_id):
        run = await scope.shard.load(scope.namespace.id, matched.workflow_id, matched.run_id)
        asked = None if run.queries is None else run.queries.take(matched.query_id)
        return b"" if asked is None else await _poll_answer(scope, run, asked)


async def _poll_answer(scope: Scope, run: LoadedRun, asked: Query) -> bytes:
    """With the whole history, unless the worker has the run in its cache: then with an empty one."""
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
    payloads, next_event_id = await read_page(scope.shard, state, 1, state.next_event_id)
    if next_event_id < state.next_event_id:
        token = PageToken(key.run_id, next_event_id, state.next_event_id, state.identity.branch_id)
        answer.next_page_token = encode_page_token(token)
    return spliced(answer, "history", payloads)


async def respond(scope: Scope, request: RespondQueryTaskCompletedRequest) -> Message:
    """Take the answer of a worker that was asked."""
    token = decode_token(request.task_token)
    if not isinstance(token, QueryTaskToken):
        raise invalid("Invalid TaskToken.")
    async with scope.shard.lock(token.namespace_id, token.workflow_id):
        run = await scope.shard.load(token.namespace_id, token.workflow_id, token.run_id)
        if run.queries is None or not run.queries.answer_directly(token.query_id, request):
            raise not_found("query task not found, or already expired")
    return RespondQueryTaskCompletedResponse()


OPERATIONS = {
    "QueryWorkflow": Operation(QueryWorkflowRequest, query),
    "StartQuery": Operation(StartMatched, start),
    "RespondQueryTaskCompleted": Operation(RespondQueryTaskCompletedRequest, respond),
}
