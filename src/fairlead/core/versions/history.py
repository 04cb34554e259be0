"""The version history of one branch: the version of each of its events, in a compact form."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from operator import index, lt
from typing import NamedTuple, Self

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.core.versions.failover import LOCAL_VERSION

FIRST_EVENT_ID = 1


class MalformedHistory(GiveUp):
    """The items of a version history are missing, negative or out of order."""


class EventNotInHistory(FixRequest):
    """The history does not contain the requested event id."""


class Item(NamedTuple):
    """The last of the consecutive events that were written at one version."""

    event_id: int
    version: int


@dataclass(frozen=True, slots=True)
class VersionHistory:
    """The versions of events 1 to `last.event_id`; event ids and versions both rise strictly from item to item.

    There is at least one item, because a run starts with its first event. The number of items is bounded by the number
    of events, and that by the limit on a history's length.
    """

    items: tuple[Item, ...]

    def __post_init__(self) -> None:
        if not self.items:
            raise MalformedHistory("a version history has no items: a run has at least its first event")
        event_ids, versions = zip(*self.items, strict=True)
        if event_ids[0] < FIRST_EVENT_ID:
            raise MalformedHistory(f"a version history begins with event {event_ids[0]}: ids start at {FIRST_EVENT_ID}")
        if versions[0] < LOCAL_VERSION:
            raise MalformedHistory(f"a version history begins with the negative version {versions[0]}")
        if not all(map(lt, event_ids, event_ids[1:])):
            raise MalformedHistory(f"event ids {event_ids} of a version history do not rise from item to item")
        if not all(map(lt, versions, versions[1:])):
            raise MalformedHistory(f"versions {versions} of a version history do not rise from item to item")

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[int, int]]) -> Self:
        """Decode the pairs of `to_pairs`, from the wire, a store or a Spark row."""
        try:
            items = tuple(Item(index(event_id), index(version)) for event_id, version in pairs)
        except (TypeError, ValueError) as wrong:
            raise MalformedHistory(
                f"a version history is not made of pairs of whole numbers (event id, version): {wrong}"
            ) from wrong
        return cls(items)

    @classmethod
    def beginning(cls, version: int) -> "VersionHistory":
        """The history of a run's first event."""
        if version < LOCAL_VERSION:
            raise MalformedHistory(f"a version history begins with the negative version {version}")
        return _trusted((Item(FIRST_EVENT_ID, version),))

    def to_pairs(self) -> tuple[tuple[int, int], ...]:
        """Encode the items as plain tuples, for the wire, a store or a Spark row."""
        return tuple((event_id, version) for event_id, version in self.items)

    @property
    def last(self) -> Item:
        """The last event, with its version."""
        return self.items[-1]

    def append(self, *, event_id: int, version: int) -> "VersionHistory":
        """Return the history after the events up to `event_id` were written at `version`.

        An item stands for many events, so any larger id is accepted. `BranchTree.plan` checks that no event is missing
        in between.
        """
        last = self.items[-1]
        if event_id <= last.event_id:
            raise MalformedHistory(f"event {event_id} can't follow event {last.event_id}: its id must be larger")
        if version < last.version:
            raise MalformedHistory(
                f"event {event_id} has version {version}, but event {last.event_id} before it has the higher version "
                f"{last.version}"
            )
        item = Item(event_id, version)
        if version != last.version:
            return _trusted((*self.items, item))
        return _trusted((*self.items[:-1], item) if len(self.items) > 1 else (item,))

    def truncate(self, event_id: int) -> "VersionHistory":
        """Return the history as it was when `event_id` was the last event."""
        position = self._position(event_id)
        if event_id == self.last.event_id:
            return self
        return _trusted((*self.items[:position], Item(event_id, self.items[position].version)))

    def version_of(self, event_id: int) -> int:
        """Return the version at which the event was written."""
        last = self.items[-1]
        return last.version if event_id == last.event_id else self.items[self._position(event_id)].version

    def contains(self, *, event_id: int, version: int) -> bool:
        """Whether this history contains the event with this id and version; an id alone exists on each branch."""
        return FIRST_EVENT_ID <= event_id <= self.last.event_id and self.version_of(event_id) == version

    def _position(self, event_id: int) -> int:
        if not FIRST_EVENT_ID <= event_id <= self.last.event_id:
            raise EventNotInHistory(
                f"event {event_id} is not in this history of events {FIRST_EVENT_ID} to {self.last.event_id}"
            )
        # Version -1 sorts before all items of this event id: no version is negative.
        return bisect_left(self.items, Item(event_id, -1))


def _trusted(items: tuple[Item, ...]) -> VersionHistory:
    """Make a history without checks, from items that are known to be right; checks would take linear time."""
    history = object.__new__(VersionHistory)
    object.__setattr__(history, "items", items)
    return history
