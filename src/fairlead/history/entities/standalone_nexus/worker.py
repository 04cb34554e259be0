"""Requests of standalone Nexus operations to their handlers, and the handlers' responses."""

from collections.abc import Callable

from google.protobuf.message import Message
from temporalio.api.common.v1 import Link, Payload
from temporalio.api.failure.v1 import Failure
from temporalio.api.nexus.v1 import Response
from temporalio.api.workflowservice.v1 import (
    RespondNexusTaskCompletedRequest,
    RespondNexusTaskCompletedResponse,
    RespondNexusTaskFailedRequest,
    RespondNexusTaskFailedResponse,
)

from fairlead.api import links
from fairlead.api.errors import InvalidArgument, NotFound
from fairlead.api.tokens import NexusTaskToken, decode_token
from fairlead.history.entities.standalone_nexus import machine
from fairlead.history.entities.standalone_nexus.machine import Step
from fairlead.history.entities.standalone_nexus.state import OperationState
from fairlead.history.entities.standalone_nexus.steps import START_TASK, change, read
from fairlead.history.messages.matching_tasks import MatchedEntityTask, StartMatched
from fairlead.history.nexus.callbacks import NO_RESULT, CallbackToken, OperationEnded
from fairlead.history.nexus.requests import Called, decode_call, task_of
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.state.errors import NotPending
from fairlead.history.state.nexus_failures import from_handler_error, handler_failure, unsuccessful

_NOT_FOUND = "Nexus task not found or already expired"


async def start(context: OperationContext, request: StartMatched) -> bytes:
    """Give a request to the worker whose poll got it; empty if the request is no longer pending."""
    matched = request.task
    if not isinstance(matched, MatchedEntityTask):
        raise InvalidArgument("not a request to a Nexus handler")
    call = decode_call(matched.data)
    state = await read(context, matched.workflow_id, matched.run_id)
    if not machine.is_called(state, call.attempt, is_cancel=call.is_cancel):
        return b""
    return task_of(_called(context, state), call, now_ns=context.services.clock_ns()).SerializeToString()


def _called(context: OperationContext, state: OperationState) -> Called:
    namespace = context.namespace
    return Called(
        endpoint=state.endpoint,
        service=state.service,
        operation=state.operation,
        request_id=state.request_id,
        token=state.token,
        header=state.header,
        payload=None if state.input is None else Payload.FromString(state.input),
        scheduled_ns=state.scheduled_ns,
        schedule_to_close_ns=state.schedule_to_close_ns,
        start_to_close_ns=state.start_to_close_ns,
        callback=CallbackToken(namespace.id, state.operation_id, state.run_id, 0, state.request_id, is_standalone=True),
        link=links.operation_link(namespace=namespace.name, operation_id=state.operation_id, run_id=state.run_id),
    )


async def complete(context: OperationContext, request: RespondNexusTaskCompletedRequest) -> Message:
    """Process the handler's response to a request."""
    token = _token(request.task_token)

    def step(taken: Step) -> None:
        if token.is_cancel:
            machine.cancel_answered(taken, token.attempt, failure=None)
        else:
            _take_start(taken, token.attempt, request.response)

    await _change(context, token, step)
    return RespondNexusTaskCompletedResponse()


def _take_start(step: Step, attempt: int, response: Response) -> None:
    answer = response.start_operation
    match answer.WhichOneof("variant"):
        case "sync_success":
            success = answer.sync_success
            machine.succeed(
                step,
                attempt,
                result=success.payload if success.HasField("payload") else NO_RESULT,
                links=links.from_nexus(success.links),
            )
        case "async_success":
            began = answer.async_success
            machine.start(
                step,
                attempt,
                token=began.operation_token or began.operation_id,
                links=links.from_nexus(began.links),
            )
        case "failure":
            machine.fail(step, attempt, failure=answer.failure)
        case "operation_error":
            cause = unsuccessful(answer.operation_error)
            if cause is None:
                machine.call_failed(step, attempt, failure=handler_failure("INTERNAL", ""))
            else:
                machine.fail(step, attempt, failure=cause)
        case _:
            machine.call_failed(step, attempt, failure=handler_failure("INTERNAL", "empty outcome"))


async def fail(context: OperationContext, request: RespondNexusTaskFailedRequest) -> Message:
    """Process a worker's report that its handler could not handle a request."""
    token = _token(request.task_token)
    failure = request.failure if request.HasField("failure") else from_handler_error(request.error)

    def step(taken: Step) -> None:
        if token.is_cancel:
            machine.cancel_answered(taken, token.attempt, failure=failure)
        else:
            machine.call_failed(taken, token.attempt, failure=failure)

    await _change(context, token, step)
    return RespondNexusTaskFailedResponse()


async def end(context: OperationContext, ended: OperationEnded) -> Message:
    """Process the reported end of an asynchronous operation."""
    to = ended.to

    def step(taken: Step) -> None:
        machine.end(
            taken,
            request_id=to.request_id,
            token=ended.operation_token,
            started_ns=ended.started_ns,
            links=[Link.FromString(ended.link)] if ended.link else [],
            result=Payload.FromString(ended.result),
            failure=None if ended.failure is None else Failure.FromString(ended.failure),
        )

    await change(context, to.workflow_id, to.run_id, step)
    return RespondNexusTaskCompletedResponse()


async def _change(context: OperationContext, token: NexusTaskToken, step: Callable[[Step], None]) -> None:
    def checked(taken: Step) -> None:
        if token.request_id not in ("", taken.state.request_id):
            raise NotPending(_NOT_FOUND)
        step(taken)

    try:
        await change(context, token.workflow_id, token.run_id, checked)
    except (NotFound, NotPending):
        raise NotFound(_NOT_FOUND) from None


def _token(token: bytes) -> NexusTaskToken:
    decoded = decode_token(token)
    if not isinstance(decoded, NexusTaskToken) or not decoded.is_standalone:
        raise InvalidArgument("Invalid TaskToken.")
    return decoded


OPERATIONS = {
    START_TASK: Operation(StartMatched, start),
    "CompleteStandaloneNexusTask": Operation(RespondNexusTaskCompletedRequest, complete),
    "FailStandaloneNexusTask": Operation(RespondNexusTaskFailedRequest, fail),
    "StandaloneNexusOperationEnded": Operation(OperationEnded, end),
}
