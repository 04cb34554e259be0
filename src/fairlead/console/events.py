"""Events of a history as rows: the type, the words that matter, and the whole event as JSON."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from msgspec import Struct
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from fairlead.console import text
from fairlead.console.payloads import ShownPayload, all_shown
from fairlead.frontend.http.json_codec import encode

# Characters of one event as JSON, and of a word of its summary, on a page.
JSON_CHARACTERS_MAX: Final = 20_000
WORD_CHARACTERS_MAX: Final = 200

# The fields that say what an event is about, in the order shown, each with the word before it.
_WORDS: Final = (
    ("", "activity_type.name"),
    ("", "workflow_type.name"),
    ("signal", "signal_name"),
    ("timer", "timer_id"),
    ("after", "start_to_fire_timeout"),
    ("update", "accepted_request.input.name"),
    ("marker", "marker_name"),
    ("activity", "activity_id"),
    ("workflow", "workflow_execution.workflow_id"),
    ("workflow", "workflow_id"),
    ("", "failure.message"),
    ("", "failure.cause.message"),
    ("reason", "reason"),
    ("attempt", "attempt"),
    ("task queue", "task_queue.name"),
    ("by", "identity"),
)
# Types of events to which a run can be reset; the new run begins with the workflow task of the event.
RESET_POINTS: Final = frozenset(
    (
        EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    )
)
_PAYLOAD_FIELDS: Final = ("input", "result", "details", "last_completion_result")


class ShownEvent(Struct, frozen=True):
    """An event: `words` is its summary, `json` all of it."""

    id: int
    at_s: float | None
    type: str
    words: str
    json: str
    payloads: list[ShownPayload]
    # Whether a run can be reset to this event.
    is_reset_point: bool = False


def type_name(event_type: int) -> str:
    """The type of an event as people write it, such as ActivityTaskScheduled."""
    try:
        name = EventType.Name(EventType.ValueType(event_type))
    except ValueError:
        return f"type {event_type}"
    return "".join(word.capitalize() for word in name.removeprefix("EVENT_TYPE_").split("_"))


def attributes(event: HistoryEvent) -> Any:
    """The attributes of an event; None if it has none that are known here."""
    which = event.WhichOneof("attributes")
    return None if which is None else getattr(event, which)


def shown_event(event: HistoryEvent) -> ShownEvent:
    """An event for people."""
    found = attributes(event)
    json = msgspec.json.format(encode(event, has_shorthand=True), indent=2).decode()
    return ShownEvent(
        id=event.event_id,
        at_s=text.seconds_of(event.event_time),
        type=type_name(event.event_type),
        words=" · ".join(_words(found)) if found is not None else "",
        json=json[:JSON_CHARACTERS_MAX],
        payloads=[] if found is None else _payloads(found),
        is_reset_point=event.event_type in RESET_POINTS,
    )


def _words(found: Any) -> Iterator[str]:
    for before, path in _WORDS:
        value = _value(found, path)
        if value:
            said = text.duration(value) if isinstance(value, Duration) else str(value)[:WORD_CHARACTERS_MAX]
            yield f"{before} {said}".strip()


def _value(found: Any, path: str) -> Any:
    """The value of a field, such as failure.message; None if it is not there or not set."""
    for name in path.split("."):
        if not isinstance(found, Message) or name not in found.DESCRIPTOR.fields_by_name:
            return None
        field = found.DESCRIPTOR.fields_by_name[name]
        if field.message_type is not None and not found.HasField(name):
            return None
        found = getattr(found, name)
    return found


def _payloads(found: Any) -> list[ShownPayload]:
    shown: list[ShownPayload] = []
    for name in _PAYLOAD_FIELDS:
        value = _value(found, name)
        if isinstance(value, Payloads):
            shown += all_shown(value)
    return shown
