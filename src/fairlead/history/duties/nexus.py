"""Requests to Nexus handlers, what becomes of them, and the callbacks of workflows that handlers have started."""

from temporalio.api.common.v1 import Callback, Link
from temporalio.api.enums.v1 import CallbackState, EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.nexus.v1 import Endpoint

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskList, TaskType
from fairlead.history.duties.timers import if_due
from fairlead.history.duties.verifying import is_meant
from fairlead.history.events import Transaction
from fairlead.history.events.write_nexus import (
    CALL_NS_MAX,
    call_failed,
    cancel_answered,
    end_call_backoff,
    give_up_call,
    is_called,
    time_out_operation,
)
from fairlead.history.namespaces import Namespace
from fairlead.history.nexus.callbacks import OPERATION_TOKEN_HEADER, OperationEnded, outcome_of, token_of
from fairlead.history.nexus.endpoints import Endpoints
from fairlead.history.nexus.failures import handler_failure
from fairlead.history.nexus.links import event_link
from fairlead.history.nexus.requests import NexusCall, encode_call
from fairlead.history.pushing import new_task
from fairlead.history.refusals import Refused
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Scope, Services
from fairlead.history.state import NotPending, RunClosed, RunState
from fairlead.history.state.pending import CallbackProgress
from fairlead.history.state.tasks import (
    CallNexus,
    DeliverCallback,
    NexusCallTimeout,
    NexusRetry,
    NexusTimeout,
    QueueRow,
)
from fairlead.history.state.times import SECOND_NS
from fairlead.history.tasks_wire import MatchedEntityTask
from fairlead.rpc import Code
from fairlead.telemetry import get_log

# Before a request is given up, the worker that takes it is to have some time for it.
_WORK_NS_MIN = SECOND_NS // 2
# Requests of one shard that wait for a worker at a time.
OFFERS_MAX = 5_000

_log = get_log("history.nexus")


async def call(scope: Scope, row: QueueRow, task: CallNexus) -> None:
    """Hand a request to the workers of the endpoint. Nobody waits for that here: it may take as long as a request may.

    If it comes to nothing, or all that is in memory is lost, the request is given up at its time and made again.
    """
    shard, services = scope.shard, scope.services
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        if not is_meant(run.state, task) or not is_called(
            run.state, task.scheduled_event_id, task.attempt, is_cancel=task.is_cancel
        ):
            return
        operation = run.state.nexus_operations[task.scheduled_event_id]
    endpoint = await Endpoints(services.store).find(operation.endpoint_id, name=operation.endpoint)
    handler = None if endpoint is None else await _handler_namespace(services, endpoint)
    if endpoint is None or handler is None:
        await _refuse(scope, row, task, endpoint)
        return
    now_ns = services.clock_ns()
    data = encode_call(NexusCall(handler.id, task.scheduled_event_id, task.attempt, task.is_cancel, now_ns))
    matched = MatchedEntityTask(row.namespace_id, row.workflow_id, row.run_id, "StartNexusTask", data)
    task_list = TaskList(handler.id, endpoint.spec.target.worker.task_queue, TaskType.NEXUS)
    if shard.background_count >= OFFERS_MAX:
        # Too many wait for workers already: it is made again when this one is given up.
        return
    shard.in_background(_offer(services, task_list, matched, now_ns))


async def _handler_namespace(services: Services, endpoint: Endpoint) -> Namespace | None:
    """Where the endpoint's workers are; None if there is no such place."""
    if not endpoint.spec.target.HasField("worker"):
        return None
    try:
        return await services.namespaces.find(endpoint.spec.target.worker.namespace)
    except Refused:
        return None


async def _offer(services: Services, task_list: TaskList, matched: MatchedEntityTask, now_ns: int) -> None:
    try:
        await services.matching.offer(
            task_list, new_task(matched, None, now_ns), wait_s=(CALL_NS_MAX - _WORK_NS_MIN) / SECOND_NS
        )
    except FairleadError as failure:
        _log.warning("nexus request not handed over", task_queue=task_list.name, reason=str(failure))


async def _refuse(scope: Scope, row: QueueRow, task: CallNexus, endpoint: Endpoint | None) -> None:
    """There is nobody who could be asked."""
    if endpoint is None:
        failure = handler_failure("NOT_FOUND", "endpoint not registered")
    elif endpoint.spec.target.HasField("worker"):
        failure = handler_failure("NOT_FOUND", f"Namespace {endpoint.spec.target.worker.namespace} is not found.")
    else:
        failure = handler_failure(
            "NOT_IMPLEMENTED", "this server does not call addresses outside: use an endpoint whose target is a worker"
        )

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        answer = cancel_answered if task.is_cancel else call_failed
        answer(transaction, task.scheduled_event_id, failure=failure, attempt=task.attempt)

    await scope.shard.change(scope.namespace, row.workflow_id, row.run_id, step)


async def call_timeout(scope: Scope, row: QueueRow, due: NexusCallTimeout) -> None:
    """Give up a request that nobody has answered."""
    await if_due(scope, row, lambda transaction: give_up_call(transaction, due))


async def retry(scope: Scope, row: QueueRow, due: NexusRetry) -> None:
    """Make a request again."""
    await if_due(scope, row, lambda transaction: end_call_backoff(transaction, due))


async def operation_timeout(scope: Scope, row: QueueRow, due: NexusTimeout) -> None:
    """Time an operation out."""
    await if_due(scope, row, lambda transaction: time_out_operation(transaction, due))


async def deliver_callback(scope: Scope, row: QueueRow, task: DeliverCallback) -> None:
    """Tell the workflow that called an operation of the end of the one that carried it out."""
    shard = scope.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        state = run.state
        if task.number in state.live.callbacks or not is_meant(state, task):
            return
        callback = Callback.FromString(state.started.completion_callbacks[task.number])
        event = await shard.read_event(state, task.close_event_id)
    to = token_of(callback)
    problem = "the callback's token is not of this server"
    if to is not None:
        result, failure = outcome_of(event)
        ended = OperationEnded(
            to=to,
            operation_token=callback.nexus.header.get(OPERATION_TOKEN_HEADER, ""),
            started_ns=state.started.started_ns,
            link=_started_link(scope, state).SerializeToString(),
            result=result.SerializeToString(),
            failure=None if failure is None else failure.SerializeToString(),
        )
        try:
            await scope.services.history.call("NexusOperationEnded", to.namespace_id, to.workflow_id, ended)
            problem = ""
        except (RunClosed, NotPending) as gone:
            problem = str(gone)
        except Refused as refused:
            if refused.code != Code.NOT_FOUND:
                raise
            problem = str(refused)
    await _note(scope, row, task, problem)


async def _note(scope: Scope, row: QueueRow, task: DeliverCallback, problem: str) -> None:
    """Remember what became of a callback."""
    failure = None
    if problem:
        failure = Failure(message=f"handler error (NOT_FOUND): {problem}")
        failure.application_failure_info.non_retryable = True

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        transaction.state.live.callbacks[task.number] = CallbackProgress(
            state=int(CallbackState.CALLBACK_STATE_FAILED if problem else CallbackState.CALLBACK_STATE_SUCCEEDED),
            attempts=1,
            ended_ns=transaction.now_ns,
            failure=None if failure is None else failure.SerializeToString(),
        )

    await scope.shard.change(scope.namespace, row.workflow_id, row.run_id, step, only_open=False)


def _started_link(scope: Scope, state: RunState) -> Link:
    identity = state.identity
    return event_link(
        namespace=scope.namespace.name,
        workflow_id=identity.workflow_id,
        run_id=identity.run_id,
        event_id=1,
        event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
    )
