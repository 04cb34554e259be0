"""The step that fires timers."""

from temporalio.api.history.v1 import TimerFiredEventAttributes

from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_workflow_tasks import wake
from fairlead.history.state.pending import PendingTimer
from fairlead.history.state.run import RunState
from fairlead.history.state.tasks import UserTimer


def fire_timer(transaction: Transaction, due: UserTimer) -> bool:
    """Fire the timer; return False if it was canceled or has fired.

    All other due timers fire in the same step, ordered by time, so that one workflow task delivers all these events.
    """
    state = transaction.state
    timer = state.timers.get(due.timer_id) if state.is_open else None
    if (
        timer is None
        or not _is_running(state, timer)
        or (timer.started_event_id, timer.version) != (due.started_event_id, due.version)
    ):
        return False
    fired = [
        other
        for other in state.timers.values()
        if other is timer or (other.fire_at_ns <= transaction.now_ns and _is_running(state, other))
    ]
    for each in sorted(fired, key=lambda timer: (timer.fire_at_ns, timer.started_event_id)):
        transaction.add(TimerFiredEventAttributes(timer_id=each.timer_id, started_event_id=each.started_event_id))
        state.live.ending.add(each.started_event_id)
    wake(transaction)
    return True


def _is_running(state: RunState, timer: PendingTimer) -> bool:
    return timer.started_event_id not in state.live.ending
