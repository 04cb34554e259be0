"""Handles the command SCHEDULE_NEXUS_OPERATION."""

from temporalio.api.command.v1 import Command, ScheduleNexusOperationCommandAttributes
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import NexusOperationScheduledEventAttributes

from fairlead.api.times import from_duration, shorter, to_duration
from fairlead.history.commands.checks import check, check_duration, check_size
from fairlead.history.commands.system_operation import SYSTEM_ENDPOINT, check_operation
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.events.field_copies import copy_set
from fairlead.history.events.write_nexus import refresh_operation

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_SCHEDULE_NEXUS_OPERATION_ATTRIBUTES
_NAME = "ScheduleNexusOperationCommandAttributes"
_TIMEOUTS = {
    "schedule_to_close_timeout": "ScheduleToCloseTimeout",
    "schedule_to_start_timeout": "ScheduleToStartTimeout",
    "start_to_close_timeout": "StartToCloseTimeout",
}
PENDING_MAX = 30
HEADER_BYTES_MAX = 8192
# Headers that only the server itself sends, to handlers or to another cluster.
_RESERVED_HEADERS = frozenset(
    {"request-timeout", "xdc-redirection", "xdc-redirection-api", "caller-name", "caller-type", "call-initiation"}
)


def handle(answer: TaskResponse, command: Command) -> None:
    """Schedule an operation on the workers of an endpoint."""
    check(command.HasField("schedule_nexus_operation_command_attributes"), _CAUSE, f"empty {_NAME}")
    wanted = command.schedule_nexus_operation_command_attributes
    transaction = answer.transaction
    state = transaction.state
    endpoints = answer.dependencies.nexus_endpoints
    check(wanted.endpoint in endpoints, _CAUSE, f'endpoint "{wanted.endpoint}" not found')
    _check_attributes(answer, wanted)
    if wanted.endpoint == SYSTEM_ENDPOINT:
        check_operation(answer, wanted)
    check(
        len(state.nexus_operations) < PENDING_MAX,
        Cause.WORKFLOW_TASK_FAILED_CAUSE_PENDING_NEXUS_OPERATIONS_LIMIT_EXCEEDED,
        f"workflow has reached the pending nexus operation limit of {PENDING_MAX} for this namespace",
    )
    attributes = NexusOperationScheduledEventAttributes(
        endpoint=wanted.endpoint,
        endpoint_id=endpoints[wanted.endpoint],
        service=wanted.service,
        operation=wanted.operation,
        nexus_header={name.lower(): value for name, value in wanted.nexus_header.items()},
        workflow_task_completed_event_id=answer.completed_event_id,
        request_id=transaction.new_id(),
    )
    copy_set(wanted, attributes, ("input",))
    _add_timeouts(wanted, attributes, state.started.run_timeout_ns)
    event = answer.add(command, attributes)
    refresh_operation(transaction, state.nexus_operations[event.event_id])


def _check_attributes(answer: TaskResponse, wanted: ScheduleNexusOperationCommandAttributes) -> None:
    limit = answer.transaction.limits.id_length_max
    for title, value in (("Service", wanted.service), ("Operation", wanted.operation)):
        check(len(value) <= limit, _CAUSE, f"{_NAME}.{title} exceeds length limit of {limit}")
    for field, title in _TIMEOUTS.items():
        if wanted.HasField(field):  # type: ignore[arg-type]
            check_duration(getattr(wanted, field), _CAUSE, f"{_NAME}.{title} is invalid: {{}}")
    check_size(answer, wanted.input.ByteSize(), _CAUSE, f"{_NAME}.Input exceeds size limit")
    header = wanted.nexus_header
    for name in header:
        check(
            name.lower() not in _RESERVED_HEADERS,
            _CAUSE,
            f'{_NAME}.NexusHeader contains a disallowed header key: "{name.lower()}"',
        )
    size = sum(len(name.encode()) + len(value.encode()) for name, value in header.items())
    check(size <= HEADER_BYTES_MAX, _CAUSE, f"{_NAME}.NexusHeader exceeds size limit")


def _add_timeouts(
    wanted: ScheduleNexusOperationCommandAttributes, attributes: NexusOperationScheduledEventAttributes, run_ns: int
) -> None:
    """Add the timeouts: no timeout exceeds the run timeout, nor the schedule-to-close timeout."""
    whole_ns = shorter(from_duration(wanted.schedule_to_close_timeout), run_ns)
    if whole_ns:
        attributes.schedule_to_close_timeout.CopyFrom(to_duration(whole_ns))
    to_start_ns, work_ns = from_duration(wanted.schedule_to_start_timeout), from_duration(wanted.start_to_close_timeout)
    if to_start_ns:
        attributes.schedule_to_start_timeout.CopyFrom(to_duration(shorter(to_start_ns, whole_ns)))
    if work_ns:
        attributes.start_to_close_timeout.CopyFrom(to_duration(shorter(work_ns, whole_ns)))
