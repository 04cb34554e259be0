"""What a run refuses, by what its caller should do."""

from temporalio.api.enums.v1 import WorkflowTaskFailedCause

from fairlead.core.errors import FixRequest, GiveUp, RetryElsewhere, RetryLater


class EventCannotFollow(GiveUp):
    """An event was to be applied to a run in which it can't happen: the history or the code is wrong."""


class UnreadableState(GiveUp):
    """The stored state of a run is not one that this code wrote."""


class RunClosed(FixRequest):
    """The run has come to its end: Temporal answers NOT_FOUND."""

    def __init__(self, message: str = "workflow execution already completed") -> None:
        super().__init__(message)


class NotPending(FixRequest):
    """What the request is about has ended, was started by another, or never was: Temporal answers NOT_FOUND."""


class BadRequest(FixRequest):
    """The request contradicts the run: Temporal answers INVALID_ARGUMENT."""


class Busy(RetryLater):
    """The run holds as much as it may: Temporal answers RESOURCE_EXHAUSTED."""


class BadCommand(FixRequest):
    """A worker's command can't be carried out, so its whole workflow task fails for `cause`.

    `ends_run`: trying again can't help, so the run is terminated too.
    """

    def __init__(self, cause: WorkflowTaskFailedCause.ValueType, message: str, *, ends_run: bool = False) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.ends_run = ends_run


class StartEventNeeded(RetryElsewhere):
    """The step goes on in a new run, for which the first event's contents are needed: load it, then repeat the step."""
