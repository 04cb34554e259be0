"""A standalone Nexus operation as clients see it: its description, its outcome and its row in lists."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from temporalio.api.common.v1 import Link, Payload, SearchAttributes
from temporalio.api.enums.v1 import NexusOperationCancellationState, WorkflowExecutionStatus
from temporalio.api.enums.v1 import NexusOperationExecutionStatus as Status
from temporalio.api.enums.v1 import NexusOperationWaitStage as WaitStage
from temporalio.api.enums.v1 import PendingNexusOperationState as Pending
from temporalio.api.failure.v1 import Failure
from temporalio.api.nexus.v1 import (
    NexusOperationExecutionCancellationInfo,
    NexusOperationExecutionInfo,
)
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.api.workflowservice.v1 import (
    DescribeNexusOperationExecutionResponse,
    PollNexusOperationExecutionResponse,
)

from fairlead.api.entity_namespaces import entity_namespace_id
from fairlead.api.search.attributes import custom_values
from fairlead.api.standalone_nexus import ARCHETYPE, SERVICE
from fairlead.api.times import to_duration, to_timestamp
from fairlead.history.entities.standalone_nexus.state import Calls, Cancellation, OperationState, Phase
from fairlead.storage.visibility import VisibilityRow


class _Seen(NamedTuple):
    """A phase in the API, and its value in stores: a WorkflowExecutionStatus, so that the same queries work."""

    status: Status.ValueType
    stored: WorkflowExecutionStatus.ValueType
    pending: Pending.ValueType = Pending.PENDING_NEXUS_OPERATION_STATE_UNSPECIFIED


_RUNNING = (Status.NEXUS_OPERATION_EXECUTION_STATUS_RUNNING, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING)
_SEEN = {
    Phase.SCHEDULED: _Seen(*_RUNNING, Pending.PENDING_NEXUS_OPERATION_STATE_SCHEDULED),
    Phase.BACKING_OFF: _Seen(*_RUNNING, Pending.PENDING_NEXUS_OPERATION_STATE_BACKING_OFF),
    Phase.STARTED: _Seen(*_RUNNING, Pending.PENDING_NEXUS_OPERATION_STATE_STARTED),
    Phase.SUCCEEDED: _Seen(
        Status.NEXUS_OPERATION_EXECUTION_STATUS_COMPLETED, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED
    ),
    Phase.FAILED: _Seen(
        Status.NEXUS_OPERATION_EXECUTION_STATUS_FAILED, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED
    ),
    Phase.CANCELED: _Seen(
        Status.NEXUS_OPERATION_EXECUTION_STATUS_CANCELED, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CANCELED
    ),
    Phase.TERMINATED: _Seen(
        Status.NEXUS_OPERATION_EXECUTION_STATUS_TERMINATED, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED
    ),
    Phase.TIMED_OUT: _Seen(
        Status.NEXUS_OPERATION_EXECUTION_STATUS_TIMED_OUT, WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TIMED_OUT
    ),
}


def stored_status(state: OperationState) -> int:
    """The status in the operation's row."""
    return int(_SEEN[state.phase].stored)


def polled(state: OperationState) -> PollNexusOperationExecutionResponse:
    """The stage that the operation has reached, with its outcome if it has ended."""
    answer = PollNexusOperationExecutionResponse(
        run_id=state.run_id,
        operation_token=state.token,
        wait_stage=(
            WaitStage.NEXUS_OPERATION_WAIT_STAGE_STARTED
            if state.is_open
            else WaitStage.NEXUS_OPERATION_WAIT_STAGE_CLOSED
        ),
    )
    add_outcome(answer, state)
    return answer


def add_outcome(
    answer: PollNexusOperationExecutionResponse | DescribeNexusOperationExecutionResponse, state: OperationState
) -> None:
    """Add the result or the failure if the operation has ended."""
    if state.result is not None:
        answer.result.CopyFrom(Payload.FromString(state.result))
    elif state.failure is not None:
        answer.failure.CopyFrom(Failure.FromString(state.failure))


def info_of(state: OperationState, *, now_ns: int) -> NexusOperationExecutionInfo:
    """The description, without input and outcome."""
    seen = _SEEN[state.phase]
    info = NexusOperationExecutionInfo(
        operation_id=state.operation_id,
        run_id=state.run_id,
        endpoint=state.endpoint,
        service=state.service,
        operation=state.operation,
        status=seen.status,
        state=seen.pending,
        schedule_time=to_timestamp(state.scheduled_ns),
        execution_duration=to_duration(max(0, (state.closed_ns or now_ns) - state.scheduled_ns)),
        request_id=state.request_id,
        operation_token=state.token,
        state_transition_count=state.transitions,
        state_size_bytes=len(msgspec.msgpack.encode(state)),
        search_attributes=SearchAttributes.FromString(state.search_attributes),
        nexus_header=state.header,
        links=[Link.FromString(link) for link in state.links],
        identity=state.identity,
    )
    for name, duration_ns in (
        ("schedule_to_close_timeout", state.schedule_to_close_ns),
        ("schedule_to_start_timeout", state.schedule_to_start_ns),
        ("start_to_close_timeout", state.start_to_close_ns),
    ):
        if duration_ns:
            getattr(info, name).CopyFrom(to_duration(duration_ns))
    for name, time_ns in (("expiration_time", state.expires_ns), ("close_time", state.closed_ns)):
        if time_ns:
            getattr(info, name).CopyFrom(to_timestamp(time_ns))
    _add_calls(info, state.calls)
    if state.user_metadata is not None:
        info.user_metadata.CopyFrom(UserMetadata.FromString(state.user_metadata))
    if state.cancellation is not None:
        _add_cancellation(info.cancellation_info, state.cancellation)
    return info


def _add_cancellation(info: NexusOperationExecutionCancellationInfo, cancellation: Cancellation) -> None:
    info.reason = cancellation.reason
    info.state = NexusOperationCancellationState.ValueType(cancellation.state)
    _add_calls(info, cancellation.calls)


def _add_calls(info: NexusOperationExecutionInfo | NexusOperationExecutionCancellationInfo, calls: Calls) -> None:
    info.attempt = calls.attempt
    if calls.ended_ns:
        info.last_attempt_complete_time.CopyFrom(to_timestamp(calls.ended_ns))
    if calls.failure is not None:
        info.last_attempt_failure.CopyFrom(Failure.FromString(calls.failure))
    if calls.next_ns:
        info.next_attempt_schedule_time.CopyFrom(to_timestamp(calls.next_ns))


def row_of(state: OperationState, *, namespace_id: str, custom: Mapping[str, int]) -> VisibilityRow:
    """The operation's visibility row, in a namespace with these custom attributes."""
    is_closed = not state.is_open
    values = custom_values(SearchAttributes.FromString(state.search_attributes).indexed_fields, custom)
    return VisibilityRow(
        entity_namespace_id(namespace_id, ARCHETYPE),
        state.run_id,
        state.operation_id,
        state.operation,
        stored_status(state),
        state.scheduled_ns,
        state.scheduled_ns,
        state.endpoint,
        close_time_ns=state.closed_ns if is_closed else None,
        execution_duration_ns=max(0, state.closed_ns - state.scheduled_ns) if is_closed else None,
        state_transition_count=state.transitions if is_closed else None,
        search_attributes={**values, SERVICE: state.service},
    )
