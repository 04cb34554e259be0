"""Effects of the events of timers."""

from temporalio.api.history.v1 import HistoryEvent

from fairlead.api.times import from_duration, from_timestamp
from fairlead.history.events.errors import cannot_follow, pending
from fairlead.history.state.pending import PendingTimer
from fairlead.history.state.run import RunState


def started(state: RunState, event: HistoryEvent) -> None:
    """TimerStarted: the timer becomes pending."""
    attributes = event.timer_started_event_attributes
    if attributes.timer_id in state.timers:
        raise cannot_follow(state, event, f"timer {attributes.timer_id!r} is running already")
    state.timers[attributes.timer_id] = PendingTimer(
        timer_id=attributes.timer_id,
        started_event_id=event.event_id,
        version=event.version,
        fire_at_ns=from_timestamp(event.event_time) + from_duration(attributes.start_to_fire_timeout),
    )


def fired(state: RunState, event: HistoryEvent) -> None:
    """TimerFired: the timer is no longer pending."""
    attributes = event.timer_fired_event_attributes
    _end(state, event, attributes.timer_id, attributes.started_event_id)


def canceled(state: RunState, event: HistoryEvent) -> None:
    """TimerCanceled: the timer is no longer pending."""
    attributes = event.timer_canceled_event_attributes
    _end(state, event, attributes.timer_id, attributes.started_event_id)


def _end(state: RunState, event: HistoryEvent, timer_id: str, started_event_id: int) -> None:
    timer = pending(state, event, state.timers, timer_id, "timer")
    if timer.started_event_id != started_event_id:
        raise cannot_follow(state, event, f"timer {timer_id!r} was started by event {timer.started_event_id}")
    del state.timers[timer_id]
