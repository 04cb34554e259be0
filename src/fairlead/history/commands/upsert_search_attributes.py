"""Handles the command UPSERT_WORKFLOW_SEARCH_ATTRIBUTES."""

from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import UpsertWorkflowSearchAttributesEventAttributes

from fairlead.history.commands.checks import check, check_search_attributes, check_search_attributes_size, check_size
from fairlead.history.commands.task_response import TaskResponse

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_SEARCH_ATTRIBUTES


def handle(answer: TaskResponse, command: Command) -> None:
    """Set or remove search attributes of the run."""
    check(
        command.HasField("upsert_workflow_search_attributes_command_attributes"),
        _CAUSE,
        "UpsertWorkflowSearchAttributesCommandAttributes is not set on UpsertWorkflowSearchAttributesCommand.",
    )
    wanted = command.upsert_workflow_search_attributes_command_attributes
    check(
        wanted.HasField("search_attributes"),
        _CAUSE,
        "SearchAttributes is not set on UpsertWorkflowSearchAttributesCommand.",
    )
    check(
        len(wanted.search_attributes.indexed_fields) > 0,
        _CAUSE,
        "IndexedFields is not set on UpsertWorkflowSearchAttributesCommand.",
    )
    check_search_attributes(answer, wanted.search_attributes)
    check_size(
        answer,
        wanted.search_attributes.ByteSize(),
        _CAUSE,
        "UpsertWorkflowSearchAttributesCommandAttributes exceeds size limit.",
    )
    check_search_attributes_size(wanted.search_attributes, _CAUSE)
    answer.add(
        command,
        UpsertWorkflowSearchAttributesEventAttributes(
            workflow_task_completed_event_id=answer.completed_event_id, search_attributes=wanted.search_attributes
        ),
    )
    answer.transaction.show()
