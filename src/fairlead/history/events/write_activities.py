"""The steps of activities: started, heartbeating, and ended in one of four ways or tried again."""

from typing import NamedTuple

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payloads, RetryPolicy, WorkerVersionStamp
from temporalio.api.enums.v1 import RetryState, TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import (
    ActivityTaskCanceledEventAttributes,
    ActivityTaskCompletedEventAttributes,
    ActivityTaskFailedEventAttributes,
    ActivityTaskStartedEventAttributes,
    ActivityTaskTimedOutEventAttributes,
)

from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_workflow_tasks import wake
from fairlead.history.state.errors import BadRequest, NotPending
from fairlead.history.state.pending import ActivityProgress, PendingActivity
from fairlead.history.state.retry import RetryDecision, decide_retry, timeout_failure, timeout_name
from fairlead.history.state.run import RunState
from fairlead.history.state.tasks import ActivityRetry, ActivityTimeout, ActivityTimeoutKind, PushActivityTask

_FAILURE_SIZE_MAX = 4 * 1024
_OVERALL = (ActivityTimeoutKind.SCHEDULE_TO_START, ActivityTimeoutKind.SCHEDULE_TO_CLOSE)


class Heartbeat(NamedTuple):
    """What a worker hears when it reports that it still works."""

    cancel_requested: bool
    paused: bool
    reset: bool = False


def find_activity(state: RunState, activity_id: str) -> PendingActivity:
    """The open activity of an id that the workflow gave."""
    activity = state.open_activity(state.activity_ids.get(activity_id, 0))
    if activity is None:
        raise NotPending("invalid activityID or activity already timed out or invoking workflow is completed")
    return activity


def first_progress(activity: PendingActivity) -> ActivityProgress:
    """The first attempt of an activity, which nobody has yet; the same in every cluster."""
    return ActivityProgress(due_ns=activity.scheduled_ns, changed_version=activity.version)


def begin_attempts(transaction: Transaction, activity: PendingActivity, *, push: bool) -> ActivityProgress:
    """The first attempt of an activity that was just scheduled; `push` is false where its worker has it at once."""
    progress = transaction.state.live.activities[activity.scheduled_event_id] = first_progress(activity)
    if push:
        push_attempt(transaction, activity, progress)
    limit_all_attempts(transaction, activity, progress)
    return progress


def start_activity(
    transaction: Transaction,
    scheduled_event_id: int,
    *,
    request_id: str,
    identity: str,
    worker_version: WorkerVersionStamp | None = None,
    stamp: int | None = None,
) -> ActivityProgress:
    """Give the present attempt to a worker, once: the same request again gets the same answer."""
    activity, progress = _open(transaction.state, scheduled_event_id)
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


def heartbeat_activity(
    transaction: Transaction, scheduled_event_id: int, *, attempt: int | None, details: Payloads | None
) -> Heartbeat:
    """The worker still has it. The details are handed to the next attempt."""
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
    """The activity has a result. `attempt` is the one that the worker had, None if it does not say."""
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
    """The attempt failed: there is another one later, or the activity has failed. Says which, and why."""
    activity, progress = _started(transaction.state, scheduled_event_id, attempt, worker_version)
    if last_heartbeat_details is not None:
        progress.heartbeat_details = last_heartbeat_details.SerializeToString()
    decision = _retry(transaction, activity, progress, failure)
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
    """The worker ended it because it was asked to."""
    activity, progress = _started(transaction.state, scheduled_event_id, attempt)
    if not activity.cancel_requested_event_id:
        raise BadRequest("unable to mark activity as canceled without activity being request canceled first")
    _end(transaction, activity, progress, canceled_attributes(activity, details=details, identity=identity))


def canceled_attributes(
    activity: PendingActivity, *, details: Payloads | None, identity: str
) -> ActivityTaskCanceledEventAttributes:
    """What the event of an activity's cancellation says."""
    return ActivityTaskCanceledEventAttributes(
        details=details,
        latest_cancel_requested_event_id=activity.cancel_requested_event_id,
        scheduled_event_id=activity.scheduled_event_id,
        identity=identity,
    )


def time_out_activity(transaction: Transaction, due: ActivityTimeout) -> bool:
    """The attempt's or the activity's time ran out; false if that time means nothing any more.

    A heartbeat that came meanwhile moves the time on: then nothing is written but the new time.
    """
    state = transaction.state
    activity = state.open_activity(due.scheduled_event_id) if state.is_open else None
    progress = state.live.activities.get(due.scheduled_event_id)
    if activity is None or progress is None or not _is_due(activity, progress, due):
        return False
    if due.kind is ActivityTimeoutKind.HEARTBEAT:
        silent_until_ns = progress.heartbeat_at_ns + activity.heartbeat_ns
        if silent_until_ns > transaction.now_ns:
            _limit(transaction, activity, progress, ActivityTimeoutKind.HEARTBEAT, silent_until_ns)
            return True
    _time_out(transaction, activity, progress, due.kind)
    return True


def _is_due(activity: PendingActivity, progress: ActivityProgress, due: ActivityTimeout) -> bool:
    if due.version != activity.version:
        return False
    if due.kind is ActivityTimeoutKind.SCHEDULE_TO_CLOSE:
        # The time may be another one by now.
        return 0 < activity.schedule_to_close_ns <= due.fire_at_ns - activity.scheduled_ns
    is_started = due.kind is not ActivityTimeoutKind.SCHEDULE_TO_START
    return (progress.attempt, progress.stamp, progress.is_started) == (due.attempt, due.stamp, is_started)


def _time_out(
    transaction: Transaction, activity: PendingActivity, progress: ActivityProgress, kind: ActivityTimeoutKind
) -> None:
    timeout_type = TimeoutType.ValueType(kind)
    failure = timeout_failure(f"activity {timeout_name(timeout_type)} timeout", timeout_type)
    if kind in _OVERALL:
        decision = RetryDecision(None, RetryState.RETRY_STATE_TIMEOUT)
    else:
        decision = _retry(transaction, activity, progress, failure)
    if decision.backoff_ns is not None:
        return
    if decision.state == RetryState.RETRY_STATE_TIMEOUT and kind not in _OVERALL:
        # No time is left for another attempt, which is to say that the time for all of them is over.
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


def end_activity_backoff(transaction: Transaction, due: ActivityRetry) -> bool:
    """The wait before an attempt is over: it goes to matching; false if it is not the one that is waited for."""
    state = transaction.state
    activity = state.open_activity(due.scheduled_event_id) if state.is_open else None
    progress = state.live.activities.get(due.scheduled_event_id)
    if (
        activity is None
        or progress is None
        or progress.is_started
        or progress.paused
        or (activity.version, progress.attempt, progress.stamp) != (due.version, due.attempt, due.stamp)
    ):
        return False
    push_attempt(transaction, activity, progress)
    return True


def _retry(
    transaction: Transaction, activity: PendingActivity, progress: ActivityProgress, failure: Failure
) -> RetryDecision:
    """Make the next attempt out of this one, if there is to be one."""
    decision = _decide(transaction, activity, progress, failure)
    if decision.backoff_ns is None:
        return decision
    _next_attempt(transaction, progress, decision.backoff_ns)
    progress.last_failure = _kept_failure(failure).SerializeToString()
    progress.last_identity = progress.started_identity
    progress.started_ns = 0
    progress.started_request_id = ""
    progress.started_identity = ""
    progress.worker_version = None
    progress.heartbeat_at_ns = 0
    transaction.progressed(progress)
    if not progress.paused:
        await_attempt(transaction, activity, progress)
    return decision


def _next_attempt(transaction: Transaction, progress: ActivityProgress, backoff_ns: int) -> None:
    """Count the attempts on, or anew if that was asked for: then the first one is due at once."""
    progress.ended_ns = transaction.now_ns
    if progress.begins_anew:
        progress.attempt, backoff_ns = 1, 0
        # Tasks of the first attempt, as it was before, are void.
        progress.stamp += 1
        if progress.forgets_heartbeat:
            progress.heartbeat_details = None
        progress.begins_anew = progress.forgets_heartbeat = False
    else:
        progress.attempt += 1
    if not progress.paused:
        # One that is paused is due when it goes on.
        progress.due_ns = transaction.now_ns + backoff_ns


def await_attempt(transaction: Transaction, activity: PendingActivity, progress: ActivityProgress) -> None:
    """Have the attempt handed to matching when it is due."""
    transaction.add_task(
        ActivityRetry(
            version=activity.version,
            fire_at_ns=progress.due_ns,
            scheduled_event_id=activity.scheduled_event_id,
            attempt=progress.attempt,
            stamp=progress.stamp,
        )
    )


def limit_all_attempts(transaction: Transaction, activity: PendingActivity, progress: ActivityProgress) -> None:
    """Have the activity timed out when the time for all of its attempts is over, if it has one."""
    if activity.schedule_to_close_ns:
        due_ns = activity.scheduled_ns + activity.schedule_to_close_ns
        _limit(transaction, activity, progress, ActivityTimeoutKind.SCHEDULE_TO_CLOSE, due_ns)


def limit_attempt(transaction: Transaction, activity: PendingActivity, progress: ActivityProgress) -> None:
    """Have the attempt that a worker has timed out when it takes too long, or is silent for too long."""
    if activity.start_to_close_ns:
        due_ns = progress.started_ns + activity.start_to_close_ns
        _limit(transaction, activity, progress, ActivityTimeoutKind.START_TO_CLOSE, due_ns)
    if activity.heartbeat_ns:
        due_ns = progress.heartbeat_at_ns + activity.heartbeat_ns
        _limit(transaction, activity, progress, ActivityTimeoutKind.HEARTBEAT, due_ns)


def _decide(
    transaction: Transaction, activity: PendingActivity, progress: ActivityProgress, failure: Failure
) -> RetryDecision:
    if activity.retry_policy is None:
        return RetryDecision(None, RetryState.RETRY_STATE_RETRY_POLICY_NOT_SET)
    if activity.cancel_requested_event_id:
        return RetryDecision(None, RetryState.RETRY_STATE_CANCEL_REQUESTED)
    return decide_retry(
        RetryPolicy.FromString(activity.retry_policy),
        attempt=0 if progress.begins_anew else progress.attempt,
        failure=failure,
        now_ns=transaction.now_ns,
        expires_at_ns=activity.scheduled_ns + activity.schedule_to_close_ns if activity.schedule_to_close_ns else 0,
    )


def _kept_failure(failure: Failure) -> Failure:
    """A failure small enough to be kept in the state of the run."""
    if failure.ByteSize() <= _FAILURE_SIZE_MAX:
        return failure
    kept = Failure(message="Failure exceeds size limit.")
    kept.server_failure_info.SetInParent()
    kept.cause.message = failure.message[: _FAILURE_SIZE_MAX // 4]
    kept.cause.source = failure.source[: _FAILURE_SIZE_MAX // 16]
    return kept


def _end(transaction: Transaction, activity: PendingActivity, progress: ActivityProgress, attributes: Message) -> None:
    """Write the start, if a worker had the activity, and its end; and wake the workflow."""
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


def push_attempt(transaction: Transaction, activity: PendingActivity, progress: ActivityProgress) -> None:
    """Have the attempt handed to matching now, and timed out if nobody takes it there."""
    transaction.add_task(
        PushActivityTask(
            version=activity.version,
            scheduled_event_id=activity.scheduled_event_id,
            attempt=progress.attempt,
            stamp=progress.stamp,
            task_queue=activity.task_queue,
        )
    )
    if activity.schedule_to_start_ns:
        due_ns = progress.due_ns + activity.schedule_to_start_ns
        _limit(transaction, activity, progress, ActivityTimeoutKind.SCHEDULE_TO_START, due_ns)


def _limit(
    transaction: Transaction,
    activity: PendingActivity,
    progress: ActivityProgress,
    kind: ActivityTimeoutKind,
    due_ns: int,
) -> None:
    transaction.add_task(
        ActivityTimeout(
            version=activity.version,
            fire_at_ns=due_ns,
            scheduled_event_id=activity.scheduled_event_id,
            kind=kind,
            attempt=progress.attempt,
            stamp=progress.stamp,
        )
    )


def _open(state: RunState, scheduled_event_id: int) -> tuple[PendingActivity, ActivityProgress]:
    state.check_open()
    activity = state.open_activity(scheduled_event_id)
    if activity is None:
        raise NotPending("invalid activityID or activity already timed out or invoking workflow is completed")
    # A rebuilt state knows of no attempts: the first one is taken up again.
    progress = state.live.activities.setdefault(scheduled_event_id, first_progress(activity))
    return activity, progress


def _started(
    state: RunState,
    scheduled_event_id: int,
    attempt: int | None,
    worker_version: WorkerVersionStamp | None = None,
) -> tuple[PendingActivity, ActivityProgress]:
    """The activity that a worker has; if it says of which build it is, that is remembered."""
    activity, progress = _open(state, scheduled_event_id)
    if not progress.is_started or attempt not in (None, progress.attempt):
        raise NotPending("invalid activityID or activity already timed out or invoking workflow is completed")
    if worker_version is not None:
        progress.worker_version = worker_version.SerializeToString()
    return activity, progress
