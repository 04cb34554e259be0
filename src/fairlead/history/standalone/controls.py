"""How an operator intervenes in an activity that stands alone: pause, go on, begin anew, change the options."""

from fairlead.history.refusals import failed_precondition
from fairlead.history.standalone.machine import Step, dispatch, forget_heartbeat, limit_all, limit_attempt
from fairlead.history.standalone.state import AT_WORKER, ActivityState, Options, Phase


def pause(step: Step, *, request_id: str) -> None:
    """No attempt begins any more; one that a worker has goes on, and hears of it with its next heartbeat."""
    state = step.state
    if state.phase in (Phase.PAUSED, Phase.PAUSE_REQUESTED) and state.pause_request_id == request_id:
        step.skip_write = True
        return
    if state.phase not in (Phase.SCHEDULED, Phase.STARTED):
        raise failed_precondition(f"activity is in non-pausable state {state.phase.title}")
    state.pause_request_id = request_id
    if state.phase is Phase.STARTED:
        state.phase = Phase.PAUSE_REQUESTED
        return
    state.phase = Phase.PAUSED
    # Tasks on their way for the attempt that waits are void.
    state.stamp += 1


def unpause(step: Step, *, request_id: str, jitter_ns: int) -> None:
    """Attempts may begin again; the one that waits is due when its backoff is over, but not before now."""
    state = step.state
    if not state.is_open:
        raise failed_precondition(f"activity is in terminal state {state.phase.title}")
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
        raise failed_precondition(f"activity is in non-unpausable state {state.phase.title}")
    state.unpause_request_id = request_id


def reset(step: Step, *, keep_paused: bool, forgets_heartbeat: bool, restores_options: bool, jitter_ns: int) -> None:
    """Attempts are counted from 1 again, and the next one is due now; one that a worker has goes on until it fails."""
    state = step.state
    if not state.is_open:
        raise failed_precondition("activity execution is not running")
    if state.phase is Phase.CANCEL_REQUESTED:
        raise failed_precondition("cannot reset an activity with a pending cancellation")
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
    """Take other options, from now on and for the attempt that waits or runs; the delay only while it is waited for."""
    state = step.state
    if not state.is_open:
        raise failed_precondition(f"Cannot update options for activity in state {state.phase.title}")
    if sets_delay and (state.starts or state.attempt > 1 or state.due_ns <= step.now_ns):
        raise failed_precondition("cannot update start_delay: the first activity attempt has already been dispatched")
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
    """A start delay is waited for, whatever else happens."""
    return state.execution_ns if not state.starts else 0


def _again(step: Step, due_ns: int) -> None:
    """What was offered to workers is void: the attempt is offered anew."""
    step.state.stamp += 1
    step.state.due_ns = due_ns
    dispatch(step)
