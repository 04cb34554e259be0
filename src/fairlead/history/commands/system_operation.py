"""Checks of Nexus operations that workflows schedule on the server's own endpoint."""

from google.protobuf.message import DecodeError
from temporalio.api.command.v1 import ScheduleNexusOperationCommandAttributes
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import WorkflowIdConflictPolicy as Conflict
from temporalio.api.enums.v1 import WorkflowIdReusePolicy as Reuse
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.workflowservice.v1 import SignalWithStartWorkflowExecutionRequest

from fairlead.api import cron
from fairlead.history.commands.checks import (
    check,
    check_duration,
    check_memo_size,
    check_retry_policy,
    check_search_attributes,
    check_search_attributes_size,
    check_size,
    priority_problem,
)
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.state.errors import BadCommand

SYSTEM_ENDPOINT = "__temporal_system"
SERVICE = "temporal.api.workflowservice.v1.WorkflowService"
OPERATION = "SignalWithStartWorkflowExecution"
_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_SCHEDULE_NEXUS_OPERATION_ATTRIBUTES
_RESERVED_QUEUE_PREFIX = "/_sys/"
_TIMEOUTS = (
    "workflow_execution_timeout",
    "workflow_run_timeout",
    "workflow_task_timeout",
    "workflow_start_delay",
)


def check_operation(answer: TaskResponse, wanted: ScheduleNexusOperationCommandAttributes) -> None:
    """Fail a command with an operation that the server does not have, or with an invalid request."""
    check(
        (wanted.service, wanted.operation) == (SERVICE, OPERATION),
        _CAUSE,
        f"unsupported system operation: {wanted.service}/{wanted.operation}",
    )
    _check_request(answer, read_request(wanted.input))


def read_request(payload: Payload) -> SignalWithStartWorkflowExecutionRequest:
    """Decode the request in an operation's input, and set defaults for unset policies."""
    try:
        request = SignalWithStartWorkflowExecutionRequest.FromString(payload.data)
    except DecodeError as wrong:
        raise BadCommand(_CAUSE, f"input is not a {OPERATION}Request: {wrong}") from None
    request.workflow_id_reuse_policy = (
        request.workflow_id_reuse_policy or Reuse.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
    )
    request.workflow_id_conflict_policy = (
        request.workflow_id_conflict_policy or Conflict.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING
    )
    return request


def _check_request(answer: TaskResponse, request: SignalWithStartWorkflowExecutionRequest) -> None:
    limit = answer.transaction.limits.id_length_max
    own = request.namespace in ("", answer.dependencies.namespace)
    check(own, _CAUSE, f"namespace {request.namespace} is not the namespace of the workflow: name that one")
    for value, missing, noun in (
        (request.workflow_id, "workflow ID not set", "workflow ID"),
        (request.signal_name, "signal not set", "signal name"),
        (request.workflow_type.name, "workflow type not set", "workflow type name"),
        (request.task_queue.name, "missing task queue name", "task queue name"),
    ):
        check(bool(value), _CAUSE, missing)
        check(len(value.encode()) <= limit, _CAUSE, f"{noun} exceeds length limit of {limit}")
        check("\0" not in value, _CAUSE, f"{noun} contains a zero byte: remove it")
    check(
        not request.task_queue.name.startswith(_RESERVED_QUEUE_PREFIX),
        _CAUSE,
        f"task queue name cannot start with reserved prefix {_RESERVED_QUEUE_PREFIX}",
    )
    check(
        request.workflow_id_conflict_policy != Conflict.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
        _CAUSE,
        "Invalid WorkflowIDConflictPolicy: WORKFLOW_ID_CONFLICT_POLICY_FAIL is not supported for this operation.",
    )
    for name in _TIMEOUTS:
        check_duration(getattr(request, name), _CAUSE, f"{name} is invalid: {{}}")
    if request.HasField("retry_policy"):
        check_retry_policy(request.retry_policy, _CAUSE)
    try:
        cron.check_schedule(request.cron_schedule)
    except cron.BadSchedule as wrong:
        raise BadCommand(_CAUSE, f"invalid CronSchedule, {wrong}") from wrong
    check_search_attributes(answer, request.search_attributes)
    problem = priority_problem(request.priority)
    check(problem is None, _CAUSE, f"{problem}")
    for payloads in (request.input, request.signal_input):
        check_size(answer, payloads.ByteSize(), _CAUSE, "Blob data size exceeds limit.")
    check_memo_size(answer, request.memo, _CAUSE, "Memo size exceeds limit.")
    check_search_attributes_size(request.search_attributes, _CAUSE)
