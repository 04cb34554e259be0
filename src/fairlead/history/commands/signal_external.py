"""Handles the command SIGNAL_EXTERNAL_WORKFLOW_EXECUTION."""

from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import SignalExternalWorkflowExecutionInitiatedEventAttributes

from fairlead.history.commands.checks import check, check_count, check_size, target_namespace_id
from fairlead.history.commands.run_ids import is_run_id
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.events.field_copies import copy_set
from fairlead.history.state.requests import request_id_of
from fairlead.history.state.tasks import SignalExternal

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_SIGNAL_WORKFLOW_EXECUTION_ATTRIBUTES
_ON = "SignalExternalWorkflowExecutionCommand"


def handle(answer: TaskResponse, command: Command) -> None:
    """Send a signal to another workflow."""
    check(
        command.HasField("signal_external_workflow_execution_command_attributes"),
        _CAUSE,
        f"SignalExternalWorkflowExecutionCommandAttributes is not set on {_ON}.",
    )
    wanted = command.signal_external_workflow_execution_command_attributes
    check(wanted.HasField("execution"), _CAUSE, f"Execution is not set on {_ON}.")
    namespace_id = target_namespace_id(answer, wanted.namespace, _CAUSE)
    workflow_id, run_id = wanted.execution.workflow_id, wanted.execution.run_id
    whose = f"Namespace={wanted.namespace} RunId={run_id}"
    limit = answer.transaction.limits.id_length_max
    check(bool(workflow_id), _CAUSE, f"WorkflowId is not set on {_ON}. {whose} SignalName={wanted.signal_name}")
    for title, value in (("Namespace", wanted.namespace), ("WorkflowId", workflow_id)):
        check(
            len(value) <= limit,
            _CAUSE,
            f"{title} on {_ON} exceeds length limit. {title}={value} Length={len(value)} Limit={limit} {whose}",
        )
    check(
        not run_id or is_run_id(run_id),
        _CAUSE,
        f"Invalid RunId set on {_ON}. WorkflowId={workflow_id} {whose} SignalName={wanted.signal_name}",
    )
    check(bool(wanted.signal_name), _CAUSE, f"SignalName is not set on {_ON}. WorkflowId={workflow_id} {whose}")
    transaction = answer.transaction
    check_count(
        len(transaction.state.external_signals),
        transaction.limits.pending_signals_max,
        Cause.WORKFLOW_TASK_FAILED_CAUSE_PENDING_SIGNALS_LIMIT_EXCEEDED,
        "pending signals to external workflows",
    )
    message = "SignalExternalWorkflowExecutionCommandAttributes.Input exceeds size limit."
    check_size(answer, wanted.input.ByteSize(), _CAUSE, message)
    attributes = SignalExternalWorkflowExecutionInitiatedEventAttributes(
        workflow_task_completed_event_id=answer.completed_event_id,
        namespace=wanted.namespace or answer.dependencies.namespace,
        namespace_id=namespace_id,
        workflow_execution=wanted.execution,
        signal_name=wanted.signal_name,
        control=wanted.control,
        child_workflow_only=wanted.child_workflow_only,
    )
    copy_set(wanted, attributes, ("input", "header"))
    event = answer.add(command, attributes)
    pending = transaction.state.external_signals[event.event_id]
    transaction.add_task(SignalExternal(event.version, event.event_id, request_id_of(transaction.state, pending)))
