"""How the errors of all services look to a client: gRPC's code, the message, and Temporal's details."""

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from temporalio.api.common.v1 import GrpcStatus
from temporalio.api.enums.v1 import ResourceExhaustedCause, ResourceExhaustedScope
from temporalio.api.errordetails.v1 import NotFoundFailure, ResourceExhaustedFailure

from fairlead.cluster.calls import Exhausted
from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryElsewhere, RetryLater
from fairlead.history.refusals import Refused
from fairlead.history.state import Busy, NotPending, RunClosed
from fairlead.rpc import Code, RpcStatus

_BUSY_RUN = ResourceExhaustedFailure(
    cause=ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_BUSY_WORKFLOW,
    scope=ResourceExhaustedScope.RESOURCE_EXHAUSTED_SCOPE_NAMESPACE,
)
_BUSY_SERVER = ResourceExhaustedFailure(
    cause=ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_SYSTEM_OVERLOADED,
    scope=ResourceExhaustedScope.RESOURCE_EXHAUSTED_SCOPE_SYSTEM,
)

# An error has the code and the details of the nearest of these that it derives from.
_STATUSES: dict[type, tuple[Code, Message | None]] = {
    RunClosed: (Code.NOT_FOUND, NotFoundFailure()),
    NotPending: (Code.NOT_FOUND, NotFoundFailure()),
    Busy: (Code.RESOURCE_EXHAUSTED, _BUSY_RUN),
    Exhausted: (Code.RESOURCE_EXHAUSTED, _BUSY_SERVER),
    FixRequest: (Code.INVALID_ARGUMENT, None),
    RetryElsewhere: (Code.UNAVAILABLE, None),
    RetryLater: (Code.UNAVAILABLE, None),
    GiveUp: (Code.INTERNAL, None),
    FairleadError: (Code.INTERNAL, None),
}


def status_of(error: FairleadError) -> RpcStatus:
    """What the client is told."""
    if isinstance(error, RpcStatus):
        return error
    if isinstance(error, Refused):
        code = Code(error.code)
        return RpcStatus(code, str(error), _details(code, str(error), error.detail) if error.detail else None)
    code, failure = next(_STATUSES[base] for base in type(error).__mro__ if base in _STATUSES)
    if failure is None:
        return RpcStatus(code, str(error))
    packed = Any()
    packed.Pack(failure)
    return RpcStatus(code, str(error), _details(code, str(error), packed.SerializeToString()))


def _details(code: Code, message: str, detail: bytes) -> bytes:
    """The contents of grpc-status-details-bin."""
    return GrpcStatus(code=int(code), message=message, details=[Any.FromString(detail)]).SerializeToString()
