"""Counts of the dispatched tasks of each fairness key, since the start and lately, in bounded memory."""

from collections import Counter
from collections.abc import KeysView, Mapping
from operator import itemgetter

from fairlead.core.fairness.weights import WEIGHT_DEFAULT

# Number of fairness keys that are counted, since the start and in each bucket; beyond it, the half with the fewest
# tasks is forgotten.
KEYS_COUNTED_MAX = 10_000
# Seconds and number of the buckets that count as lately. The last one has only begun.
RECENT_BUCKET_S = 60.0
RECENT_BUCKETS = 5
RECENT_S = RECENT_BUCKET_S * RECENT_BUCKETS


class DispatchCounts:
    """Counts tasks by fairness key, and keeps the latest weight of each key."""

    __slots__ = ("_counts", "_recent")

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, float]] | None = None
        # Number and counts of the last buckets, the newest last.
        self._recent: list[tuple[int, dict[str, int]]] | tuple[()] = ()

    def add(self, key: str, weight: float, now_s: float) -> None:
        """Count a dispatched task."""
        counts = self._counts
        if counts is None:
            counts = self._counts = {}
        known = counts.get(key)
        counts[key] = (1, weight) if known is None else (known[0] + 1, weight)
        if len(counts) > KEYS_COUNTED_MAX:
            self._counts = dict(sorted(counts.items(), key=itemgetter(1), reverse=True)[: KEYS_COUNTED_MAX // 2])
        bucket = int(now_s // RECENT_BUCKET_S)
        if not self._recent or self._recent[-1][0] != bucket:
            self._recent = [*(one for one in self._recent if one[0] > bucket - RECENT_BUCKETS), (bucket, {})]
        lately = self._recent[-1][1]
        lately[key] = lately.get(key, 0) + 1
        if len(lately) > KEYS_COUNTED_MAX:
            most = sorted(lately.items(), key=itemgetter(1), reverse=True)[: KEYS_COUNTED_MAX // 2]
            self._recent[-1] = (bucket, dict(most))

    def keys(self) -> KeysView[str]:
        """Return the counted keys."""
        return (self._counts or {}).keys()

    def count(self, key: str) -> int:
        """Return the number of dispatched tasks of a key; 0 if the key is not counted."""
        return (self._counts or {}).get(key, (0, WEIGHT_DEFAULT))[0]

    def recent(self, now_s: float) -> Mapping[str, int]:
        """Return the number of tasks of each key that were dispatched in the last `RECENT_S` seconds."""
        first = int(now_s // RECENT_BUCKET_S) - RECENT_BUCKETS + 1
        found: Counter[str] = Counter()
        for bucket, counts in self._recent:
            if bucket >= first:
                found.update(counts)
        return found

    def weight(self, key: str) -> float:
        """Return the latest weight of a key; the default weight if the key is not counted."""
        return (self._counts or {}).get(key, (0, WEIGHT_DEFAULT))[1]
