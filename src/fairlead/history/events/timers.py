"""What the events of timers do."""

from temporalio.api.history.v1 import HistoryEvent

from fairlead.history.events.refusal import pending, refusal
from fairlead.history.state.pending import PendingTimer
from fairlead.history.state.run import RunState
from fairlead.history.state.times import from_duration, from_timestamp


def started(state: RunState, event: HistoryEvent) -> None:
    """A timer runs."""
    attributes = event.timer_started_event_attributes
    if attributes.timer_id in state.timers:
        raise refusal(state, event, f"timer {attributes.timer_id!r} is running already")
    state.timers[attributes.timer_id] = PendingTimer(
        timer_id=attributes.timer_id,
        started_event_id=event.event_id,
        version=event.version,
        fire_at_ns=from_timestamp(event.event_time) + from_duration(attributes.start_to_fire_timeout),
    )


def fired(state: RunState, event: HistoryEvent) -> None:
    """Its time has come."""
    attributes = event.timer_fired_event_attributes
    _end(state, event, attributes.timer_id, attributes.started_event_id)


def canceled(state: RunState, event: HistoryEvent) -> None:
    """The workflow needs it no more."""
    attributes = event.timer_canceled_event_attributes
    _end(state, event, attributes.timer_id, attributes.started_event_id)


def _end(state: RunState, event: HistoryEvent, timer_id: str, started_event_id: int) -> None:
    timer = pending(state, event, state.timers, timer_id, "timer")
    if timer.started_event_id != started_event_id:
        raise refusal(state, event, f"timer {timer_id!r} was started by event {timer.started_event_id}")
    del state.timers[timer_id]
