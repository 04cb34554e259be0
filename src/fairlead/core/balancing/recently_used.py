"""A bounded memory of what was used last."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentlyUsed(Generic[K, V]):
    """Never holds more than `entries_max` entries: the one that was used longest ago makes room for a new one."""

    __slots__ = ("_entries", "_entries_max")

    def __init__(self, entries_max: int) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._entries_max = entries_max

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """What is remembered under `key`, which counts as a use of it."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Remember `value` under `key`, and forget the oldest entry if that is one too many."""
        self._entries[key] = value
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def forget(self, key: K) -> None:
        """Forget `key`, if it was remembered at all."""
        self._entries.pop(key, None)
