"""What the shard of a workflow that calls Nexus operations is asked: for its requests, and to take the answers."""

from collections.abc import Callable

from google.protobuf.message import Message
from temporalio.api.common.v1 import Link, Payload
from temporalio.api.failure.v1 import Failure
from temporalio.api.nexus.v1 import Response, StartOperationResponse
from temporalio.api.workflowservice.v1 import (
    PollNexusTaskQueueResponse,
    RespondNexusTaskCompletedRequest,
    RespondNexusTaskCompletedResponse,
    RespondNexusTaskFailedRequest,
    RespondNexusTaskFailedResponse,
)

from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_nexus import (
    call_failed,
    cancel_answered,
    is_called,
    operation_completed,
    operation_ended,
    operation_failed,
    operation_started,
)
from fairlead.history.nexus import links
from fairlead.history.nexus.callbacks import NO_RESULT, OperationEnded
from fairlead.history.nexus.failures import from_handler_error, from_nexus, handler_failure
from fairlead.history.nexus.requests import decode_call, poll_answer
from fairlead.history.refusals import Refused, invalid, not_found
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Operation, Scope
from fairlead.history.state import NotPending, RunClosed
from fairlead.history.state.pending import NexusProgress
from fairlead.history.tasks_wire import MatchedEntityTask, StartMatched
from fairlead.history.tokens import NexusTaskToken, decode_token
from fairlead.rpc import Code

NOT_FOUND = "Nexus task not found or already expired"
_CANCELED = "canceled"
_FAILED = "failed"


async def start(scope: Scope, request: StartMatched) -> bytes:
    """Give a request to the worker whose poll took it; empty if it is not waited for any more."""
    matched = request.task
    if not isinstance(matched, MatchedEntityTask):
        raise invalid("not a request to a Nexus handler")
    call = decode_call(matched.data)
    shard = scope.shard
    async with shard.lock(scope.namespace.id, matched.workflow_id):
        run = await shard.load(scope.namespace.id, matched.workflow_id, matched.run_id)
        state, event_id = run.state, call.scheduled_event_id
        if not is_called(state, event_id, call.attempt, is_cancel=call.is_cancel):
            return b""
        answer: PollNexusTaskQueueResponse = poll_answer(
            state,
            state.nexus_operations[event_id],
            state.live.nexus.get(event_id) or NexusProgress(),
            await shard.read_event(state, event_id),
            call,
            namespace=scope.namespace.name,
            now_ns=scope.services.clock_ns(),
        )
        return answer.SerializeToString()


async def complete(scope: Scope, request: RespondNexusTaskCompletedRequest) -> Message:
    """A worker has answered a request."""
    token = _token(request.task_token)

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        if token.is_cancel:
            cancel_answered(transaction, token.scheduled_event_id, failure=None, attempt=token.attempt)
        else:
            _take_start(transaction, token, request.response)

    await _change(scope, token, step)
    return RespondNexusTaskCompletedResponse()


def _take_start(transaction: Transaction, token: NexusTaskToken, response: Response) -> None:
    event_id, attempt = token.scheduled_event_id, token.attempt
    answer = response.start_operation
    match answer.WhichOneof("variant"):
        case "sync_success":
            success = answer.sync_success
            operation_completed(
                transaction,
                event_id,
                result=success.payload if success.HasField("payload") else NO_RESULT,
                links=links.from_nexus(success.links),
                attempt=attempt,
            )
        case "async_success":
            began = answer.async_success
            operation_started(
                transaction,
                event_id,
                token=began.operation_token or began.operation_id,
                links=links.from_nexus(began.links),
                attempt=attempt,
            )
        case "failure":
            operation_failed(transaction, event_id, cause=answer.failure, attempt=attempt)
        case "operation_error" if answer.operation_error.operation_state in (_FAILED, _CANCELED):
            operation_failed(transaction, event_id, cause=_cause(answer), attempt=attempt)
        case "operation_error":
            call_failed(transaction, event_id, failure=handler_failure("INTERNAL", ""), attempt=attempt)
        case _:
            call_failed(transaction, event_id, failure=handler_failure("INTERNAL", "empty outcome"), attempt=attempt)


def _cause(answer: StartOperationResponse) -> Failure:
    error = answer.operation_error
    return from_nexus(error.failure, is_canceled=error.operation_state == _CANCELED)


async def fail(scope: Scope, request: RespondNexusTaskFailedRequest) -> Message:
    """A worker could not handle a request."""
    token = _token(request.task_token)
    failure = request.failure if request.HasField("failure") else from_handler_error(request.error)

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        event_id, attempt = token.scheduled_event_id, token.attempt
        if token.is_cancel:
            # Of the handler's own error, only what it was caused by is told, as in Temporal's server.
            failure.ClearField("message")
            failure.ClearField("stack_trace")
            cancel_answered(transaction, event_id, failure=failure, attempt=attempt)
        else:
            call_failed(transaction, event_id, failure=failure, attempt=attempt)

    await _change(scope, token, step)
    return RespondNexusTaskFailedResponse()


async def end(scope: Scope, ended: OperationEnded) -> Message:
    """An operation that was going on elsewhere has ended, in the run that called it or the one that has its place."""
    to = ended.to

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        operation_ended(
            transaction,
            to.scheduled_event_id,
            request_id=to.request_id,
            token=ended.operation_token,
            started_ns=ended.started_ns,
            link=Link.FromString(ended.link),
            result=Payload.FromString(ended.result),
            failure=None if ended.failure is None else Failure.FromString(ended.failure),
        )

    shard = scope.shard
    try:
        await shard.change(scope.namespace, to.workflow_id, to.run_id, step)
    except (RunClosed, NotPending, Refused) as gone:
        if isinstance(gone, Refused) and gone.code != Code.NOT_FOUND:
            raise
        # A run that was reset goes on as another one, with the same operation.
        try:
            await shard.change(scope.namespace, to.workflow_id, "", step)
        except (RunClosed, NotPending, Refused):
            raise gone from None
    return RespondNexusTaskCompletedResponse()


async def _change(scope: Scope, token: NexusTaskToken, step: Callable[[Transaction, LoadedRun], None]) -> None:
    try:
        await scope.shard.change(scope.namespace, token.workflow_id, token.run_id, step)
    except (RunClosed, NotPending, Refused) as gone:
        if isinstance(gone, Refused) and gone.code != Code.NOT_FOUND:
            raise
        raise not_found(NOT_FOUND) from None


def _token(token: bytes) -> NexusTaskToken:
    decoded = decode_token(token)
    if not isinstance(decoded, NexusTaskToken):
        raise invalid("Invalid TaskToken.")
    return decoded


OPERATIONS = {
    "StartNexusTask": Operation(StartMatched, start),
    "RespondNexusTaskCompleted": Operation(RespondNexusTaskCompletedRequest, complete),
    "RespondNexusTaskFailed": Operation(RespondNexusTaskFailedRequest, fail),
    "NexusOperationEnded": Operation(OperationEnded, end),
}
