"""Handles the command CONTINUE_AS_NEW_WORKFLOW_EXECUTION."""

from temporalio.api.command.v1 import Command, ContinueAsNewWorkflowExecutionCommandAttributes
from temporalio.api.enums.v1 import ContinueAsNewInitiator, TaskQueueKind
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import WorkflowExecutionContinuedAsNewEventAttributes
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest

from fairlead.api.start_requests import run_timeout_ns, task_timeout_ns
from fairlead.api.times import from_duration, to_duration
from fairlead.history.commands.checks import (
    check,
    check_duration,
    check_memo_size,
    check_retry_policy,
    check_search_attributes,
    check_search_attributes_size,
    check_seen,
    check_size,
    check_task_queue,
)
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.events.field_copies import copy_set
from fairlead.history.events.write_close import begin_next_run, close, inherited_reset_points, spaced_backoff_ns
from fairlead.history.events.write_start import Continuation

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_CONTINUE_AS_NEW_ATTRIBUTES
_TIMEOUTS = {
    "workflow_run_timeout": "WorkflowRunTimeout",
    "workflow_task_timeout": "WorkflowTaskTimeout",
    "backoff_start_interval": "BackoffStartInterval",
}
_IN_EVENT = (
    "input", "header", "memo", "search_attributes", "backoff_start_interval", "failure", "last_completion_result",
)  # fmt: skip
_IN_START = ("input", "header", "memo", "search_attributes", "retry_policy")


def handle(answer: TaskResponse, command: Command) -> None:
    """Close the run, and continue as a new run with an empty history."""
    check_seen(answer)
    check(
        command.HasField("continue_as_new_workflow_execution_command_attributes"),
        _CAUSE,
        "ContinueAsNewWorkflowExecutionCommandAttributes is not set on ContinueAsNewWorkflowExecutionCommand.",
    )
    wanted = command.continue_as_new_workflow_execution_command_attributes
    _complete(answer, wanted)
    transaction = answer.transaction
    new_run_id = transaction.new_id()
    attributes = WorkflowExecutionContinuedAsNewEventAttributes(
        new_execution_run_id=new_run_id,
        workflow_type=wanted.workflow_type,
        task_queue=wanted.task_queue,
        workflow_run_timeout=wanted.workflow_run_timeout,
        workflow_task_timeout=wanted.workflow_task_timeout,
        workflow_task_completed_event_id=answer.completed_event_id,
        initiator=wanted.initiator,
        inherit_build_id=wanted.inherit_build_id,
    )
    copy_set(wanted, attributes, _IN_EVENT)
    close(
        transaction,
        attributes,
        user_metadata=command.user_metadata if command.HasField("user_metadata") else None,
    )
    _begin(answer, wanted, new_run_id)


def _complete(answer: TaskResponse, wanted: ContinueAsNewWorkflowExecutionCommandAttributes) -> None:
    """Fill unset fields with the values of this run, and check all fields."""
    transaction = answer.transaction
    origin, limits = transaction.state.started, transaction.limits
    wanted.workflow_type.name = wanted.workflow_type.name or origin.workflow_type
    name, limit = wanted.workflow_type.name, limits.id_length_max
    check(
        len(name) <= limit,
        _CAUSE,
        "WorkflowType on ContinueAsNewWorkflowExecutionCommand exceeds length limit. "
        f"WorkflowType={name} Length={len(name)} Limit={limit}",
    )
    problem = check_task_queue(wanted.task_queue, origin.task_queue, limit)
    check(problem is None, _CAUSE, f"error validating ContinueAsNewWorkflowExecutionCommand TaskQueue: {problem}.")
    wanted.task_queue.kind = TaskQueueKind.TASK_QUEUE_KIND_NORMAL
    for field, title in _TIMEOUTS.items():
        if wanted.HasField(field):  # type: ignore[arg-type]
            message = f"Invalid {title} on ContinueAsNewWorkflowExecutionCommand: {{}}."
            check_duration(getattr(wanted, field), _CAUSE, message)
    run_ns = from_duration(wanted.workflow_run_timeout) or origin.run_timeout_ns
    run_ns = run_timeout_ns(run_ns, origin.execution_timeout_ns)
    task_ns = from_duration(wanted.workflow_task_timeout) or origin.task_timeout_ns
    wanted.workflow_run_timeout.CopyFrom(to_duration(run_ns))
    wanted.workflow_task_timeout.CopyFrom(to_duration(task_timeout_ns(task_ns, run_ns, limits)))
    if wanted.HasField("retry_policy"):
        message = "invalid WorkflowRetryPolicy on ContinueAsNewWorkflowExecutionCommand: {}."
        check_retry_policy(wanted.retry_policy, _CAUSE, message)
    check_search_attributes(
        answer,
        wanted.search_attributes,
        "invalid SearchAttributes on ContinueAsNewWorkflowExecutionCommand: {}.",
    )
    name = "ContinueAsNewWorkflowExecutionCommandAttributes"
    check_size(answer, wanted.input.ByteSize(), _CAUSE, f"{name}. Input exceeds size limit.")
    check_memo_size(answer, wanted.memo, _CAUSE, f"{name}. Memo exceeds size limit.")
    check_search_attributes_size(wanted.search_attributes, _CAUSE)


def _begin(answer: TaskResponse, wanted: ContinueAsNewWorkflowExecutionCommandAttributes, new_run_id: str) -> None:
    transaction = answer.transaction
    origin = transaction.state.started
    request = StartWorkflowExecutionRequest(
        workflow_type=wanted.workflow_type,
        task_queue=wanted.task_queue,
        workflow_task_timeout=wanted.workflow_task_timeout,
        cron_schedule=wanted.cron_schedule,
    )
    if origin.execution_timeout_ns:
        request.workflow_execution_timeout.CopyFrom(to_duration(origin.execution_timeout_ns))
    request.workflow_run_timeout.CopyFrom(wanted.workflow_run_timeout)
    copy_set(wanted, request, _IN_START)
    if origin.priority is not None:
        request.priority.ParseFromString(origin.priority)
        request.priority.SetInParent()
    continuation = Continuation(
        previous_run_id=transaction.state.identity.run_id,
        first_run_id=origin.first_run_id,
        initiator=wanted.initiator or ContinueAsNewInitiator.CONTINUE_AS_NEW_INITIATOR_WORKFLOW,
        failure=wanted.failure if wanted.HasField("failure") else None,
        last_completion_result=wanted.last_completion_result if wanted.HasField("last_completion_result") else None,
        backoff_ns=spaced_backoff_ns(transaction, from_duration(wanted.backoff_start_interval)),
        expires_at_ns=origin.expires_at_ns,
        reset_points=inherited_reset_points(transaction),
    )
    begin_next_run(
        transaction,
        request,
        new_run_id,
        continuation,
        declined=answer.dependencies.declined_target,
        initial_behavior=wanted.initial_versioning_behavior,
    )
