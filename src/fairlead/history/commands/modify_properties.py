"""Handles the command MODIFY_WORKFLOW_PROPERTIES."""

from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import WorkflowPropertiesModifiedEventAttributes

from fairlead.history.commands.checks import check, check_memo_size, check_size
from fairlead.history.commands.task_response import TaskResponse

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_MODIFY_WORKFLOW_PROPERTIES_ATTRIBUTES


def handle(answer: TaskResponse, command: Command) -> None:
    """Change the run's memo."""
    check(
        command.HasField("modify_workflow_properties_command_attributes"),
        _CAUSE,
        "ModifyWorkflowPropertiesCommandAttributes is not set on ModifyWorkflowPropertiesCommand.",
    )
    wanted = command.modify_workflow_properties_command_attributes
    check(wanted.HasField("upserted_memo"), _CAUSE, "UpsertedMemo is not set on ModifyWorkflowPropertiesCommand.")
    check(
        len(wanted.upserted_memo.fields) > 0,
        _CAUSE,
        "UpsertedMemo.Fields is not set on ModifyWorkflowPropertiesCommand.",
    )
    check_size(
        answer,
        wanted.upserted_memo.ByteSize(),
        _CAUSE,
        "ModifyWorkflowPropertiesCommandAttributes exceeds size limit.",
    )
    check_memo_size(
        answer,
        wanted.upserted_memo,
        _CAUSE,
        "ModifyWorkflowPropertiesCommandAttributes. Memo exceeds size limit.",
    )
    answer.add(
        command,
        WorkflowPropertiesModifiedEventAttributes(
            workflow_task_completed_event_id=answer.completed_event_id, upserted_memo=wanted.upserted_memo
        ),
    )
    answer.transaction.show()
