"""Handles the command REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION."""

from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import RequestCancelExternalWorkflowExecutionInitiatedEventAttributes

from fairlead.history.commands.checks import check, check_count, target_namespace_id
from fairlead.history.commands.run_ids import is_run_id
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.state.requests import request_id_of
from fairlead.history.state.tasks import CancelExternal

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_ATTRIBUTES
_ON = "RequestCancelExternalWorkflowExecutionCommand"


def handle(answer: TaskResponse, command: Command) -> None:
    """Request another workflow's cancellation."""
    check(
        command.HasField("request_cancel_external_workflow_execution_command_attributes"),
        _CAUSE,
        f"RequestCancelExternalWorkflowExecutionCommandAttributes is not set on {_ON}.",
    )
    wanted = command.request_cancel_external_workflow_execution_command_attributes
    namespace_id = target_namespace_id(answer, wanted.namespace, _CAUSE)
    workflow_id, run_id = wanted.workflow_id, wanted.run_id
    limit = answer.transaction.limits.id_length_max
    check(bool(workflow_id), _CAUSE, f"WorkflowId is not set on {_ON}. Namespace={wanted.namespace} RunId={run_id}")
    whose = f"WorkflowId={workflow_id} RunId={run_id} Namespace={wanted.namespace}"
    for title, value in (("Namespace", wanted.namespace), ("WorkflowId", workflow_id)):
        check(
            len(value) <= limit,
            _CAUSE,
            f"{title} on {_ON} exceeds length limit. {whose} Length={len(value)} Limit={limit}",
        )
    check(not run_id or is_run_id(run_id), _CAUSE, f"Invalid RunId set on {_ON}. {whose}")
    check(
        workflow_id not in answer.started_children,
        _CAUSE,
        f"Start and RequestCancel for child workflow is not allowed in same workflow task. {whose}",
    )
    transaction = answer.transaction
    check_count(
        len(transaction.state.external_cancels),
        transaction.limits.pending_cancels_max,
        Cause.WORKFLOW_TASK_FAILED_CAUSE_PENDING_REQUEST_CANCEL_LIMIT_EXCEEDED,
        "pending requests to cancel external workflows",
    )
    event = answer.add(
        command,
        RequestCancelExternalWorkflowExecutionInitiatedEventAttributes(
            workflow_task_completed_event_id=answer.completed_event_id,
            namespace=wanted.namespace or answer.dependencies.namespace,
            namespace_id=namespace_id,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
            control=wanted.control,
            child_workflow_only=wanted.child_workflow_only,
            reason=wanted.reason,
        ),
    )
    pending = transaction.state.external_cancels[event.event_id]
    transaction.add_task(CancelExternal(event.version, event.event_id, request_id_of(transaction.state, pending)))
