"""Events that can't follow in a history raise an error, and change nothing."""

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from fairlead.history.events import EFFECTS, apply, rebuild
from fairlead.history.state import EventCannotFollow, UnreadableState, decode, encode
from tests.history.recordings import identity_of, load

# Event types that no server writes any more, or none writes yet.
WITHOUT_EFFECT = {
    "EVENT_TYPE_UNSPECIFIED",
    "EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_REJECTED",
}


def test_every_type_of_events_has_an_effect() -> None:
    without = {name for name, number in EventType.items() if number not in EFFECTS}
    assert without == WITHOUT_EFFECT


@pytest.mark.parametrize(
    "name", ["updated", "results_buffered", "child_canceled", "activity_cancel_wait", "timer_canceled"]
)
def test_missing_and_repeated_events_are_refused(name: str) -> None:
    """At each position of a history, every event but the right one is rejected."""
    events = load(name)
    for place in range(len(events)):
        state = rebuild(identity_of(events), events[:place])
        before = encode(state)
        for other in (*events[:place], *events[place + 1 :]):
            with pytest.raises(EventCannotFollow, match=f"event {other.event_id} "):
                apply(state, other)
        assert encode(state) == before


@pytest.mark.parametrize("name", ["one_activity", "timer", "child_ok", "external_signal", "updated", "task_fails_once"])
def test_an_event_about_something_that_is_not_pending_is_refused(name: str) -> None:
    """The same events with the next event id: the objects they refer to are closed, started or not yet there."""
    events = load(name)
    repeatable = {
        EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        EventType.EVENT_TYPE_MARKER_RECORDED,
        EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
        EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
        EventType.EVENT_TYPE_TIMER_STARTED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    }
    for place in range(1, len(events)):
        state = rebuild(identity_of(events), events[:place])
        before = encode(state)
        for earlier in events[:place]:
            if earlier.event_type in repeatable:
                continue
            again = HistoryEvent.FromString(earlier.SerializeToString())
            again.event_id = place + 1
            with pytest.raises(EventCannotFollow):
                apply(state, again)
        assert encode(state) == before


def test_a_lower_version_can_not_follow() -> None:
    events = load("timer")
    for event in events[:3]:
        event.version = 12
    state = rebuild(identity_of(events), events[:3])
    events[3].version = 11
    with pytest.raises(EventCannotFollow, match="version 11 is lower than the last event's version 12"):
        apply(state, events[3])


def test_a_state_with_another_layout_is_refused() -> None:
    events = load("timer")
    stored = encode(rebuild(identity_of(events), events[:5]))
    with pytest.raises(UnreadableState, match="another version"):
        decode(b"\x07" + stored[1:])
    with pytest.raises(UnreadableState, match="can't be read"):
        decode(stored[:-3])


def test_an_open_run_takes_little_memory() -> None:
    """Bounds the memory: 10,000 open idle workflows take less than 400 MB."""
    events = load("timer")
    assert len(encode(rebuild(identity_of(events), events[:5]))) < 600
