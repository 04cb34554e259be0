"""The steps by which an operator intervenes in an activity: paused, unpaused, reset. They leave no event."""

from fairlead.history.events.transaction import Transaction
from fairlead.history.state.errors import NotPending
from fairlead.history.state.pending import ActivityProgress, PendingActivity
from fairlead.history.state.tasks import ActivityRetry


def pause_activity(transaction: Transaction, scheduled_event_id: int) -> None:
    """No attempt begins any more; one that a worker has goes on, and hears of it with its next heartbeat."""
    _activity, progress = _find(transaction, scheduled_event_id)
    if progress.paused:
        return
    progress.paused = True
    if not progress.is_started:
        # Tasks on their way for the attempt that waits are void.
        progress.stamp += 1


def unpause_activity(transaction: Transaction, scheduled_event_id: int, *, jitter_ns: int = 0) -> None:
    """Attempts may begin again; the one that waits is due when its backoff is over, but not before now."""
    activity, progress = _find(transaction, scheduled_event_id)
    if not progress.paused:
        return
    progress.paused = False
    if not progress.is_started:
        _resume(transaction, activity, progress, max(progress.due_ns, transaction.now_ns) + jitter_ns)


def reset_activity(
    transaction: Transaction, scheduled_event_id: int, *, keep_paused: bool = False, reset_heartbeat: bool = False
) -> None:
    """Attempts are counted from 1 again, and the next one is due now; one that a worker has goes on until it fails."""
    activity, progress = _find(transaction, scheduled_event_id)
    progress.attempt = 1
    if reset_heartbeat:
        progress.heartbeat_details = None
    if not keep_paused:
        progress.paused = False
    if not progress.is_started and not progress.paused:
        _resume(transaction, activity, progress, transaction.now_ns)


def _resume(transaction: Transaction, activity: PendingActivity, progress: ActivityProgress, due_ns: int) -> None:
    progress.stamp += 1
    progress.due_ns = due_ns
    transaction.add_task(
        ActivityRetry(
            version=transaction.version,
            fire_at_ns=due_ns,
            scheduled_event_id=activity.scheduled_event_id,
            attempt=progress.attempt,
            stamp=progress.stamp,
        )
    )


def _find(transaction: Transaction, scheduled_event_id: int) -> tuple[PendingActivity, ActivityProgress]:
    state = transaction.state
    state.check_open()
    activity = state.open_activity(scheduled_event_id)
    if activity is None:
        raise NotPending("invalid activityID or activity already timed out or invoking workflow is completed")
    progress = state.live.activities.setdefault(scheduled_event_id, ActivityProgress(due_ns=activity.scheduled_ns))
    return activity, progress
