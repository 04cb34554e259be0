"""Decodes and validates a batch of another cluster."""

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
from fairlead.history.events import EFFECTS, Batch
from fairlead.history.events.kinds import field_of
from fairlead.history.messages.ndc import ReplicatedBatch

# Limits of one batch: bytes, events, version history items, id characters. No server writes larger batches.
BATCH_BYTES_MAX = 64 * 1024 * 1024
BATCH_EVENTS_MAX = 60_000
ITEMS_MAX = 60_000
ID_CHARACTERS_MAX = 10_000

_STARTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED


class Arriving(NamedTuple):
    """The events of a batch, their `EventBatch` for version histories, and the batches to store."""

    events: list[HistoryEvent]
    batch: EventBatch
    parts: list[Batch]

    def from_event(self, first: int) -> tuple[list[HistoryEvent], list[Batch]]:
        """The events from `first` on, and the batches to store for these events."""
        events = [event for event in self.events if event.event_id >= first]
        begun, *whole = [part for part in self.parts if part.last_event_id >= first]
        if begun.first_event_id < first:
            cut = [event for event in events if event.event_id <= begun.last_event_id]
            begun = Batch(first, begun.last_event_id, History(events=cut).SerializeToString())
        return events, [begun, *whole]


def read_batch(replicated: ReplicatedBatch) -> Arriving:
    """Decode a batch; raises `MalformedBatch` or `MalformedHistory` for a batch that no cluster can have written."""
    _check_bounds(replicated)
    events: list[HistoryEvent] = []
    parts: list[Batch] = []
    for payload in _payloads(replicated):
        part = _read_events(payload)
        parts.append(Batch(part[0].event_id, part[-1].event_id, payload))
        events += part
    if len(events) > BATCH_EVENTS_MAX:
        raise MalformedBatch(f"a batch has {len(events)} events, more than the limit of {BATCH_EVENTS_MAX}")
    versions = VersionHistory.from_pairs(replicated.items)
    batch = EventBatch.from_events([Item(event.event_id, event.version) for event in events], versions)
    for event in events:
        _check_event(event, replicated)
    return Arriving(events, batch, parts)


def _payloads(replicated: ReplicatedBatch) -> Iterator[bytes]:
    """The payload of each batch to store."""
    sizes = replicated.sizes or (len(replicated.events),)
    if sum(sizes) != len(replicated.events) or min(sizes) <= 0:
        raise MalformedBatch(
            f"{len(replicated.events)} bytes of events can't be divided into batches of {sizes[:10]} bytes"
        )
    end = 0
    for size in sizes:
        end += size
        yield replicated.events[end - size : end]


def _read_events(payload: bytes) -> list[HistoryEvent]:
    try:
        events = list(History.FromString(payload).events)
    except (DecodeError, UnicodeDecodeError) as wrong:
        raise MalformedBatch(f"a batch of {len(payload)} bytes is not a valid History message ({wrong})") from None
    if not events:
        raise MalformedBatch("a batch has no events")
    return events


def _check_bounds(replicated: ReplicatedBatch) -> None:
    if len(replicated.events) > BATCH_BYTES_MAX:
        raise MalformedBatch(f"a batch has {len(replicated.events)} bytes, more than the limit of {BATCH_BYTES_MAX}")
    if len(replicated.items) > ITEMS_MAX:
        raise MalformedBatch(f"a version history has {len(replicated.items)} items, more than the limit of {ITEMS_MAX}")
    for name, value in (("workflow id", replicated.workflow_id), ("run id", replicated.run_id)):
        if not value or len(value) > ID_CHARACTERS_MAX or "\0" in value:
            raise MalformedBatch(f"a batch has an invalid {name}: {value[:100]!r}")


def _check_event(event: HistoryEvent, replicated: ReplicatedBatch) -> None:
    if event.event_type not in EFFECTS or event.WhichOneof("attributes") != field_of(event.event_type):
        raise MalformedBatch(
            f"event {event.event_id} is of type {event.event_type} and has {event.WhichOneof('attributes')}: this "
            "server does not know such an event"
        )
    if (event.event_type == _STARTED) != (event.event_id == FIRST_EVENT_ID):
        raise MalformedBatch(
            f"event {event.event_id} is of type {EventType.Name(event.event_type)}: only the first event of "
            "a run can be, and must be, WorkflowExecutionStarted"
        )
    if event.event_type == _STARTED:
        workflow_id = event.workflow_execution_started_event_attributes.workflow_id
        if workflow_id and workflow_id != replicated.workflow_id:
            raise MalformedBatch(
                f"a batch for workflow {replicated.workflow_id!r} starts a run of workflow {workflow_id!r}"
            )
