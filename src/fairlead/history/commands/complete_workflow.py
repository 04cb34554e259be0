"""Handles the command COMPLETE_WORKFLOW_EXECUTION."""

from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause

from fairlead.history.commands.checks import check, check_seen, check_size
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.events import write_close

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_COMPLETE_WORKFLOW_EXECUTION_ATTRIBUTES


def handle(answer: TaskResponse, command: Command) -> None:
    """Close the run with its result."""
    check_seen(answer)
    check(
        command.HasField("complete_workflow_execution_command_attributes"),
        _CAUSE,
        "CompleteWorkflowExecutionCommandAttributes is not set on CompleteWorkflowExecutionCommand.",
    )
    wanted = command.complete_workflow_execution_command_attributes
    check_size(
        answer,
        wanted.result.ByteSize(),
        # Temporal's server also gives this cause, although no activity is involved.
        Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_SCHEDULE_ACTIVITY_ATTRIBUTES,
        "CompleteWorkflowExecutionCommandAttributes.Result exceeds size limit.",
    )
    write_close.complete_workflow(
        answer.transaction,
        completed_event_id=answer.completed_event_id,
        result=wanted.result if wanted.HasField("result") else None,
        user_metadata=command.user_metadata if command.HasField("user_metadata") else None,
    )
