"""Handles the command START_CHILD_WORKFLOW_EXECUTION."""

from temporalio.api.command.v1 import Command, StartChildWorkflowExecutionCommandAttributes
from temporalio.api.enums.v1 import ParentClosePolicy, TaskQueueKind, WorkflowIdReusePolicy
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import StartChildWorkflowExecutionInitiatedEventAttributes

from fairlead.api import cron
from fairlead.api.start_requests import run_timeout_ns, task_timeout_ns
from fairlead.api.times import from_duration, to_duration
from fairlead.history.commands.checks import (
    check,
    check_count,
    check_duration,
    check_memo_size,
    check_retry_policy,
    check_search_attributes,
    check_search_attributes_size,
    check_size,
    check_task_queue,
    priority_problem,
    target_namespace_id,
)
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.events.field_copies import copy_set, drop_empty_memo
from fairlead.history.events.write_time_skipping import inherited_clock
from fairlead.history.state.errors import BadCommand
from fairlead.history.state.requests import request_id_of
from fairlead.history.state.tasks import StartChild

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_START_CHILD_EXECUTION_ATTRIBUTES
_ON = "StartChildWorkflowExecutionCommand"
_TIMEOUTS = {
    "workflow_execution_timeout": "WorkflowExecutionTimeout",
    "workflow_run_timeout": "WorkflowRunTimeout",
    "workflow_task_timeout": "WorkflowTaskTimeout",
}
_PASSED_ON = (
    "input", "header", "memo", "search_attributes", "retry_policy", "priority", "workflow_execution_timeout",
    "versioning_override",
)  # fmt: skip


def handle(answer: TaskResponse, command: Command) -> None:
    """Initiate the start of a child."""
    check(
        command.HasField("start_child_workflow_execution_command_attributes"),
        _CAUSE,
        f"StartChildWorkflowExecutionCommandAttributes is not set on {_ON}.",
    )
    wanted = command.start_child_workflow_execution_command_attributes
    transaction = answer.transaction
    wanted.namespace = wanted.namespace or answer.dependencies.namespace
    namespace_id = target_namespace_id(answer, wanted.namespace, _CAUSE)
    drop_empty_memo(wanted)
    _check_names(answer, wanted)
    _check_options(answer, wanted)
    _complete(answer, wanted)
    check_count(
        len(transaction.state.children),
        transaction.limits.pending_children_max,
        Cause.WORKFLOW_TASK_FAILED_CAUSE_PENDING_CHILD_WORKFLOWS_LIMIT_EXCEEDED,
        "pending child workflow executions",
    )
    attributes = StartChildWorkflowExecutionInitiatedEventAttributes(
        namespace=wanted.namespace,
        namespace_id=namespace_id,
        workflow_id=wanted.workflow_id,
        workflow_type=wanted.workflow_type,
        task_queue=wanted.task_queue,
        workflow_run_timeout=wanted.workflow_run_timeout,
        workflow_task_timeout=wanted.workflow_task_timeout,
        parent_close_policy=wanted.parent_close_policy or ParentClosePolicy.PARENT_CLOSE_POLICY_TERMINATE,
        control=wanted.control,
        workflow_task_completed_event_id=answer.completed_event_id,
        workflow_id_reuse_policy=wanted.workflow_id_reuse_policy
        or WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
        cron_schedule=wanted.cron_schedule,
        inherit_build_id=wanted.inherit_build_id,
    )
    copy_set(wanted, attributes, _PASSED_ON)
    config, skipped = inherited_clock(transaction.state, by_child=True)
    if config is not None:
        attributes.time_skipping_config.CopyFrom(config)
    if skipped is not None:
        attributes.time_skipping_state_propagation.CopyFrom(skipped)
    event = answer.add(command, attributes)
    answer.started_children.add(wanted.workflow_id)
    pending = transaction.state.children[event.event_id]
    transaction.add_task(StartChild(event.version, event.event_id, request_id_of(transaction.state, pending)))


def _check_names(answer: TaskResponse, wanted: StartChildWorkflowExecutionCommandAttributes) -> None:
    workflow_id, name, namespace = wanted.workflow_id, wanted.workflow_type.name, wanted.namespace
    limit = answer.transaction.limits.id_length_max
    check(
        bool(workflow_id),
        _CAUSE,
        f"Required field WorkflowId is not set on {_ON}. WorkflowType={name} Namespace={namespace}",
    )
    check(
        bool(name),
        _CAUSE,
        f"Required field WorkflowType is not set on {_ON}. WorkflowId={workflow_id} Namespace={namespace}",
    )
    where = f"Namespace={namespace or answer.dependencies.namespace}"
    for title, value, before, after in (
        ("Namespace", namespace, "", ""),
        ("WorkflowId", workflow_id, "", f" WorkflowType={name} {where}"),
        ("WorkflowType", name, f"WorkflowId={workflow_id} ", f" {where}"),
    ):
        check(
            len(value) <= limit,
            _CAUSE,
            f"{title} on {_ON} exceeds length limit. {before}{title}={value} Length={len(value)} Limit={limit}{after}",
        )
    problem = check_task_queue(wanted.task_queue, answer.transaction.state.started.task_queue, limit)
    check(problem is None, _CAUSE, f"invalid TaskQueue on {_ON}: {problem}. {_whose(wanted)}")
    wanted.task_queue.kind = TaskQueueKind.TASK_QUEUE_KIND_NORMAL


def _check_options(answer: TaskResponse, wanted: StartChildWorkflowExecutionCommandAttributes) -> None:
    for field, title in _TIMEOUTS.items():
        if wanted.HasField(field):  # type: ignore[arg-type]
            check_duration(getattr(wanted, field), _CAUSE, f"Invalid {title} on {_ON}: {{}}.")
    if wanted.HasField("retry_policy"):
        check_retry_policy(wanted.retry_policy, _CAUSE, f"invalid WorkflowRetryPolicy on {_ON}: {{}}.")
    try:
        cron.check_schedule(wanted.cron_schedule)
    except cron.BadSchedule as wrong:
        raise BadCommand(
            _CAUSE, f"invalid CronSchedule on {_ON}: invalid CronSchedule, {wrong}. {_whose(wanted)}"
        ) from wrong
    check_search_attributes(
        answer, wanted.search_attributes, "invalid SearchAttributes on StartChildWorkflowCommand: {}."
    )
    wrong_priority = priority_problem(wanted.priority)
    check(wrong_priority is None, _CAUSE, f"{wrong_priority}")
    name = "StartChildWorkflowExecutionCommandAttributes"
    check_size(answer, wanted.input.ByteSize(), _CAUSE, f"{name}. Input exceeds size limit.")
    check_memo_size(answer, wanted.memo, _CAUSE, f"{name}.Memo exceeds size limit.")
    check_search_attributes_size(wanted.search_attributes, _CAUSE)


def _complete(answer: TaskResponse, wanted: StartChildWorkflowExecutionCommandAttributes) -> None:
    run_ns = run_timeout_ns(
        from_duration(wanted.workflow_run_timeout), from_duration(wanted.workflow_execution_timeout)
    )
    task_ns = task_timeout_ns(from_duration(wanted.workflow_task_timeout), run_ns, answer.transaction.limits)
    wanted.workflow_run_timeout.CopyFrom(to_duration(run_ns))
    wanted.workflow_task_timeout.CopyFrom(to_duration(task_ns))


def _whose(wanted: StartChildWorkflowExecutionCommandAttributes) -> str:
    return f"WorkflowId={wanted.workflow_id} WorkflowType={wanted.workflow_type.name} Namespace={wanted.namespace}"
