"""The statuses of runs, by the numbers of Temporal's enumerations."""

from temporalio.api.enums.v1 import EventType, WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent

RUNNING = int(WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING)
PAUSED = int(WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED)

# The status of a run after each closing event.
CLOSED_BY = {
    int(EventType.Value(f"EVENT_TYPE_WORKFLOW_EXECUTION_{name}")): int(
        WorkflowExecutionStatus.Value(f"WORKFLOW_EXECUTION_STATUS_{name}")
    )
    for name in ("COMPLETED", "FAILED", "TIMED_OUT", "CANCELED", "TERMINATED", "CONTINUED_AS_NEW")
}
STATUS_NAMES = {
    int(number): name.removeprefix("WORKFLOW_EXECUTION_STATUS_").lower()
    for name, number in WorkflowExecutionStatus.items()
}


def next_run_id(closing: HistoryEvent) -> str | None:
    """Return the id of the run that continues the run which this event closed."""
    attributes = getattr(closing, closing.WhichOneof("attributes") or "", None)
    return getattr(attributes, "new_execution_run_id", "") or None
