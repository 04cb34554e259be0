"""Pending work of a run: activities with their attempts, timers, children and Nexus operations."""

from collections.abc import Mapping

from msgspec import Struct
from temporalio.api.enums.v1 import PendingActivityState, PendingNexusOperationState
from temporalio.api.workflow.v1 import PendingActivityInfo, PendingChildExecutionInfo, PendingNexusOperationInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse

from fairlead.console import text


class ShownActivity(Struct, frozen=True, kw_only=True):
    """A pending activity. `failed_s` is the end of its last attempt, None while the first one runs or waits."""

    id: str
    type: str
    state: str
    task_queue: str
    attempt: int
    attempts_max: int
    scheduled_s: float | None
    started_s: float | None
    failed_s: float | None
    heartbeat_s: float | None
    next_s: float | None
    failure: str
    worker: str
    is_paused: bool


class Waiting(Struct, frozen=True, kw_only=True):
    """A pending timer, child or Nexus operation.

    `until_s` is the time at which the timer fires, or at which the next attempt begins. `run` is the run of a child,
    empty if it has not started yet.
    """

    kind: str
    name: str
    detail: str = ""
    until_s: float | None = None
    attempt: int = 0
    failure: str = ""
    run: str = ""


def pending_activities(described: DescribeWorkflowExecutionResponse) -> list[ShownActivity]:
    """The pending activities of a run."""
    return [_activity(one) for one in described.pending_activities]


def waiting(described: DescribeWorkflowExecutionResponse, timers: Mapping[str, float]) -> list[Waiting]:
    """Timers in the order in which they fire, children, and Nexus operations."""
    found = [
        Waiting(kind="timer", name=name, until_s=until_s)
        for name, until_s in sorted(timers.items(), key=lambda timer: timer[1])
    ]
    found += [_child(one) for one in described.pending_children]
    return found + [_nexus(one) for one in described.pending_nexus_operations]


def _child(info: PendingChildExecutionInfo) -> Waiting:
    return Waiting(kind="child", name=info.workflow_id, detail=info.workflow_type_name, run=info.run_id)


def _nexus(info: PendingNexusOperationInfo) -> Waiting:
    state = PendingNexusOperationState.Name(info.state).removeprefix("PENDING_NEXUS_OPERATION_STATE_")
    return Waiting(
        kind="nexus",
        name=f"{info.service}/{info.operation} at {info.endpoint}",
        detail=info.blocked_reason or state.replace("_", " ").lower(),
        until_s=text.seconds_of(info.next_attempt_schedule_time),
        attempt=info.attempt,
        failure=failure_text(info.last_attempt_failure.message, info.last_attempt_failure.cause.message),
    )


def _activity(info: PendingActivityInfo) -> ShownActivity:
    return ShownActivity(
        id=info.activity_id,
        type=info.activity_type.name,
        state="paused" if info.paused else _state(info.state),
        task_queue=info.activity_options.task_queue.name,
        attempt=info.attempt,
        attempts_max=info.maximum_attempts,
        # The time of an attempt that waits is its next time.
        scheduled_s=None if info.next_attempt_schedule_time.seconds else text.seconds_of(info.scheduled_time),
        started_s=text.seconds_of(info.last_started_time),
        failed_s=text.seconds_of(info.last_attempt_complete_time),
        heartbeat_s=text.seconds_of(info.last_heartbeat_time),
        next_s=text.seconds_of(info.next_attempt_schedule_time),
        failure=failure_text(info.last_failure.message, info.last_failure.cause.message),
        worker=info.last_worker_identity,
        is_paused=info.paused,
    )


def failure_text(message: str, cause: str) -> str:
    """The message of a failure with that of its cause."""
    return f"{message}: {cause}" if cause and cause != message else message


def _state(state: PendingActivityState.ValueType) -> str:
    return PendingActivityState.Name(state).removeprefix("PENDING_ACTIVITY_STATE_").replace("_", " ").lower()
