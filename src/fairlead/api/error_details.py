"""Temporal's error details of API errors."""

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from temporalio.api.enums.v1 import ResourceExhaustedCause, ResourceExhaustedScope
from temporalio.api.errordetails.v1 import (
    NamespaceNotFoundFailure,
    ResourceExhaustedFailure,
    WorkflowExecutionAlreadyStartedFailure,
)

from fairlead.api.errors import AlreadyExists, Exhausted, NotFound


def packed(detail: Message) -> bytes:
    """Serialize one of Temporal's error details, as the argument `detail` of an API error."""
    wrapped = Any()
    wrapped.Pack(detail)
    return wrapped.SerializeToString()


def namespace_not_found(name: str) -> NotFound:
    """The API error for a namespace that does not exist."""
    return NotFound(f"Namespace {name} is not found.", packed(NamespaceNotFoundFailure(namespace=name)))


def already_started(message: str, *, request_id: str, run_id: str, first_run_id: str = "") -> AlreadyExists:
    """The API error for a workflow id that the run `run_id` uses; `first_run_id` is the first run of its chain."""
    started = WorkflowExecutionAlreadyStartedFailure(
        start_request_id=request_id, run_id=run_id, first_execution_run_id=first_run_id
    )
    return AlreadyExists(message, packed(started))


def exhausted(
    message: str,
    cause: ResourceExhaustedCause.ValueType,
    scope: ResourceExhaustedScope.ValueType = ResourceExhaustedScope.RESOURCE_EXHAUSTED_SCOPE_NAMESPACE,
) -> Exhausted:
    """The API error for a limit that is reached, with Temporal's cause and scope."""
    return Exhausted(message, packed(ResourceExhaustedFailure(cause=cause, scope=scope)))
