"""Counts of the dispatched tasks of each fairness key, in bounded memory."""

from collections.abc import KeysView
from operator import itemgetter

from fairlead.core.fairness.weights import WEIGHT_DEFAULT

# Number of fairness keys that are counted. If it is exceeded, the half with the fewest tasks is dropped.
KEYS_COUNTED_MAX = 10_000


class DispatchCounts:
    """Counts tasks by fairness key, and keeps the latest weight of each key."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, float]] | None = None

    def add(self, key: str, weight: float) -> None:
        """Count a dispatched task."""
        counts = self._counts
        if counts is None:
            counts = self._counts = {}
        known = counts.get(key)
        counts[key] = (1, weight) if known is None else (known[0] + 1, weight)
        if len(counts) > KEYS_COUNTED_MAX:
            self._counts = dict(sorted(counts.items(), key=itemgetter(1), reverse=True)[: KEYS_COUNTED_MAX // 2])

    def keys(self) -> KeysView[str]:
        """Return the counted keys."""
        return (self._counts or {}).keys()

    def count(self, key: str) -> int:
        """Return the number of dispatched tasks of a key; 0 if the key is not counted."""
        return (self._counts or {}).get(key, (0, WEIGHT_DEFAULT))[0]

    def weight(self, key: str) -> float:
        """Return the latest weight of a key; the default weight if the key is not counted."""
        return (self._counts or {}).get(key, (0, WEIGHT_DEFAULT))[1]
