"""Errors for events that can't be applied to a run."""

from collections.abc import Mapping
from typing import TypeVar

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from fairlead.history.state.errors import EventCannotFollow
from fairlead.history.state.run import RunState

Key = TypeVar("Key", int, str)
Value = TypeVar("Value")


def cannot_follow(state: RunState, event: HistoryEvent, why: str) -> EventCannotFollow:
    """An error that names the run, the event and the reason."""
    name = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")
    identity = state.identity
    return EventCannotFollow(
        f"event {event.event_id} ({name}) can't be applied to run {identity.run_id} of workflow "
        f"{identity.workflow_id}, whose next event id is {state.next_event_id}: {why}"
    )


def pending(state: RunState, event: HistoryEvent, table: Mapping[Key, Value], key: Key, noun: str) -> Value:
    """The pending item that the event refers to; raises `EventCannotFollow` if it isn't pending."""
    found = table.get(key)
    if found is None:
        raise cannot_follow(state, event, f"there is no {noun} {key!r}")
    return found
