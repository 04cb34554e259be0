"""The root of every error of ours, and its four kinds: what the caller should do about it.

Each package derives its own errors from one of the four, so that a caller may treat a whole kind alike and the
frontend can map kinds to gRPC codes in one place.
"""


class FairleadError(Exception):
    """Everything that Fairlead refuses or fails at."""


class FixRequest(FairleadError):
    """The request can never succeed as it stands: change it."""


class RetryElsewhere(FairleadError):
    """The request is right but went to the wrong place or with an old view: look again, then retry."""


class RetryLater(FairleadError):
    """The request is right and in the right place, but not now: wait, then retry."""


class GiveUp(FairleadError):
    """Stored or received data contradicts itself: nothing was changed, and a person must look."""
