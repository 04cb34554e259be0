"""Errors as pages: what went wrong, and what to do."""

from typing import Final

import msgspec
from msgspec import Struct

from fairlead.api.errors import PermissionDenied
from fairlead.core.errors import FairleadError, FixRequest, RetryElsewhere, RetryLater
from fairlead.frontend.http.status import HTTP_STATUS
from fairlead.http import HttpFault
from fairlead.rpc import Code, RpcStatus

_ADVICE: Final = {
    Code.PERMISSION_DENIED: "Your role does not permit this. Sign in with another key, or ask for a role.",
    Code.UNAUTHENTICATED: "Sign in again.",
    Code.NOT_FOUND: "Check the name and the namespace. Closed workflows are deleted after the namespace's retention.",
    Code.INVALID_ARGUMENT: "Change the address or the field that the message names.",
    Code.RESOURCE_EXHAUSTED: "The server has reached a limit. Wait a moment, then reload.",
    Code.UNAVAILABLE: "The server, or a part of it, does not answer now. Wait a moment, then reload.",
    Code.DEADLINE_EXCEEDED: "There was no answer in time. For a query, a worker must be running.",
}


class Problem(Struct, frozen=True):
    """An error for the viewer: the status of the response, the message, and what to do."""

    status: int
    message: str
    advice: str = ""


def problem_of(failure: Exception) -> Problem:
    """The problem that an exception stands for."""
    match failure:
        case RpcStatus():
            found = Problem(HTTP_STATUS[failure.code], failure.message, _ADVICE.get(failure.code, ""))
        case HttpFault():
            found = Problem(failure.status, failure.message, "Go back, or start at the overview.")
        case msgspec.ValidationError():
            found = Problem(400, f"the address has a bad parameter: {failure}", "Change it, or start at the overview.")
        case PermissionDenied():
            found = Problem(403, str(failure), _ADVICE[Code.PERMISSION_DENIED])
        case FixRequest():
            found = Problem(400, str(failure))
        case RetryLater() | RetryElsewhere():
            found = Problem(503, str(failure), _ADVICE[Code.UNAVAILABLE])
        case FairleadError():
            found = Problem(500, str(failure), "See the server's log.")
        case _:
            found = Problem(500, "internal error", "See the server's log.")
    return found
