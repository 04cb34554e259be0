"""A batch of another cluster's, looked through before anything is done with it."""

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.core.versions import (
    FIRST_EVENT_ID,
    EventBatch,
    Item,
    MalformedBatch,
    VersionHistory,
)
from fairlead.history.applying.messages import ReplicatedBatch
from fairlead.history.events import EFFECTS, Batch
from fairlead.history.events.kinds import field_of

# What one commit of this server can have written at most: larger ones were not written by it.
BATCH_BYTES_MAX = 64 * 1024 * 1024
BATCH_EVENTS_MAX = 60_000
ITEMS_MAX = 60_000
ID_CHARACTERS_MAX = 10_000

_STARTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED


class Arriving(NamedTuple):
    """The events of a batch, what they are to the version histories of their run, and how they are to be stored."""

    events: list[HistoryEvent]
    batch: EventBatch
    parts: list[Batch]

    def from_event(self, first: int) -> tuple[list[HistoryEvent], list[Batch]]:
        """The events from one on, and the batches that they are stored in."""
        events = [event for event in self.events if event.event_id >= first]
        begun, *whole = [part for part in self.parts if part.last_event_id >= first]
        if begun.first_event_id < first:
            cut = [event for event in events if event.event_id <= begun.last_event_id]
            begun = Batch(first, begun.last_event_id, History(events=cut).SerializeToString())
        return events, [begun, *whole]


def read_batch(replicated: ReplicatedBatch) -> Arriving:
    """The batch; `MalformedBatch` or `MalformedHistory` if no cluster can have written it."""
    _check_bounds(replicated)
    events: list[HistoryEvent] = []
    parts: list[Batch] = []
    for payload in _payloads(replicated):
        part = _read_events(payload)
        parts.append(Batch(part[0].event_id, part[-1].event_id, payload))
        events += part
    if len(events) > BATCH_EVENTS_MAX:
        raise MalformedBatch(f"a batch has {len(events)} events, the most are {BATCH_EVENTS_MAX}")
    line = VersionHistory.from_pairs(replicated.items)
    batch = EventBatch.from_events([Item(event.event_id, event.version) for event in events], line)
    for event in events:
        _check_event(event, replicated)
    return Arriving(events, batch, parts)


def _payloads(replicated: ReplicatedBatch) -> Iterator[bytes]:
    """What each of the batches is stored as."""
    sizes = replicated.sizes or (len(replicated.events),)
    if sum(sizes) != len(replicated.events) or min(sizes) <= 0:
        raise MalformedBatch(f"{len(replicated.events)} bytes of events are no batches of {sizes[:10]} bytes")
    end = 0
    for size in sizes:
        end += size
        yield replicated.events[end - size : end]


def _read_events(payload: bytes) -> list[HistoryEvent]:
    try:
        events = list(History.FromString(payload).events)
    except (DecodeError, UnicodeDecodeError) as wrong:
        raise MalformedBatch(f"{len(payload)} bytes are no history of events ({wrong})") from None
    if not events:
        raise MalformedBatch("a batch has no events")
    return events


def _check_bounds(replicated: ReplicatedBatch) -> None:
    if len(replicated.events) > BATCH_BYTES_MAX:
        raise MalformedBatch(f"a batch has {len(replicated.events)} bytes, the most are {BATCH_BYTES_MAX}")
    if len(replicated.items) > ITEMS_MAX:
        raise MalformedBatch(f"a version history has {len(replicated.items)} items, the most are {ITEMS_MAX}")
    for name, value in (("workflow id", replicated.workflow_id), ("run id", replicated.run_id)):
        if not value or len(value) > ID_CHARACTERS_MAX or "\0" in value:
            raise MalformedBatch(f"a batch has {value[:100]!r} for its {name}")


def _check_event(event: HistoryEvent, replicated: ReplicatedBatch) -> None:
    if event.event_type not in EFFECTS or event.WhichOneof("attributes") != field_of(event.event_type):
        raise MalformedBatch(
            f"event {event.event_id} is of type {event.event_type} and has {event.WhichOneof('attributes')}: this "
            "server knows no such event"
        )
    if (event.event_type == _STARTED) != (event.event_id == FIRST_EVENT_ID):
        raise MalformedBatch(
            f"event {event.event_id} is of type {EventType.Name(event.event_type)}: a run begins with the event of "
            "its start, and has only one"
        )
    if event.event_type == _STARTED:
        workflow_id = event.workflow_execution_started_event_attributes.workflow_id
        if workflow_id and workflow_id != replicated.workflow_id:
            raise MalformedBatch(f"the run of {replicated.workflow_id!r} begins as one of {workflow_id!r}")
