"""Error responses of the HTTP API: `{"code": 5, "message": ..., "details": [...]}` with a matching HTTP status."""

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import GrpcStatus

from fairlead.frontend.http.json_codec import encode
from fairlead.rpc import Code, RpcStatus

# HTTP status of each gRPC code, as in gRPC's gateways.
HTTP_STATUS = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.UNAUTHENTICATED: 401,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
}


def status_body(status: RpcStatus, *, indent: int = 0) -> bytes:
    """The JSON of a status, with its details."""
    message = GrpcStatus()
    if status.details is not None:
        try:
            message.ParseFromString(status.details)
        except DecodeError:
            message.Clear()
    # The code and message of the status itself: details are optional.
    message.code, message.message = int(status.code), status.message
    return encode(message, has_shorthand=False, indent=indent)
