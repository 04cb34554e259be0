"""The steps by which an operator controls an activity: pause, unpause, reset, change options.

The steps write no events.
"""

from temporalio.api.common.v1 import RetryPolicy

from fairlead.api.retry import decide_retry
from fairlead.history.events.activity_attempts import await_attempt, first_progress, limit_all_attempts, limit_attempt
from fairlead.history.events.activity_pauses import pause_attempts
from fairlead.history.events.transaction import Transaction
from fairlead.history.state.errors import NotPending
from fairlead.history.state.pending import ActivityOptions, ActivityProgress, PendingActivity


def pause_activity(
    transaction: Transaction,
    scheduled_event_id: int,
    *,
    identity: str = "",
    reason: str = "",
    request_id: str = "",
) -> None:
    """Begin no further attempts.

    A running attempt continues; the response to its next heartbeat has the pause flag.
    """
    _activity, progress = _find(transaction, scheduled_event_id)
    if progress.paused:
        return
    pause_attempts(transaction, progress, identity=identity, reason=reason, request_id=request_id)


def unpause_activity(transaction: Transaction, scheduled_event_id: int, *, jitter_ns: int = 0) -> None:
    """Allow attempts again; a waiting attempt is due at once, even if its backoff is not over."""
    activity, progress = _find(transaction, scheduled_event_id)
    if not progress.paused:
        return
    _unpause(transaction, progress)
    transaction.progressed(progress)
    if not progress.is_started:
        _forget_failure(progress)
        _resume(transaction, activity, progress, transaction.now_ns + jitter_ns)


def reset_activity(
    transaction: Transaction,
    scheduled_event_id: int,
    *,
    keep_paused: bool = False,
    reset_heartbeat: bool = False,
    jitter_ns: int = 0,
) -> None:
    """Reset the number of attempts to 1; an attempt whose backoff is running is due at once.

    A running attempt continues and counts as the first attempt; the response to its next heartbeat has the reset flag.
    """
    activity, progress = _find(transaction, scheduled_event_id)
    transaction.progressed(progress)
    if progress.paused and not keep_paused:
        _unpause(transaction, progress)
    if progress.is_started:
        progress.begins_anew = True
        progress.forgets_heartbeat = progress.forgets_heartbeat or reset_heartbeat
        return
    progress.attempt = 1
    _forget_failure(progress)
    if reset_heartbeat:
        progress.heartbeat_details = None
    if not progress.paused:
        _resume(transaction, activity, progress, transaction.now_ns + jitter_ns)


def change_activity_options(transaction: Transaction, scheduled_event_id: int, options: ActivityOptions | None) -> None:
    """Set the activity's options for the current and later attempts; None restores the original options."""
    before, progress = _find(transaction, scheduled_event_id)
    progress.options = options
    transaction.progressed(progress)
    activity, _ = _find(transaction, scheduled_event_id)
    has_other_policy = activity.retry_policy != before.retry_policy
    # A new stamp invalidates the tasks and timeouts with the old options.
    progress.stamp += 1
    limit_all_attempts(transaction, activity, progress)
    if progress.is_started:
        limit_attempt(transaction, activity, progress)
        return
    _forget_failure(progress)
    if has_other_policy and progress.attempt > 1:
        progress.due_ns = _due_ns(activity, progress)
    if not progress.paused:
        _resume(transaction, activity, progress, progress.due_ns)


def _forget_failure(progress: ActivityProgress) -> None:
    """Drop the last failure, as Temporal does: the operator is the reason for the waiting attempt, not the failure."""
    progress.last_failure = None


def _due_ns(activity: PendingActivity, progress: ActivityProgress) -> int:
    """The time at which the waiting attempt is due according to the activity's current retry policy."""
    if activity.retry_policy is None or not progress.ended_ns:
        return progress.due_ns
    policy = RetryPolicy.FromString(activity.retry_policy)
    decision = decide_retry(
        policy, attempt=progress.attempt - 1, failure=None, now_ns=progress.ended_ns, expires_at_ns=0
    )
    return progress.due_ns if decision.backoff_ns is None else progress.ended_ns + decision.backoff_ns


def _unpause(transaction: Transaction, progress: ActivityProgress) -> None:
    progress.paused = False
    progress.paused_ns = 0
    progress.pause_identity = progress.pause_reason = progress.pause_request_id = progress.pause_rule_id = ""
    transaction.show()


def _resume(transaction: Transaction, activity: PendingActivity, progress: ActivityProgress, due_ns: int) -> None:
    progress.stamp += 1
    progress.due_ns = due_ns
    await_attempt(transaction, activity, progress)


def _find(transaction: Transaction, scheduled_event_id: int) -> tuple[PendingActivity, ActivityProgress]:
    state = transaction.state
    state.check_open()
    activity = state.open_activity(scheduled_event_id)
    if activity is None:
        raise NotPending("invalid activityID or activity already timed out or invoking workflow is completed")
    progress = state.live.activities.setdefault(scheduled_event_id, first_progress(activity))
    return activity, progress
