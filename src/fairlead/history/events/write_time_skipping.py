"""The steps of a run that skips time: to its next timer, and to the end of a fast-forward."""

from collections.abc import Iterator

from temporalio.api.common.v1 import TimeSkippingConfig, TimeSkippingStatePropagation
from temporalio.api.history.v1 import WorkflowExecutionTimeSkippingTransitionedEventAttributes

from fairlead.api.times import to_duration, to_timestamp
from fairlead.history.events.activity_attempts import await_attempt, limit_all_attempts
from fairlead.history.events.transaction import Transaction
from fairlead.history.state.run import PAUSED, RunState
from fairlead.history.state.tasks import ExecutionTimeout, FastForwardEnd, RunTimeout, UserTimer, WorkflowBackoff


def skip_time(transaction: Transaction) -> None:
    """Skip to the run's next timer or timeout, if the run skips time and has nothing in flight.

    Call this at the end of a step, after all its events.
    """
    state = transaction.state
    clock = state.time_skipping
    if clock is None or not state.is_open or state.workflow_task is not None:
        return
    # A buffered event may set the config: flush it before `is_enabled` is read.
    transaction.flush()
    if not clock.is_enabled or state.status == PAUSED or state.is_zombie or _has_work(state, transaction.now_ns):
        return
    target_ns = min(_times(state), default=0)
    if target_ns <= transaction.now_ns:
        return
    _write(transaction, target_ns, is_end=target_ns == clock.target_ns)
    refresh_timers(transaction)


def end_fast_forward(transaction: Transaction, due: FastForwardEnd) -> bool:
    """End the fast-forward at its target time; return False if the task belongs to another fast-forward."""
    clock = transaction.state.time_skipping
    if clock is None or not is_fast_forward_due(transaction.state, due):
        return False
    _write(transaction, clock.target_ns, is_end=True)
    return True


def is_fast_forward_due(state: RunState, due: FastForwardEnd) -> bool:
    """Whether the task belongs to the current fast-forward."""
    clock = state.time_skipping
    return state.is_open and clock is not None and clock.is_enabled and clock.target_ns == due.fire_at_ns


def await_fast_forward(transaction: Transaction) -> None:
    """Add the timer that ends the current fast-forward even if no time is skipped."""
    clock = transaction.state.time_skipping
    if clock is not None and clock.is_enabled and clock.target_ns:
        _add(transaction, FastForwardEnd(transaction.version, clock.target_ns))


def refresh_timers(transaction: Transaction) -> None:
    """Add a timer task for each time for which the run waits: after a skip, the earlier tasks would fire too late."""
    state, version = transaction.state, transaction.state.last_version
    origin = state.started
    if origin.run_expires_at_ns:
        _add(transaction, RunTimeout(version, origin.run_expires_at_ns))
    if origin.expires_at_ns:
        _add(transaction, ExecutionTimeout(version, origin.expires_at_ns, origin.first_run_id))
    if state.in_backoff:
        _add(transaction, WorkflowBackoff(version, origin.execution_ns))
    for timer in state.timers.values():
        _add(transaction, UserTimer(timer.version, timer.fire_at_ns, timer.timer_id, timer.started_event_id))
    for event_id, pending in state.activities.items():
        progress = state.live.activities.get(event_id)
        if progress is None or event_id in state.live.ending:
            continue
        activity = state.as_changed(pending)
        limit_all_attempts(transaction, activity, progress)
        if not progress.is_started and not progress.paused:
            await_attempt(transaction, activity, progress)
    await_fast_forward(transaction)


def inherited_clock(
    state: RunState, *, by_child: bool
) -> tuple[TimeSkippingConfig | None, TimeSkippingStatePropagation | None]:
    """Config and clock for a run that this run starts; a child does not take part in its parent's fast-forward."""
    clock = state.time_skipping
    if clock is None:
        return None, None
    config = clock.effective_config()
    propagated = TimeSkippingStatePropagation(initial_skipped_duration=to_duration(clock.skipped_ns))
    if not by_child:
        propagated.initial_skip_count = clock.skips
        if clock.target_ns:
            propagated.fast_forward_target_time.CopyFrom(to_timestamp(clock.target_ns))
        return config, propagated
    child = None
    if config.enabled and not config.disable_propagation:
        child = TimeSkippingConfig(enabled=True, max_session_skip_count=config.max_session_skip_count)
    return child, propagated if clock.skipped_ns else None


def _write(transaction: Transaction, target_ns: int, *, is_end: bool) -> None:
    clock = transaction.state.time_skipping
    skipped_ns = 0 if clock is None else clock.skipped_ns
    transaction.add(
        WorkflowExecutionTimeSkippingTransitionedEventAttributes(
            target_time=to_timestamp(target_ns),
            disabled_after_fast_forward=is_end,
            wall_clock_time=to_timestamp(transaction.now_ns - skipped_ns),
        )
    )
    if not transaction.state.has_started_task:
        transaction.flush()


def _add(
    transaction: Transaction, task: FastForwardEnd | RunTimeout | ExecutionTimeout | WorkflowBackoff | UserTimer
) -> None:
    if task not in transaction.tasks:
        transaction.add_task(task)


def _has_work(state: RunState, now_ns: int) -> bool:
    """Whether the run has work in flight. Activities that are paused or in a backoff don't count."""
    if state.children or state.external_signals or state.external_cancels or state.nexus_operations:
        return True
    if not state.had_task and not state.in_backoff:
        # The run is a child: its first workflow task waits until the parent has recorded the start.
        return True
    for event_id in state.activities:
        progress = state.live.activities.get(event_id)
        if progress is None or progress.is_started or (not progress.paused and progress.due_ns <= now_ns):
            return True
    return False


def _times(state: RunState) -> Iterator[int]:
    """The times for which the run waits: timers, timeouts, backoffs and the fast-forward's target."""
    clock, origin = state.time_skipping, state.started
    if clock is not None and clock.target_ns and not clock.has_completed:
        yield clock.target_ns
    for limit_ns in (origin.run_expires_at_ns, origin.expires_at_ns):
        if limit_ns:
            yield limit_ns
    if state.in_backoff:
        yield origin.execution_ns
    for timer in state.timers.values():
        yield timer.fire_at_ns
    for event_id, pending in state.activities.items():
        progress = state.live.activities.get(event_id)
        if progress is None or progress.paused:
            continue
        yield progress.due_ns
        activity = state.as_changed(pending)
        if activity.schedule_to_close_ns:
            yield activity.scheduled_ns + activity.schedule_to_close_ns
