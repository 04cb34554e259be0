"""The wire status of an error: code, message, and Temporal's details."""

from google.protobuf.any_pb2 import Any
from temporalio.api.common.v1 import GrpcStatus
from temporalio.api.enums.v1 import ResourceExhaustedCause, ResourceExhaustedScope
from temporalio.api.errordetails.v1 import ResourceExhaustedFailure

from fairlead.api.codes import code_of
from fairlead.api.error_details import packed
from fairlead.api.errors import ApiError
from fairlead.core.errors import FairleadError
from fairlead.rpc import RpcStatus
from fairlead.rpc.hosts.caller import Overloaded

_OVERLOADED = packed(
    ResourceExhaustedFailure(
        cause=ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_SYSTEM_OVERLOADED,
        scope=ResourceExhaustedScope.RESOURCE_EXHAUSTED_SCOPE_SYSTEM,
    )
)


def details_of(error: FairleadError) -> list[Any]:
    """Temporal's details of an error: none or one."""
    if isinstance(error, ApiError):
        return [Any.FromString(error.detail)] if error.detail else []
    return [Any.FromString(_OVERLOADED)] if isinstance(error, Overloaded) else []


def status_of(error: FairleadError) -> RpcStatus:
    """The wire status of an error; its details are the contents of grpc-status-details-bin."""
    if isinstance(error, RpcStatus):
        return error
    code, message, details = code_of(error), str(error), details_of(error)
    if not details:
        return RpcStatus(code, message)
    return RpcStatus(code, message, GrpcStatus(code=int(code), message=message, details=details).SerializeToString())
