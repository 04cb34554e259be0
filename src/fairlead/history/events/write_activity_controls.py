"""The steps by which an operator intervenes in an activity: paused, unpaused, reset, with other options.

They leave no event.
"""

from temporalio.api.common.v1 import RetryPolicy

from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_activities import (
    await_attempt,
    first_progress,
    limit_all_attempts,
    limit_attempt,
)
from fairlead.history.state.errors import NotPending
from fairlead.history.state.pending import ActivityOptions, ActivityProgress, PendingActivity
from fairlead.history.state.retry import decide_retry


def pause_activity(
    transaction: Transaction,
    scheduled_event_id: int,
    *,
    identity: str = "",
    reason: str = "",
    request_id: str = "",
) -> None:
    """No attempt begins any more; one that a worker has goes on, and hears of it with its next heartbeat."""
    _activity, progress = _find(transaction, scheduled_event_id)
    if progress.paused:
        return
    progress.paused = True
    progress.paused_ns = transaction.now_ns
    progress.pause_identity = identity
    progress.pause_reason = reason
    progress.pause_request_id = request_id
    if not progress.is_started:
        # Tasks on their way for the attempt that waits are void.
        progress.stamp += 1
    transaction.progressed(progress)
    transaction.show()


def unpause_activity(transaction: Transaction, scheduled_event_id: int, *, jitter_ns: int = 0) -> None:
    """Attempts may begin again; the one that waits is due now, whatever its backoff was."""
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
    """Attempts are counted from 1 again, and the next one is due now.

    One that a worker has goes on until it fails; the worker hears of it with its next heartbeat.
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
    """Give it these options, or none but its first ones: for the attempt that waits or runs, and for those to come."""
    before, progress = _find(transaction, scheduled_event_id)
    progress.options = options
    transaction.progressed(progress)
    activity, _ = _find(transaction, scheduled_event_id)
    has_other_policy = activity.retry_policy != before.retry_policy
    # Tasks on their way, and times that were set, are by the old ones.
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
    """The attempt that waits is not the consequence of a failure any more, so Temporal has it, but of the operator."""
    progress.last_failure = None


def _due_ns(activity: PendingActivity, progress: ActivityProgress) -> int:
    """When the attempt that waits is due by the policy that the activity has now."""
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
    progress.pause_identity = progress.pause_reason = progress.pause_request_id = ""
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
