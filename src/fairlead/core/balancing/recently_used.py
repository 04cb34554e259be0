"""An LRU cache."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentlyUsed(Generic[K, V]):
    """Holds at most `entries_max` entries: a new entry evicts the least recently used one."""

    __slots__ = ("_entries", "_entries_max")

    def __init__(self, entries_max: int) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._entries_max = entries_max

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of `key`, or None; counts as a use."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def peek(self, key: K) -> V | None:
        """Like `get`, but does not count as a use."""
        return self._entries.get(key)

    def newest_first(self) -> list[K]:
        """Return the keys, the most recently used first."""
        return list(reversed(self._entries))

    def put(self, key: K, value: V) -> None:
        """Set the value of `key`, and drop the least recently used entry if there are too many."""
        self._entries[key] = value
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def forget(self, key: K) -> None:
        """Remove `key`, if it is there."""
        self._entries.pop(key, None)
