"""Handles the command RECORD_MARKER."""

from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import MarkerRecordedEventAttributes

from fairlead.history.commands.checks import check, check_size
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.events.field_copies import copy_set

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_RECORD_MARKER_ATTRIBUTES


def handle(answer: TaskResponse, command: Command) -> None:
    """Write a marker, which the worker reads during a replay."""
    check(
        command.HasField("record_marker_command_attributes"),
        _CAUSE,
        "RecordMarkerCommandAttributes is not set on RecordMarkerCommand.",
    )
    wanted = command.record_marker_command_attributes
    name, limit = wanted.marker_name, answer.transaction.limits.id_length_max
    check(bool(name), _CAUSE, "MarkerName is not set on RecordMarkerCommand.")
    check(
        len(name) <= limit,
        _CAUSE,
        f"MarkerName on RecordMarkerCommand exceeds length limit. MarkerName={name} Length={len(name)} Limit={limit}",
    )
    size = sum(len(key) + details.ByteSize() for key, details in wanted.details.items())
    check_size(answer, size, _CAUSE, "RecordMarkerCommandAttributes.Details exceeds size limit.")
    attributes = MarkerRecordedEventAttributes(
        marker_name=name, details=wanted.details, workflow_task_completed_event_id=answer.completed_event_id
    )
    copy_set(wanted, attributes, ("header", "failure"))
    answer.add(command, attributes)
