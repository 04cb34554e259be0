"""The only table of gRPC codes by error class, for responses to clients, other clusters and other hosts."""

from fairlead.api.errors import (
    Aborted,
    AlreadyExists,
    DeadlineExceeded,
    Exhausted,
    FailedPrecondition,
    Gone,
    InvalidArgument,
    NotActive,
    NotFound,
    OutOfRange,
    PermissionDenied,
    Unavailable,
    Unimplemented,
)
from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryElsewhere, RetryLater
from fairlead.rpc import Code, RpcStatus
from fairlead.rpc.hosts.caller import Overloaded

# gRPC code by error class; an error class without an entry has the code of its nearest base class.
CODES: dict[type[FairleadError], Code] = {
    InvalidArgument: Code.INVALID_ARGUMENT,
    NotFound: Code.NOT_FOUND,
    Gone: Code.NOT_FOUND,
    AlreadyExists: Code.ALREADY_EXISTS,
    FailedPrecondition: Code.FAILED_PRECONDITION,
    NotActive: Code.FAILED_PRECONDITION,
    PermissionDenied: Code.PERMISSION_DENIED,
    Unimplemented: Code.UNIMPLEMENTED,
    OutOfRange: Code.OUT_OF_RANGE,
    Exhausted: Code.RESOURCE_EXHAUSTED,
    Overloaded: Code.RESOURCE_EXHAUSTED,
    DeadlineExceeded: Code.DEADLINE_EXCEEDED,
    Aborted: Code.ABORTED,
    Unavailable: Code.UNAVAILABLE,
    FixRequest: Code.INVALID_ARGUMENT,
    RetryElsewhere: Code.UNAVAILABLE,
    RetryLater: Code.UNAVAILABLE,
    GiveUp: Code.INTERNAL,
    FairleadError: Code.INTERNAL,
}


def code_of(error: FairleadError) -> Code:
    """The gRPC code of an error."""
    if isinstance(error, RpcStatus):
        return error.code
    return next(CODES[base] for base in type(error).__mro__ if base in CODES)
