"""Handles the command CANCEL_WORKFLOW_EXECUTION."""

from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import WorkflowExecutionCanceledEventAttributes

from fairlead.history.commands.checks import check, check_seen
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.events.field_copies import copy_set
from fairlead.history.events.write_close import close

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_CANCEL_WORKFLOW_EXECUTION_ATTRIBUTES


def handle(answer: TaskResponse, command: Command) -> None:
    """Close the run as canceled."""
    check_seen(answer)
    check(
        command.HasField("cancel_workflow_execution_command_attributes"),
        _CAUSE,
        "CancelWorkflowExecutionCommandAttributes is not set on CancelWorkflowExecutionCommand.",
    )
    attributes = WorkflowExecutionCanceledEventAttributes(workflow_task_completed_event_id=answer.completed_event_id)
    copy_set(command.cancel_workflow_execution_command_attributes, attributes, ("details",))
    close(
        answer.transaction,
        attributes,
        user_metadata=command.user_metadata if command.HasField("user_metadata") else None,
    )
