"""Steps by which an operator controls a standalone activity: pause, unpause, reset, change options."""

from fairlead.api.errors import FailedPrecondition
from fairlead.history.entities.standalone_activities.machine import (
    Step,
    dispatch,
    forget_heartbeat,
    limit_all,
    limit_attempt,
)
from fairlead.history.entities.standalone_activities.state import AT_WORKER, ActivityState, Phase
from fairlead.history.messages.activity_options import Options


def pause(step: Step, *, request_id: str) -> None:
    """Begin no further attempts.

    A running attempt continues; the response to its next heartbeat has the pause flag.
    """
    state = step.state
    if state.phase in (Phase.PAUSED, Phase.PAUSE_REQUESTED) and state.pause_request_id == request_id:
        step.skip_write = True
        return
    if state.phase not in (Phase.SCHEDULED, Phase.STARTED):
        raise FailedPrecondition(f"activity is in non-pausable state {state.phase.title}")
    state.pause_request_id = request_id
    if state.phase is Phase.STARTED:
        state.phase = Phase.PAUSE_REQUESTED
        return
    state.phase = Phase.PAUSED
    # A new stamp invalidates the tasks that exist already for the waiting attempt.
    state.stamp += 1


def unpause(step: Step, *, request_id: str, jitter_ns: int) -> None:
    """Allow attempts again; a waiting attempt is due after its backoff and its jitter."""
    state = step.state
    if not state.is_open:
        raise FailedPrecondition(f"activity is in terminal state {state.phase.title}")
    if state.phase is Phase.PAUSED:
        state.phase = Phase.SCHEDULED
        _again(step, max(state.due_ns, step.now_ns) + jitter_ns)
    elif state.phase is Phase.PAUSE_REQUESTED:
        state.phase = Phase.STARTED
    elif state.phase is Phase.RESET_REQUESTED and state.stays_paused:
        state.stays_paused = False
    elif state.unpause_request_id == request_id:
        step.skip_write = True
    else:
        raise FailedPrecondition(f"activity is in non-unpausable state {state.phase.title}")
    state.unpause_request_id = request_id


def reset(step: Step, *, keep_paused: bool, forgets_heartbeat: bool, restores_options: bool, jitter_ns: int) -> None:
    """Reset the number of attempts to 1; the next attempt is due now.

    A running attempt continues until it fails.
    """
    state = step.state
    if not state.is_open:
        raise FailedPrecondition("activity execution is not running")
    if state.phase is Phase.CANCEL_REQUESTED:
        raise FailedPrecondition("cannot reset an activity with a pending cancellation")
    if restores_options:
        state.options = state.original
    if state.phase in AT_WORKER:
        was_paused = state.phase is Phase.PAUSE_REQUESTED or state.stays_paused
        state.phase = Phase.RESET_REQUESTED
        state.stays_paused = was_paused and keep_paused
        state.forgets_heartbeat = forgets_heartbeat
        if restores_options:
            limit_attempt(step)
            limit_all(step)
        return
    state.attempt = 1
    state.retry_interval_ns = 0
    if forgets_heartbeat:
        forget_heartbeat(state)
    if state.phase is Phase.PAUSED and keep_paused:
        state.due_ns = max(step.now_ns, _first_due_ns(state))
    else:
        state.phase = Phase.SCHEDULED
        _again(step, max(step.now_ns, _first_due_ns(state)) + jitter_ns)
    if restores_options:
        limit_all(step)


def update_options(step: Step, options: Options, *, sets_delay: bool) -> None:
    """Change the options, also those of the current attempt. The start delay can be changed only until it is over."""
    state = step.state
    if not state.is_open:
        raise FailedPrecondition(f"Cannot update options for activity in state {state.phase.title}")
    if sets_delay and (state.starts or state.attempt > 1 or state.due_ns <= step.now_ns):
        raise FailedPrecondition("cannot update start_delay: the first activity attempt has already been dispatched")
    state.options = options
    limit_all(step)
    if state.phase in AT_WORKER:
        limit_attempt(step)
        return
    due_ns = max(step.now_ns, state.execution_ns) if sets_delay else state.due_ns
    if state.phase is Phase.SCHEDULED:
        _again(step, due_ns)
    else:
        state.due_ns = due_ns


def _first_due_ns(state: ActivityState) -> int:
    """The end of the start delay, which unpause and reset don't shorten; 0 after the first start."""
    return state.execution_ns if not state.starts else 0


def _again(step: Step, due_ns: int) -> None:
    """Dispatch the attempt again; a new stamp invalidates the earlier task."""
    step.state.stamp += 1
    step.state.due_ns = due_ns
    dispatch(step)
