"""A standalone activity as its worker, clients and lists see it."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
from temporalio.api.activity.v1 import (
    ActivityExecutionInfo,
    ActivityExecutionOutcome,
    ActivityOptions,
    CallbackInfo,
)
from temporalio.api.common.v1 import (
    ActivityType,
    Header,
    Link,
    Payloads,
    Priority,
    RetryPolicy,
    SearchAttributes,
    WorkflowExecution,
)
from temporalio.api.enums.v1 import ActivityExecutionStatus as Status
from temporalio.api.enums.v1 import CallbackState, PendingActivityState, TaskQueueKind, WorkflowExecutionStatus
from temporalio.api.failure.v1 import Failure
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollActivityTaskQueueResponse

from fairlead.api.entity_namespaces import entity_namespace_id
from fairlead.api.search.attributes import custom_values
from fairlead.api.standalone_activities import ARCHETYPE
from fairlead.api.times import to_duration, to_timestamp
from fairlead.api.tokens import ActivityTaskToken, encode_token
from fairlead.history.entities.standalone_activities.state import ActivityState, Phase
from fairlead.history.messages.activity_options import Options
from fairlead.storage.visibility import VisibilityRow


class _Seen(NamedTuple):
    """A phase in the API, and its value in stores: a WorkflowExecutionStatus, so that the same queries work."""

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


def stored_status(state: ActivityState) -> int:
    """The status in the activity's visibility row."""
    return int(_SEEN[state.phase].stored)


def worker_answer(state: ActivityState, *, namespace_id: str, namespace: str) -> PollActivityTaskQueueResponse:
    """The response to the poll of the worker that gets the attempt."""
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
        # Set, although empty: SDKs read this field.
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
    """The outcome of a closed activity."""
    return ActivityExecutionOutcome.FromString(state.outcome)


def options_answer(options: Options) -> ActivityOptions:
    """The options as an API message."""
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
    """The description, without input and outcome."""
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
        priority=None if options.priority is None else Priority.FromString(options.priority),
        sdk_name=state.sdk_name,
        sdk_version=state.sdk_version,
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


def callbacks_of(state: ActivityState) -> Iterator[CallbackInfo]:
    """The completion callbacks with their results."""
    waiting = CallbackState.CALLBACK_STATE_STANDBY if state.is_open else CallbackState.CALLBACK_STATE_SCHEDULED
    for registered in state.callbacks:
        callback = CallbackInfo()
        callback.trigger.activity_closed.SetInParent()
        info = callback.info
        info.callback.ParseFromString(registered.callback)
        info.registration_time.CopyFrom(to_timestamp(registered.registered_ns))
        info.state = waiting
        progress = registered.progress
        if progress is not None:
            info.state = CallbackState.ValueType(progress.state)
            info.attempt = progress.attempts
            info.last_attempt_complete_time.CopyFrom(to_timestamp(progress.ended_ns))
            if progress.failure is not None:
                info.last_attempt_failure.CopyFrom(Failure.FromString(progress.failure))
        yield callback


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


def _duration_ns(state: ActivityState) -> int:
    return max(0, state.closed_ns - state.scheduled_ns)


def row_of(state: ActivityState, *, namespace_id: str, custom: Mapping[str, int]) -> VisibilityRow:
    """The activity's visibility row, in a namespace with these custom attributes."""
    is_closed = not state.is_open
    return VisibilityRow(
        entity_namespace_id(namespace_id, ARCHETYPE),
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
        search_attributes=custom_values(SearchAttributes.FromString(state.search_attributes).indexed_fields, custom),
    )
