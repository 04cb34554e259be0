"""Outcomes of updates that the server itself determines."""

from temporalio.api.failure.v1 import Failure
from temporalio.api.update.v1 import Outcome


def closed_before_outcome() -> Outcome:
    """The outcome of an accepted update whose run closed before the update completed."""
    return Outcome(
        failure=server_failure(
            "AcceptedUpdateCompletedWorkflow",
            "Workflow Update failed because the Workflow completed before the Update completed.",
        )
    )


def server_failure(kind: str, message: str) -> Failure:
    """A failure of an update that the server itself reports."""
    failure = Failure(message=message, source="Server")
    failure.application_failure_info.type = kind
    failure.application_failure_info.non_retryable = True
    return failure
