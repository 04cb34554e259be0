"""How an effect says that its event can't follow."""

from collections.abc import Mapping
from typing import TypeVar

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from fairlead.history.state.errors import EventCannotFollow
from fairlead.history.state.run import RunState

Key = TypeVar("Key", int, str)
Value = TypeVar("Value")


def refusal(state: RunState, event: HistoryEvent, why: str) -> EventCannotFollow:
    """The error that names the run, the event and what speaks against it."""
    name = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")
    identity = state.identity
    return EventCannotFollow(
        f"event {event.event_id} ({name}) can't follow in run {identity.run_id} of workflow {identity.workflow_id}, "
        f"whose next event is {state.next_event_id}: {why}"
    )


def pending(state: RunState, event: HistoryEvent, table: Mapping[Key, Value], key: Key, noun: str) -> Value:
    """What the event is about, which must be pending."""
    found = table.get(key)
    if found is None:
        raise refusal(state, event, f"there is no {noun} {key!r}")
    return found
