"""The base class of all errors of Fairlead, and its four kinds, by what the caller should do.

Each package derives its errors from one of the four, so that a caller can handle a whole kind alike, and the frontend
can map kinds to gRPC codes in one place.
"""

from typing import Any


class FairleadError(Exception):
    """Base class of all errors that Fairlead raises on purpose."""


class FixRequest(FairleadError):
    """The request can never succeed unchanged: fix it."""


class RetryElsewhere(FairleadError):
    """The request went to the wrong host or was based on old data: refresh, then retry."""


class RetryLater(FairleadError):
    """The request is right, but can't be carried out now: wait, then retry."""


class GiveUp(FairleadError):
    """Stored or received data contradicts itself: nothing was changed, and a person must investigate."""


def reported(failure: Exception, key: str = "error") -> dict[str, Any]:
    """Fields of a log line: the message of a failure, and the failure itself for the traceback if it is a bug."""
    return {key: str(failure), "exc_info": None if isinstance(failure, FairleadError) else failure}
