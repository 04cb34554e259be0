"""Carries out the Nexus operations of the server's own endpoint."""

from temporalio.api.common.v1 import Link, Payload
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import SignalWithStartWorkflowExecutionResponse

from fairlead.api.errors import (
    AlreadyExists,
    ApiError,
    FailedPrecondition,
    InvalidArgument,
    NotActive,
    NotFound,
    PermissionDenied,
)
from fairlead.api.start_requests import complete_request
from fairlead.history.commands.system_operation import OPERATION, read_request
from fairlead.history.shard.context import OperationContext

# Names of Temporal's errors, with which the messages of its failures begin.
_NAMES: dict[type[ApiError], str] = {
    AlreadyExists: "WorkflowExecutionAlreadyStarted",
    InvalidArgument: "InvalidArgument",
    NotFound: "NotFound",
    FailedPrecondition: "FailedPrecondition",
    NotActive: "FailedPrecondition",
    PermissionDenied: "PermissionDenied",
}


async def call_system(
    context: OperationContext, event: HistoryEvent, link: Link
) -> tuple[SignalWithStartWorkflowExecutionResponse, None] | tuple[None, Failure]:
    """Signal a workflow, and start it if needed; return a failure for an API error after which a retry would not help.

    `event` is the event that scheduled the operation, and `link` leads to it. Because of the operation's request id, a
    repeated call has no second effect.
    """
    attributes = event.nexus_operation_scheduled_event_attributes
    request = read_request(attributes.input)
    request.namespace = context.namespace.name
    request.request_id = attributes.request_id
    del request.links[:]
    request.links.append(link)
    # `complete_request` uses only fields that both types of requests have.
    complete_request(request, context.services.limits.of(context.namespace.id))  # type: ignore[arg-type]
    try:
        answer = await context.services.history.call(OPERATION, context.namespace.id, request.workflow_id, request)
    except ApiError as error:
        name = next((name for kind, name in _NAMES.items() if isinstance(error, kind)), None)
        if name is None:
            raise
        failure = Failure(message=f"{name}: {error}")
        failure.server_failure_info.non_retryable = True
        return None, failure
    return SignalWithStartWorkflowExecutionResponse.FromString(answer), None


def result_of(response: SignalWithStartWorkflowExecutionResponse) -> Payload:
    """The response as the result of an operation."""
    shown = SignalWithStartWorkflowExecutionResponse(
        run_id=response.run_id, started=response.started, signal_link=response.signal_link
    )
    metadata = {"encoding": b"binary/protobuf", "messageType": shown.DESCRIPTOR.full_name.encode()}
    return Payload(metadata=metadata, data=shown.SerializeToString(deterministic=True))
