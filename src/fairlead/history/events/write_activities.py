"""The steps of activities: start, heartbeat, complete, fail, cancel, time out, retry."""

from typing import NamedTuple

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payloads, WorkerVersionStamp
from temporalio.api.enums.v1 import RetryState, TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import (
    ActivityTaskCanceledEventAttributes,
    ActivityTaskCompletedEventAttributes,
    ActivityTaskFailedEventAttributes,
    ActivityTaskStartedEventAttributes,
    ActivityTaskTimedOutEventAttributes,
)

from fairlead.api.retry import RetryDecision, timeout_failure, timeout_name
from fairlead.history.events.activity_attempts import (
    add_timeout,
    is_activity_timeout_due,
    limit_attempt,
    open_activity_of,
    retry_attempt,
)
from fairlead.history.events.activity_pauses import pause_by_rule
from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_workflow_tasks import wake
from fairlead.history.state.errors import BadRequest, NotPending
from fairlead.history.state.pending import ActivityProgress, PendingActivity
from fairlead.history.state.run import RunState
from fairlead.history.state.tasks import ActivityTimeout, ActivityTimeoutKind

_OVERALL = (ActivityTimeoutKind.SCHEDULE_TO_START, ActivityTimeoutKind.SCHEDULE_TO_CLOSE)


class Heartbeat(NamedTuple):
    """The response to a heartbeat."""

    cancel_requested: bool
    paused: bool
    reset: bool = False


def find_activity(state: RunState, activity_id: str) -> PendingActivity:
    """The open activity with this activity id."""
    activity = state.open_activity(state.activity_ids.get(activity_id, 0))
    if activity is None:
        raise NotPending(
            f"cannot find pending activity with ActivityID {activity_id}, "
            "check workflow execution history for more details"
        )
    return activity


def start_activity(
    transaction: Transaction,
    scheduled_event_id: int,
    *,
    request_id: str,
    identity: str,
    worker_version: WorkerVersionStamp | None = None,
    stamp: int | None = None,
) -> ActivityProgress:
    """Give the current attempt to a worker. A retry of the same request gets the same response."""
    activity, progress = open_activity_of(transaction.state, scheduled_event_id)
    if stamp is not None and stamp != progress.stamp:
        raise NotPending("Activity task with this stamp not found.")
    if progress.is_started:
        if progress.started_request_id == request_id:
            return progress
        raise NotPending("Activity task already started.")
    progress.started_ns = transaction.now_ns
    progress.started_request_id = request_id
    progress.started_identity = identity
    progress.started_version = transaction.version
    progress.heartbeat_at_ns = transaction.now_ns
    progress.worker_version = worker_version.SerializeToString() if worker_version is not None else None
    transaction.progressed(progress)
    limit_attempt(transaction, activity, progress)
    return progress


def pause_first_attempt(transaction: Transaction, scheduled_event_id: int, stamp: int) -> bool:
    """Whether a workflow rule has paused a first attempt that a worker was about to get.

    For later attempts, rules are applied when the previous attempt ends, and when the backoff is over.
    """
    activity, progress = open_activity_of(transaction.state, scheduled_event_id)
    if progress.attempt > 1 or progress.is_started or progress.stamp != stamp:
        return False
    return pause_by_rule(transaction, activity, progress)


def heartbeat_activity(
    transaction: Transaction, scheduled_event_id: int, *, attempt: int | None, details: Payloads | None
) -> Heartbeat:
    """Record a heartbeat; the next attempt gets the details."""
    activity, progress = _started(transaction.state, scheduled_event_id, attempt)
    progress.heartbeat_at_ns = transaction.now_ns
    progress.heartbeat_details = details.SerializeToString() if details is not None else None
    transaction.progressed(progress)
    return Heartbeat(
        cancel_requested=activity.cancel_requested_event_id > 0, paused=progress.paused, reset=progress.begins_anew
    )


def complete_activity(
    transaction: Transaction,
    scheduled_event_id: int,
    *,
    attempt: int | None,
    result: Payloads | None,
    identity: str,
    worker_version: WorkerVersionStamp | None = None,
) -> None:
    """Complete the activity. `attempt` is the worker's attempt, or None if the request does not contain it."""
    activity, progress = _started(transaction.state, scheduled_event_id, attempt, worker_version)
    _end(
        transaction,
        activity,
        progress,
        ActivityTaskCompletedEventAttributes(result=result, scheduled_event_id=scheduled_event_id, identity=identity),
    )


def fail_activity(
    transaction: Transaction,
    scheduled_event_id: int,
    *,
    attempt: int | None,
    failure: Failure,
    identity: str,
    last_heartbeat_details: Payloads | None = None,
    worker_version: WorkerVersionStamp | None = None,
) -> RetryState.ValueType:
    """Fail the attempt; then schedule a retry, or fail the activity. Returns the retry state."""
    activity, progress = _started(transaction.state, scheduled_event_id, attempt, worker_version)
    if last_heartbeat_details is not None:
        progress.heartbeat_details = last_heartbeat_details.SerializeToString()
    decision = retry_attempt(transaction, activity, progress, failure)
    if decision.backoff_ns is None:
        _end(
            transaction,
            activity,
            progress,
            ActivityTaskFailedEventAttributes(
                failure=failure,
                scheduled_event_id=scheduled_event_id,
                identity=identity,
                retry_state=decision.state,
            ),
        )
    return decision.state


def cancel_activity(
    transaction: Transaction,
    scheduled_event_id: int,
    *,
    attempt: int | None,
    details: Payloads | None,
    identity: str,
) -> None:
    """Cancel the activity: the worker ended it after a cancel request."""
    activity, progress = _started(transaction.state, scheduled_event_id, attempt)
    if not activity.cancel_requested_event_id:
        raise BadRequest("unable to mark activity as canceled without activity being request canceled first")
    _end(transaction, activity, progress, canceled_attributes(activity, details=details, identity=identity))


def canceled_attributes(
    activity: PendingActivity, *, details: Payloads | None, identity: str
) -> ActivityTaskCanceledEventAttributes:
    """The attributes of an ActivityTaskCanceled event."""
    return ActivityTaskCanceledEventAttributes(
        details=details,
        latest_cancel_requested_event_id=activity.cancel_requested_event_id,
        scheduled_event_id=activity.scheduled_event_id,
        identity=identity,
    )


def time_out_activity(transaction: Transaction, due: ActivityTimeout) -> bool:
    """Time out the attempt or the activity; return False if the timeout no longer applies.

    If a heartbeat arrived in the meantime, only postpone the timeout.
    """
    state = transaction.state
    if not is_activity_timeout_due(state, due):
        return False
    activity, progress = open_activity_of(state, due.scheduled_event_id)
    if due.kind is ActivityTimeoutKind.HEARTBEAT:
        silent_until_ns = progress.heartbeat_at_ns + activity.heartbeat_ns
        if silent_until_ns > transaction.now_ns:
            add_timeout(transaction, activity, progress, ActivityTimeoutKind.HEARTBEAT, silent_until_ns)
            return True
    _time_out(transaction, activity, progress, due.kind)
    return True


def _time_out(
    transaction: Transaction, activity: PendingActivity, progress: ActivityProgress, kind: ActivityTimeoutKind
) -> None:
    timeout_type = TimeoutType.ValueType(kind)
    failure = timeout_failure(f"activity {timeout_name(timeout_type)} timeout", timeout_type)
    if kind in _OVERALL:
        decision = RetryDecision(None, RetryState.RETRY_STATE_TIMEOUT)
    else:
        decision = retry_attempt(transaction, activity, progress, failure)
    if decision.backoff_ns is not None:
        return
    if decision.state == RetryState.RETRY_STATE_TIMEOUT and kind not in _OVERALL:
        # There is no time left for another attempt: report a schedule-to-close timeout.
        timeout_type = TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE
        failure = timeout_failure(f"activity {timeout_name(timeout_type)} timeout", timeout_type)
    if progress.heartbeat_details is not None:
        failure.timeout_failure_info.last_heartbeat_details.ParseFromString(progress.heartbeat_details)
    if progress.last_failure is not None:
        failure.cause.ParseFromString(progress.last_failure)
    _end(
        transaction,
        activity,
        progress,
        ActivityTaskTimedOutEventAttributes(
            failure=failure, scheduled_event_id=activity.scheduled_event_id, retry_state=decision.state
        ),
    )


def _end(transaction: Transaction, activity: PendingActivity, progress: ActivityProgress, attributes: Message) -> None:
    """Write the end, and before it the start if a worker had the activity; then wake the workflow."""
    if progress.is_started:
        transaction.add(_started_attributes(activity, progress), time_ns=progress.started_ns)
    live = transaction.state.live
    live.ending.add(activity.scheduled_event_id)
    live.activities.pop(activity.scheduled_event_id, None)
    transaction.add(attributes)
    wake(transaction)


def _started_attributes(activity: PendingActivity, progress: ActivityProgress) -> ActivityTaskStartedEventAttributes:
    failure, stamp = progress.last_failure, progress.worker_version
    return ActivityTaskStartedEventAttributes(
        scheduled_event_id=activity.scheduled_event_id,
        identity=progress.started_identity,
        request_id=progress.started_request_id,
        attempt=progress.attempt,
        last_failure=Failure.FromString(failure) if failure is not None else None,
        worker_version=WorkerVersionStamp.FromString(stamp) if stamp is not None else None,
    )


def _started(
    state: RunState,
    scheduled_event_id: int,
    attempt: int | None,
    worker_version: WorkerVersionStamp | None = None,
) -> tuple[PendingActivity, ActivityProgress]:
    """The activity that a worker has; also stores the worker's build if the request contains it."""
    activity, progress = open_activity_of(state, scheduled_event_id)
    if not progress.is_started or attempt not in (None, progress.attempt):
        raise NotPending("invalid activityID or activity already timed out or invoking workflow is completed")
    if worker_version is not None:
        progress.worker_version = worker_version.SerializeToString()
    return activity, progress
