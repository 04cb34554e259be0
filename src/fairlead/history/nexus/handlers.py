"""Operations on a workflow that calls Nexus operations: start a request to a handler, and record its outcome."""

from collections.abc import Callable

from google.protobuf.message import Message
from temporalio.api.common.v1 import Link, Payload
from temporalio.api.failure.v1 import Failure
from temporalio.api.nexus.v1 import Response
from temporalio.api.workflowservice.v1 import (
    PollNexusTaskQueueResponse,
    RespondNexusTaskCompletedRequest,
    RespondNexusTaskCompletedResponse,
    RespondNexusTaskFailedRequest,
    RespondNexusTaskFailedResponse,
)

from fairlead.api import links
from fairlead.api.errors import ApiError, Gone, InvalidArgument, NotFound
from fairlead.api.nexus_failures import TASK_NOT_FOUND
from fairlead.api.tokens import NexusTaskToken, decode_token
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
from fairlead.history.messages.matching_tasks import MatchedEntityTask, StartMatched
from fairlead.history.nexus.callbacks import NO_RESULT, OperationEnded
from fairlead.history.nexus.requests import decode_call, poll_answer
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state.nexus_failures import from_handler_error, handler_failure, unsuccessful
from fairlead.history.state.pending import NexusProgress


async def start(context: OperationContext, request: StartMatched) -> bytes:
    """The request for the worker whose poll got its task; empty if the request is no longer pending."""
    matched = request.task
    if not isinstance(matched, MatchedEntityTask):
        raise InvalidArgument("not a request to a Nexus handler")
    call = decode_call(matched.data)
    shard = context.shard
    async with shard.lock(context.namespace.id, matched.workflow_id):
        run = await shard.load(context.namespace.id, matched.workflow_id, matched.run_id)
        state, event_id = run.state, call.scheduled_event_id
        if not is_called(state, event_id, call.attempt, is_cancel=call.is_cancel):
            return b""
        answer: PollNexusTaskQueueResponse = poll_answer(
            state,
            state.nexus_operations[event_id],
            state.live.nexus.get(event_id) or NexusProgress(),
            await shard.events.read_event(state, event_id),
            call,
            namespace=context.namespace.name,
            now_ns=context.services.clock_ns() + state.skipped_ns,
        )
        return answer.SerializeToString()


async def complete(context: OperationContext, request: RespondNexusTaskCompletedRequest) -> Message:
    """Record a worker's response to a request."""
    token = _token(request.task_token)

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        if token.is_cancel:
            cancel_answered(transaction, token.scheduled_event_id, failure=None, attempt=token.attempt)
        else:
            _take_start(transaction, token, request.response)

    await _change(context, token, step)
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
        case "operation_error":
            cause = unsuccessful(answer.operation_error)
            if cause is None:
                call_failed(transaction, event_id, failure=handler_failure("INTERNAL", ""), attempt=attempt)
            else:
                operation_failed(transaction, event_id, cause=cause, attempt=attempt)
        case _:
            call_failed(transaction, event_id, failure=handler_failure("INTERNAL", "empty outcome"), attempt=attempt)


async def fail(context: OperationContext, request: RespondNexusTaskFailedRequest) -> Message:
    """Record that a worker failed to handle a request."""
    token = _token(request.task_token)
    failure = request.failure if request.HasField("failure") else from_handler_error(request.error)

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        event_id, attempt = token.scheduled_event_id, token.attempt
        if token.is_cancel:
            # Keep only the cause of the handler error, as Temporal's server does.
            failure.ClearField("message")
            failure.ClearField("stack_trace")
            cancel_answered(transaction, event_id, failure=failure, attempt=attempt)
        else:
            call_failed(transaction, event_id, failure=failure, attempt=attempt)

    await _change(context, token, step)
    return RespondNexusTaskFailedResponse()


async def end(context: OperationContext, ended: OperationEnded) -> Message:
    """Record the outcome of an asynchronous operation, in the run that called it or in the run that replaced it."""
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

    shard = context.shard
    try:
        await shard.change(context.namespace, to.workflow_id, to.run_id, step)
    except (NotFound, Gone) as gone:
        # A run that was reset continues as another run with the same operation.
        try:
            await shard.change(context.namespace, to.workflow_id, "", step)
        except ApiError:
            raise gone from None
    return RespondNexusTaskCompletedResponse()


async def _change(
    context: OperationContext, token: NexusTaskToken, step: Callable[[Transaction, LoadedRun], None]
) -> None:
    def checked(transaction: Transaction, run: LoadedRun) -> None:
        operation = run.state.nexus_operations.get(token.scheduled_event_id)
        if operation is not None and token.request_id not in ("", operation.request_id):
            raise Gone(TASK_NOT_FOUND)
        step(transaction, run)

    try:
        await context.shard.change(context.namespace, token.workflow_id, token.run_id, checked)
    except (NotFound, Gone):
        raise NotFound(TASK_NOT_FOUND) from None


def _token(token: bytes) -> NexusTaskToken:
    decoded = decode_token(token)
    if not isinstance(decoded, NexusTaskToken):
        raise InvalidArgument("Invalid TaskToken.")
    return decoded


OPERATIONS = {
    "StartNexusTask": Operation(StartMatched, start),
    "RespondNexusTaskCompleted": Operation(RespondNexusTaskCompletedRequest, complete),
    "RespondNexusTaskFailed": Operation(RespondNexusTaskFailedRequest, fail),
    "NexusOperationEnded": Operation(OperationEnded, end),
}
