"""Batches of events as they travel between clusters: one version, ids in a row, and the history that they end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from fairlead.core.errors import GiveUp
from fairlead.core.versions.history import FIRST_EVENT_ID, EventNotInHistory, Item, VersionHistory


class MalformedBatch(GiveUp):
    """A batch of events contradicts itself or the history that came with it; nothing of it was applied."""


class EventRange(NamedTuple):
    """Event ids from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """How many events these are."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of one version in a row; `history` is the line that they stand on and ends with the batch's last event.

    A history is read when the batch is sent, not when its events were written, so it may come with later events in
    it. These are cut off here: they are other batches' to bring.
    """

    events: EventRange
    version: int
    history: VersionHistory

    def __post_init__(self) -> None:
        first, last = self.events
        if not FIRST_EVENT_ID <= first <= last:
            raise MalformedBatch(f"a batch of events {first} to {last} is empty or begins before {FIRST_EVENT_ID}")
        try:
            history = self.history.truncate(last)
        except EventNotInHistory as short:
            raise MalformedBatch(
                f"a batch of events {first} to {last} came with a history that ends at event "
                f"{self.history.last.event_id}"
            ) from short
        if (history.version_of(first), history.last.version) != (self.version, self.version):
            raise MalformedBatch(
                f"a batch of events {first} to {last} at version {self.version} came with a history that has them at "
                f"versions {history.version_of(first)} to {history.last.version}"
            )
        object.__setattr__(self, "history", history)

    @classmethod
    def from_events(cls, events: Sequence[Item], history: VersionHistory) -> Self:
        """The batch of events that were received one by one, each with its own id and version."""
        if not events:
            raise MalformedBatch("a batch has no events")
        first = events[0]
        for place, event in enumerate(events):
            if event.event_id != first.event_id + place:
                raise MalformedBatch(
                    f"a batch has event {event.event_id} where event {first.event_id + place} should follow: its ids "
                    "must be without gap"
                )
            if event.version != first.version:
                raise MalformedBatch(
                    f"a batch has event {event.event_id} at version {event.version} after event {first.event_id} at "
                    f"version {first.version}: all its events must be of one version"
                )
        return cls(EventRange(first.event_id, events[-1].event_id), first.version, history)


def cut_batches(history: VersionHistory, events: EventRange) -> tuple[EventBatch, ...]:
    """The batches that carry `events` of the line `history`, one for each version, in order: what a resend sends."""
    history = history.truncate(events.last)
    batches = []
    first = events.first
    for last, version in history.items:
        if first <= last:
            batches.append(EventBatch(EventRange(first, last), version, history))
            first = last + 1
    return tuple(batches)
