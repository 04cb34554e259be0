"""What is refused with one of gRPC's codes and one of Temporal's error details, as the SDKs expect it."""

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from temporalio.api.enums.v1 import ResourceExhaustedCause, ResourceExhaustedScope
from temporalio.api.errordetails.v1 import (
    NamespaceNotFoundFailure,
    NotFoundFailure,
    ResourceExhaustedFailure,
    WorkflowExecutionAlreadyStartedFailure,
)

from fairlead.core.errors import FixRequest
from fairlead.rpc import Code


class Refused(FixRequest):
    """A refusal as the client is to see it. It crosses hosts unchanged.

    `code` is gRPC's number, `detail` a serialized `Any` with a message of Temporal's `errordetails`, or empty.
    """

    def __init__(self, message: str, code: int = Code.INVALID_ARGUMENT, detail: bytes = b"") -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail


def refused(code: Code, message: str, detail: Message | None = None) -> Refused:
    """A refusal with any code and any detail."""
    if detail is None:
        return Refused(message, int(code))
    packed = Any()
    packed.Pack(detail)
    return Refused(message, int(code), packed.SerializeToString())


def invalid(message: str) -> Refused:
    """The request can't be carried out as it is."""
    return Refused(message, int(Code.INVALID_ARGUMENT))


def not_found(message: str) -> Refused:
    """What the request is about is not there."""
    return refused(Code.NOT_FOUND, message, NotFoundFailure())


def namespace_not_found(name: str) -> Refused:
    """There is no such namespace."""
    return refused(Code.NOT_FOUND, f"Namespace {name} is not found.", NamespaceNotFoundFailure(namespace=name))


def already_started(message: str, *, request_id: str, run_id: str, first_run_id: str = "") -> Refused:
    """The workflow id is taken, by the run that is named, which continues the first one."""
    return refused(
        Code.ALREADY_EXISTS,
        message,
        WorkflowExecutionAlreadyStartedFailure(
            start_request_id=request_id, run_id=run_id, first_execution_run_id=first_run_id
        ),
    )


def already_exists(message: str) -> Refused:
    """Somebody has the name."""
    return Refused(message, int(Code.ALREADY_EXISTS))


def failed_precondition(message: str) -> Refused:
    """Not in the state in which it is now."""
    return Refused(message, int(Code.FAILED_PRECONDITION))


def permission_denied(message: str) -> Refused:
    """Whoever asks may not."""
    return Refused(message, int(Code.PERMISSION_DENIED))


def unimplemented(message: str) -> Refused:
    """Nobody here does that."""
    return Refused(message, int(Code.UNIMPLEMENTED))


def exhausted(
    message: str,
    cause: ResourceExhaustedCause.ValueType,
    scope: ResourceExhaustedScope.ValueType = ResourceExhaustedScope.RESOURCE_EXHAUSTED_SCOPE_NAMESPACE,
) -> Refused:
    """A bound is reached."""
    return refused(Code.RESOURCE_EXHAUSTED, message, ResourceExhaustedFailure(cause=cause, scope=scope))
