"""What is told of an activity that stands alone: to its worker, to who asks, and in lists."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from temporalio.api.activity.v1 import (
    ActivityExecutionInfo,
    ActivityExecutionListInfo,
    ActivityExecutionOutcome,
    ActivityOptions,
)
from temporalio.api.common.v1 import (
    ActivityType,
    Header,
    Link,
    Payload,
    Payloads,
    Priority,
    RetryPolicy,
    SearchAttributes,
    WorkflowExecution,
)
from temporalio.api.enums.v1 import ActivityExecutionStatus as Status
from temporalio.api.enums.v1 import PendingActivityState, TaskQueueKind, WorkflowExecutionStatus
from temporalio.api.failure.v1 import Failure
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollActivityTaskQueueResponse

from fairlead.history.search.attributes import WrongValue, to_payload, to_value
from fairlead.history.search.names import type_of
from fairlead.history.standalone.state import ActivityState, Options, Phase
from fairlead.history.state.times import to_duration, to_timestamp
from fairlead.history.tokens import ActivityTaskToken, encode_token
from fairlead.storage.history_visibility import SearchValue, VisibilityRow

ARCHETYPE = "activity"


class _Seen(NamedTuple):
    """A phase as the API has it. In stores it has the number of a workflow's status, so that queries are the same."""

    status: Status.ValueType
    stored: WorkflowExecutionStatus.ValueType
    pending: PendingActivityState.ValueType = PendingActivityState.PENDING_ACTIVITY_STATE_UNSPECIFIED


_RUNNING = (Status.ACTIVITY_EXECUTION_STATUS_RUNNING, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING)
_SEEN = {
    Phase.SCHEDULED: _Seen(*_RUNNING, PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED),
    Phase.STARTED: _Seen(*_RUNNING, PendingActivityState.PENDING_ACTIVITY_STATE_STARTED),
    Phase.CANCEL_REQUESTED: _Seen(*_RUNNING, PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED),
    Phase.PAUSE_REQUESTED: _Seen(*_RUNNING, PendingActivityState.PENDING_ACTIVITY_STATE_PAUSE_REQUESTED),
    Phase.RESET_REQUESTED: _Seen(*_RUNNING, PendingActivityState.PENDING_ACTIVITY_STATE_STARTED),
    Phase.PAUSED: _Seen(
        Status.ACTIVITY_EXECUTION_STATUS_PAUSED,
        WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED,
        PendingActivityState.PENDING_ACTIVITY_STATE_PAUSED,
    ),
    Phase.COMPLETED: _Seen(
        Status.ACTIVITY_EXECUTION_STATUS_COMPLETED, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED
    ),
    Phase.FAILED: _Seen(
        Status.ACTIVITY_EXECUTION_STATUS_FAILED, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED
    ),
    Phase.CANCELED: _Seen(
        Status.ACTIVITY_EXECUTION_STATUS_CANCELED, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CANCELED
    ),
    Phase.TERMINATED: _Seen(
        Status.ACTIVITY_EXECUTION_STATUS_TERMINATED, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED
    ),
    Phase.TIMED_OUT: _Seen(
        Status.ACTIVITY_EXECUTION_STATUS_TIMED_OUT, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TIMED_OUT
    ),
}
_STATUSES = {seen.stored: seen.status for seen in _SEEN.values()}


def stored_status(state: ActivityState) -> int:
    """The status by which it is found."""
    return int(_SEEN[state.phase].stored)


def worker_answer(state: ActivityState, *, namespace_id: str, namespace: str) -> PollActivityTaskQueueResponse:
    """What a worker is told of the attempt that it has."""
    options = state.options
    token = ActivityTaskToken(
        namespace_id,
        state.activity_id,
        state.run_id,
        state.starts,
        state.attempt,
        state.activity_id,
        is_standalone=True,
    )
    answer = PollActivityTaskQueueResponse(
        task_token=encode_token(token),
        workflow_namespace=namespace,
        # There is none, but SDKs look into it.
        workflow_execution=WorkflowExecution(),
        activity_type=ActivityType(name=state.activity_type),
        activity_id=state.activity_id,
        activity_run_id=state.run_id,
        scheduled_time=to_timestamp(state.scheduled_ns),
        current_attempt_scheduled_time=to_timestamp(state.due_ns),
        started_time=to_timestamp(state.started_ns),
        attempt=state.attempt,
        schedule_to_close_timeout=to_duration(options.schedule_to_close_ns),
        start_to_close_timeout=to_duration(options.start_to_close_ns),
        heartbeat_timeout=to_duration(options.heartbeat_ns),
        retry_policy=RetryPolicy.FromString(options.retry_policy),
    )
    if state.input is not None:
        answer.input.ParseFromString(state.input)
    if state.header is not None:
        answer.header.ParseFromString(state.header)
    if state.heartbeat_details is not None:
        answer.heartbeat_details.ParseFromString(state.heartbeat_details)
    if options.priority:
        answer.priority.ParseFromString(options.priority)
    return answer


def outcome_of(state: ActivityState) -> ActivityExecutionOutcome:
    """How it ended."""
    return ActivityExecutionOutcome.FromString(state.outcome)


def options_answer(options: Options) -> ActivityOptions:
    """The options as they are now."""
    answer = ActivityOptions(
        task_queue=TaskQueue(name=options.task_queue, kind=TaskQueueKind.TASK_QUEUE_KIND_NORMAL),
        schedule_to_close_timeout=to_duration(options.schedule_to_close_ns),
        schedule_to_start_timeout=to_duration(options.schedule_to_start_ns),
        start_to_close_timeout=to_duration(options.start_to_close_ns),
        heartbeat_timeout=to_duration(options.heartbeat_ns),
        retry_policy=RetryPolicy.FromString(options.retry_policy),
    )
    if options.priority:
        answer.priority.ParseFromString(options.priority)
    if options.start_delay_ns:
        answer.start_delay.CopyFrom(to_duration(options.start_delay_ns))
    return answer


def info_of(
    state: ActivityState, *, now_ns: int, with_heartbeat_details: bool, with_last_failure: bool
) -> ActivityExecutionInfo:
    """All that there is to know of it but its input and its outcome."""
    options, seen = state.options, _SEEN[state.phase]
    info = ActivityExecutionInfo(
        activity_id=state.activity_id,
        run_id=state.run_id,
        activity_type=ActivityType(name=state.activity_type),
        status=seen.status,
        run_state=seen.pending,
        task_queue=options.task_queue,
        schedule_to_close_timeout=to_duration(options.schedule_to_close_ns),
        schedule_to_start_timeout=to_duration(options.schedule_to_start_ns),
        start_to_close_timeout=to_duration(options.start_to_close_ns),
        heartbeat_timeout=to_duration(options.heartbeat_ns),
        retry_policy=RetryPolicy.FromString(options.retry_policy),
        attempt=state.attempt,
        schedule_time=to_timestamp(state.scheduled_ns),
        execution_time=to_timestamp(state.execution_ns),
        last_worker_identity=state.identity,
        state_transition_count=state.transitions,
        state_size_bytes=len(msgspec.msgpack.encode(state)),
        search_attributes=SearchAttributes.FromString(state.search_attributes),
        canceled_reason=state.cancel.reason if state.cancel is not None else "",
        links=[Link.FromString(link) for link in state.links],
        total_heartbeat_count=state.heartbeats,
    )
    if state.phase is Phase.RESET_REQUESTED and state.stays_paused:
        info.run_state = PendingActivityState.PENDING_ACTIVITY_STATE_PAUSE_REQUESTED
    for name, time_ns in (
        ("last_heartbeat_time", state.heartbeat_at_ns),
        ("last_started_time", state.started_ns),
        ("last_attempt_complete_time", state.attempt_ended_ns),
        ("expiration_time", state.expires_ns),
        ("close_time", state.closed_ns),
    ):
        if time_ns:
            getattr(info, name).CopyFrom(to_timestamp(time_ns))
    _add_waits(info, state, now_ns)
    _add_messages(info, state)
    if with_heartbeat_details and state.heartbeat_details is not None:
        info.heartbeat_details.CopyFrom(Payloads.FromString(state.heartbeat_details))
    if with_last_failure and state.last_failure is not None:
        info.last_failure.CopyFrom(Failure.FromString(state.last_failure))
    return info


def _add_waits(info: ActivityExecutionInfo, state: ActivityState, now_ns: int) -> None:
    if state.options.start_delay_ns:
        info.start_delay.CopyFrom(to_duration(state.options.start_delay_ns))
    if not state.is_open:
        info.execution_duration.CopyFrom(to_duration(_duration_ns(state)))
    elif state.phase is Phase.SCHEDULED and state.due_ns > now_ns:
        info.next_attempt_schedule_time.CopyFrom(to_timestamp(state.due_ns))
        if state.retry_interval_ns:
            info.current_retry_interval.CopyFrom(to_duration(state.retry_interval_ns))


def _add_messages(info: ActivityExecutionInfo, state: ActivityState) -> None:
    if state.header is not None:
        info.header.CopyFrom(Header.FromString(state.header))
    if state.user_metadata is not None:
        info.user_metadata.CopyFrom(UserMetadata.FromString(state.user_metadata))
    if state.options.priority:
        info.priority.CopyFrom(Priority.FromString(state.options.priority))


def _duration_ns(state: ActivityState) -> int:
    return max(0, state.closed_ns - state.execution_ns)


def row_of(state: ActivityState, *, namespace_id: str, custom: Mapping[str, int]) -> VisibilityRow:
    """What can be found of it, in a namespace with these custom attributes."""
    is_closed = not state.is_open
    return VisibilityRow(
        f"{namespace_id}#{ARCHETYPE}",
        state.run_id,
        state.activity_id,
        state.activity_type,
        stored_status(state),
        state.scheduled_ns,
        state.execution_ns,
        state.options.task_queue,
        close_time_ns=state.closed_ns if is_closed else None,
        execution_duration_ns=_duration_ns(state) if is_closed else None,
        state_transition_count=state.transitions if is_closed else None,
        search_attributes=_values(SearchAttributes.FromString(state.search_attributes).indexed_fields, custom),
    )


def listed_of(row: VisibilityRow, custom: Mapping[str, int]) -> ActivityExecutionListInfo:
    """What a list says of it."""
    types = {name: type_of(name, custom) for name in row.search_attributes}
    info = ActivityExecutionListInfo(
        activity_id=row.workflow_id,
        run_id=row.run_id,
        activity_type=ActivityType(name=row.workflow_type),
        schedule_time=to_timestamp(row.start_time_ns),
        execution_time=to_timestamp(row.execution_time_ns),
        status=_STATUSES[WorkflowExecutionStatus.ValueType(row.status)],
        search_attributes=SearchAttributes(
            indexed_fields={
                name: to_payload(value, types[name] or 0)
                for name, value in row.search_attributes.items()
                if types[name] is not None
            }
        ),
        task_queue=row.task_queue,
        state_transition_count=row.state_transition_count or 0,
    )
    if row.close_time_ns is not None:
        info.close_time.CopyFrom(to_timestamp(row.close_time_ns))
    if row.execution_duration_ns is not None:
        info.execution_duration.CopyFrom(to_duration(row.execution_duration_ns))
    return info


def _values(payloads: Mapping[str, Payload], custom: Mapping[str, int]) -> dict[str, SearchValue]:
    """All that can be searched by. What was set before its attribute was removed, or got another type, can't be."""
    values: dict[str, SearchValue] = {}
    for name, payload in payloads.items():
        type_number = type_of(name, custom)
        if type_number is None:
            continue
        try:
            value = to_value(payload, type_number)
        except WrongValue:
            continue
        if value is not None:
            values[name] = value
    return values
