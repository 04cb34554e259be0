"""Values of the search attribute TemporalReportedProblems for a workflow task that failed or timed out."""

from temporalio.api.enums.v1 import WorkflowTaskFailedCause

_CAUSE_PREFIX = "WORKFLOW_TASK_FAILED_CAUSE_"
TIMED_OUT = ("category=WorkflowTaskTimedOut", "cause=WorkflowTaskTimedOutCauseStartToClose")


def failed(cause: WorkflowTaskFailedCause.ValueType) -> tuple[str, str]:
    """The attribute's values for a workflow task that failed."""
    is_known = cause in WorkflowTaskFailedCause.values()
    name = WorkflowTaskFailedCause.Name(cause).removeprefix(_CAUSE_PREFIX) if is_known else str(cause)
    words = name.title().replace("_", "")
    return "category=WorkflowTaskFailed", f"cause=WorkflowTaskFailedCause{words}"
