"""Handles the command FAIL_WORKFLOW_EXECUTION."""

from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause

from fairlead.history.commands.checks import check, check_seen, check_size
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.events import write_close

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_FAIL_WORKFLOW_EXECUTION_ATTRIBUTES


def handle(answer: TaskResponse, command: Command) -> None:
    """Close the run with a failure."""
    check_seen(answer)
    check(
        command.HasField("fail_workflow_execution_command_attributes"),
        _CAUSE,
        "FailWorkflowExecutionCommandAttributes is not set on FailWorkflowExecutionCommand.",
    )
    wanted = command.fail_workflow_execution_command_attributes
    check(wanted.HasField("failure"), _CAUSE, "Failure is not set on FailWorkflowExecutionCommand.")
    check_size(
        answer,
        wanted.failure.ByteSize(),
        _CAUSE,
        "FailWorkflowExecutionCommandAttributes.Failure exceeds size limit.",
    )
    write_close.fail_workflow(
        answer.transaction,
        completed_event_id=answer.completed_event_id,
        failure=wanted.failure,
        user_metadata=command.user_metadata if command.HasField("user_metadata") else None,
    )
