"""Batches of events that clusters replicate: consecutive ids of one version, with their version history."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from fairlead.core.errors import GiveUp
from fairlead.core.versions.history import FIRST_EVENT_ID, EventNotInHistory, Item, VersionHistory


class MalformedBatch(GiveUp):
    """A batch of events contradicts itself or its version history; none of it was applied."""


class EventRange(NamedTuple):
    """Event ids from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """Number of events."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Consecutive events of one version; `history` is their branch, up to the batch's last event.

    The sender reads the history when it sends the batch, not when the events were written, so it may contain later
    events. The later events are cut off here: other batches bring them.
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
        """Make a batch of events that each have their own id and version."""
        if not events:
            raise MalformedBatch("a batch has no events")
        first = events[0]
        for position, event in enumerate(events):
            if event.event_id != first.event_id + position:
                raise MalformedBatch(
                    f"a batch has event {event.event_id} where event {first.event_id + position} should follow: its "
                    "ids must be without gap"
                )
            if event.version != first.version:
                raise MalformedBatch(
                    f"a batch has event {event.event_id} at version {event.version} after event {first.event_id} at "
                    f"version {first.version}: all its events must be of one version"
                )
        return cls(EventRange(first.event_id, events[-1].event_id), first.version, history)


def cut_batches(history: VersionHistory, events: EventRange) -> tuple[EventBatch, ...]:
    """Cut `events` of the branch `history` into batches, one for each version, in order, for a resend."""
    history = history.truncate(events.last)
    batches = []
    first = events.first
    for last, version in history.items:
        if first <= last:
            batches.append(EventBatch(EventRange(first, last), version, history))
            first = last + 1
    return tuple(batches)
