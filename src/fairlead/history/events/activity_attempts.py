"""Attempts of activities: their retries, backoffs and time limits."""

from temporalio.api.common.v1 import RetryPolicy
from temporalio.api.enums.v1 import RetryState
from temporalio.api.failure.v1 import Failure

from fairlead.api.retry import RetryDecision, decide_retry
from fairlead.history.events.activity_pauses import pause_by_rule
from fairlead.history.events.transaction import Transaction
from fairlead.history.state.errors import NotPending
from fairlead.history.state.pending import ActivityProgress, PendingActivity
from fairlead.history.state.run import RunState
from fairlead.history.state.tasks import ActivityRetry, ActivityTimeout, ActivityTimeoutKind, PushActivityTask

_FAILURE_SIZE_MAX = 4 * 1024


def begin_attempts(transaction: Transaction, activity: PendingActivity, *, push: bool) -> ActivityProgress:
    """Begin the first attempt of an activity that was just scheduled; `push` is false for an eager activity."""
    progress = transaction.state.live.activities[activity.scheduled_event_id] = first_progress(activity)
    if push:
        push_attempt(transaction, activity, progress)
    limit_all_attempts(transaction, activity, progress)
    return progress


def is_activity_timeout_due(state: RunState, due: ActivityTimeout) -> bool:
    """Whether the timeout still applies to the current attempt, or to the activity as a whole."""
    activity = state.open_activity(due.scheduled_event_id) if state.is_open else None
    progress = state.live.activities.get(due.scheduled_event_id)
    return activity is not None and progress is not None and _is_due(activity, progress, due)


def _is_due(activity: PendingActivity, progress: ActivityProgress, due: ActivityTimeout) -> bool:
    if due.version != activity.version:
        return False
    if due.kind is ActivityTimeoutKind.SCHEDULE_TO_CLOSE:
        # Compare with the current timeout: the activity's options may have changed since the task was added.
        return 0 < activity.schedule_to_close_ns <= due.fire_at_ns - activity.scheduled_ns
    is_started = due.kind is not ActivityTimeoutKind.SCHEDULE_TO_START
    return (progress.attempt, progress.stamp, progress.is_started) == (due.attempt, due.stamp, is_started)


def end_activity_backoff(transaction: Transaction, due: ActivityRetry) -> bool:
    """Push the attempt to matching after its backoff; return False if the task is for another attempt.

    A workflow rule may pause the activity instead.
    """
    if not is_activity_retry_due(transaction.state, due):
        return False
    activity, progress = open_activity_of(transaction.state, due.scheduled_event_id)
    if not pause_by_rule(transaction, activity, progress):
        push_attempt(transaction, activity, progress)
    return True


def is_activity_retry_due(state: RunState, due: ActivityRetry) -> bool:
    """Whether the task is for the attempt whose backoff is running."""
    activity = state.open_activity(due.scheduled_event_id) if state.is_open else None
    progress = state.live.activities.get(due.scheduled_event_id)
    return (
        activity is not None
        and progress is not None
        and not progress.is_started
        and not progress.paused
        and (activity.version, progress.attempt, progress.stamp) == (due.version, due.attempt, due.stamp)
    )


def retry_attempt(
    transaction: Transaction, activity: PendingActivity, progress: ActivityProgress, failure: Failure
) -> RetryDecision:
    """Prepare the next attempt if the retry policy allows one."""
    decision = _decide(transaction, activity, progress, failure)
    if decision.backoff_ns is None:
        return decision
    pause_by_rule(transaction, activity, progress)
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
    """Increment the attempt number.

    After a reset, the attempt that has just ended counts as the first attempt.
    """
    progress.ended_ns = transaction.now_ns
    if progress.begins_anew:
        progress.attempt = progress.counted_attempt + 1
        # A new stamp invalidates the tasks of an earlier attempt with the same number.
        progress.stamp += 1
        if progress.forgets_heartbeat:
            progress.heartbeat_details = None
        progress.begins_anew = progress.forgets_heartbeat = False
    else:
        progress.attempt += 1
    if not progress.paused:
        # For a paused activity, `due_ns` is set when it is unpaused.
        progress.due_ns = transaction.now_ns + backoff_ns


def await_attempt(transaction: Transaction, activity: PendingActivity, progress: ActivityProgress) -> None:
    """Add the task that pushes the attempt to matching when it is due."""
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
    """Add the schedule-to-close timeout, if the activity has one."""
    if activity.schedule_to_close_ns:
        due_ns = activity.scheduled_ns + activity.schedule_to_close_ns
        add_timeout(transaction, activity, progress, ActivityTimeoutKind.SCHEDULE_TO_CLOSE, due_ns)


def limit_attempt(transaction: Transaction, activity: PendingActivity, progress: ActivityProgress) -> None:
    """Add the start-to-close and heartbeat timeouts of a started attempt."""
    if activity.start_to_close_ns:
        due_ns = progress.started_ns + activity.start_to_close_ns
        add_timeout(transaction, activity, progress, ActivityTimeoutKind.START_TO_CLOSE, due_ns)
    if activity.heartbeat_ns:
        due_ns = progress.heartbeat_at_ns + activity.heartbeat_ns
        add_timeout(transaction, activity, progress, ActivityTimeoutKind.HEARTBEAT, due_ns)


def _decide(
    transaction: Transaction, activity: PendingActivity, progress: ActivityProgress, failure: Failure
) -> RetryDecision:
    if activity.retry_policy is None:
        return RetryDecision(None, RetryState.RETRY_STATE_RETRY_POLICY_NOT_SET)
    if activity.cancel_requested_event_id:
        return RetryDecision(None, RetryState.RETRY_STATE_CANCEL_REQUESTED)
    return decide_retry(
        RetryPolicy.FromString(activity.retry_policy),
        attempt=progress.counted_attempt,
        failure=failure,
        now_ns=transaction.now_ns,
        expires_at_ns=activity.scheduled_ns + activity.schedule_to_close_ns if activity.schedule_to_close_ns else 0,
    )


def _kept_failure(failure: Failure) -> Failure:
    """The failure, truncated to the size that the run's state may hold."""
    if failure.ByteSize() <= _FAILURE_SIZE_MAX:
        return failure
    kept = Failure(message="Failure exceeds size limit.")
    kept.server_failure_info.SetInParent()
    kept.cause.message = failure.message[: _FAILURE_SIZE_MAX // 4]
    kept.cause.source = failure.source[: _FAILURE_SIZE_MAX // 16]
    return kept


def push_attempt(transaction: Transaction, activity: PendingActivity, progress: ActivityProgress) -> None:
    """Push the attempt to matching now, and add its schedule-to-start timeout."""
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
        add_timeout(transaction, activity, progress, ActivityTimeoutKind.SCHEDULE_TO_START, due_ns)


def add_timeout(
    transaction: Transaction,
    activity: PendingActivity,
    progress: ActivityProgress,
    kind: ActivityTimeoutKind,
    due_ns: int,
) -> None:
    """Add the task for a timeout of the current attempt."""
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


def first_progress(activity: PendingActivity) -> ActivityProgress:
    """The progress of the first attempt before a worker has it; equal in every cluster."""
    return ActivityProgress(due_ns=activity.scheduled_ns, changed_version=activity.version)


def open_activity_of(state: RunState, scheduled_event_id: int) -> tuple[PendingActivity, ActivityProgress]:
    """The activity and its progress; raise an error if the run or the activity is closed."""
    state.check_open()
    activity = state.open_activity(scheduled_event_id)
    if activity is None:
        raise NotPending("invalid activityID or activity already timed out or invoking workflow is completed")
    # A rebuilt state has no progress: begin again with the first attempt.
    progress = state.live.activities.setdefault(scheduled_event_id, first_progress(activity))
    return activity, progress
