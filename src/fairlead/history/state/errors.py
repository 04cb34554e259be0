"""Errors of a run's steps; their base classes tell what the caller should do."""

from temporalio.api.enums.v1 import ResourceExhaustedCause, WorkflowTaskFailedCause

from fairlead.api.error_details import exhausted
from fairlead.api.errors import Exhausted, Gone
from fairlead.core.errors import FixRequest, GiveUp, RetryElsewhere, RetryLater


class EventCannotFollow(GiveUp):
    """An event can't be applied to the run, because the history or the code is wrong."""


class UnreadableState(GiveUp):
    """The stored state of a run can't be decoded."""


class RunClosed(Gone):
    """The run is closed."""

    def __init__(self, message: str = "workflow execution already completed") -> None:
        super().__init__(message)


class NotPending(Gone):
    """The item has ended, was started by another request, or never existed."""


class KeyAtLimit(RetryLater):
    """The fairness key of an activity is at its limit on running activities: nothing was started."""


class QueueAtLimit(RetryLater):
    """The task queue of an activity is at its limit on running activities: nothing was started."""


class BadRequest(FixRequest):
    """The request contradicts the run's state."""


class TooManySignals(BadRequest):
    """The run has reached its limit of signals."""


def workflow_closing() -> Exhausted:
    """The workflow is about to close: retry when its workflow task has ended."""
    return exhausted(
        "workflow operation can not be applied because workflow is closing",
        ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_BUSY_WORKFLOW,
    )


class BadCommand(FixRequest):
    """A worker's command can't be carried out, so the whole workflow task fails with `cause`.

    If `ends_run`, a retry can't help, so the run is terminated as well.
    """

    def __init__(self, cause: WorkflowTaskFailedCause.ValueType, message: str, *, ends_run: bool = False) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.ends_run = ends_run


class StartEventNeeded(RetryElsewhere):
    """The step starts the next run, which needs the contents of the first event: load it, then repeat the step."""
