"""Handles the command REQUEST_CANCEL_NEXUS_OPERATION."""

from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import NexusOperationCancelRequestedEventAttributes

from fairlead.history.commands.checks import check
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.events.write_nexus import cancel_operation
from fairlead.history.state.errors import BadCommand

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_REQUEST_CANCEL_NEXUS_OPERATION_ATTRIBUTES


def handle(answer: TaskResponse, command: Command) -> None:
    """Request an operation's cancellation.

    If the operation's end is buffered, no further event is written for it.
    """
    check(
        command.HasField("request_cancel_nexus_operation_command_attributes"),
        _CAUSE,
        "empty CancelNexusOperationCommandAttributes",
    )
    scheduled_event_id = command.request_cancel_nexus_operation_command_attributes.scheduled_event_id
    operation = answer.transaction.state.nexus_operations.get(scheduled_event_id)
    if operation is None:
        raise BadCommand(
            _CAUSE,
            "requested cancelation for a non-existing or already completed operation with scheduled event ID of "
            f"{scheduled_event_id}",
        )
    check(
        not operation.cancel_requested_event_id,
        _CAUSE,
        f"cancelation was already requested for an operation with scheduled event ID {scheduled_event_id}",
    )
    answer.add(
        command,
        NexusOperationCancelRequestedEventAttributes(
            scheduled_event_id=scheduled_event_id, workflow_task_completed_event_id=answer.completed_event_id
        ),
    )
    cancel_operation(answer.transaction, operation)
