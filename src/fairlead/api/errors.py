"""API errors: one class for each reaction that is right for the caller.

Catch the class; gRPC codes appear only in the table `fairlead.api.codes`, which is used where an error becomes a wire
status. This module and the table import nothing of Temporal's API, which loads slowly.
"""

from fairlead.core.errors import FairleadError, FixRequest, RetryElsewhere, RetryLater

_NOT_FOUND_URL = b"type.googleapis.com/temporal.api.errordetails.v1.NotFoundFailure"
# The packed message NotFoundFailure without fields: field 1 of Any with its length and the type.
_NOT_FOUND = b"\n" + bytes((len(_NOT_FOUND_URL),)) + _NOT_FOUND_URL


class ApiError(FairleadError):
    """An error that clients get unchanged; raise one of the subclasses. Calls between hosts pass it on unchanged.

    `detail` is a packed message of Temporal's error details, or empty.
    """

    def __init__(self, message: str, detail: bytes = b"") -> None:
        super().__init__(message)
        self.detail = detail


class InvalidArgument(ApiError, FixRequest):
    """The request is invalid in every state of the server."""


class NotFound(ApiError, FixRequest):
    """The object of the request does not exist."""

    def __init__(self, message: str, detail: bytes = _NOT_FOUND) -> None:
        super().__init__(message, detail)


class Gone(ApiError, FixRequest):
    """The object of the request has ended. Clients get the same status as for `NotFound`."""

    def __init__(self, message: str, detail: bytes = _NOT_FOUND) -> None:
        super().__init__(message, detail)


class AlreadyExists(ApiError, FixRequest):
    """The name or id is in use."""


class FailedPrecondition(ApiError, FixRequest):
    """The object's state does not allow the request: change the state first."""


class PermissionDenied(ApiError, FixRequest):
    """The caller may not do this."""


class Unimplemented(ApiError, FixRequest):
    """The request is not supported by this server."""


class OutOfRange(ApiError, FixRequest):
    """The position in a stream never existed, because the source was set up again: read from the beginning."""


class NotActive(ApiError, RetryElsewhere):
    """The namespace is active in another cluster: send the request there. Nothing was done."""


class Exhausted(ApiError, RetryLater):
    """A limit is reached and nothing was done: send fewer requests, or first end something that counts."""


class DeadlineExceeded(ApiError, RetryLater):
    """The caller's deadline has passed; the request may have been carried out."""


class Unavailable(ApiError, RetryLater):
    """The server ended the call, and the same call can succeed at once."""


class Aborted(ApiError, RetryLater):
    """A concurrent change prevented the request: send it again."""


# All classes of API errors that callers on other hosts and in other clusters get unchanged.
API_ERRORS: tuple[type[ApiError], ...] = (
    InvalidArgument,
    NotFound,
    Gone,
    AlreadyExists,
    FailedPrecondition,
    PermissionDenied,
    Unimplemented,
    OutOfRange,
    NotActive,
    Exhausted,
    DeadlineExceeded,
    Aborted,
    Unavailable,
)
