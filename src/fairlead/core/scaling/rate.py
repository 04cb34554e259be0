"""The rate of arriving tasks, measured over the last few seconds."""

from fairlead.core.errors import FixRequest

BUCKETS_MAX = 1_000


class InvalidWindow(FixRequest):
    """A rate window's bucket time or number of buckets is out of range."""


class RateWindow:
    """Measures a rate over a sliding window of whole buckets of time; adding is O(1) and memory is fixed.

    Buckets begin at `started_s`. Only buckets that have ended count: a partly filled one would make the rate swing.
    Until the window is full, the rate is computed over the ended buckets, so it is correct after the first bucket's
    end; within the first bucket it is the number of arrivals divided by the length of a bucket.

    While time stands still or goes back by less than a bucket, arrivals count in the present bucket. If time goes back
    further, the clock was set: the window continues from there, so that no arrivals are forgotten, and later arrivals
    do not all count in one bucket. A jump forward counts as time without arrivals.
    """

    __slots__ = ("_bucket_s", "_closed", "_counts", "_latest_s", "_open_index", "_open_until_s", "_origin_s")

    def __init__(self, *, bucket_s: float, buckets: int, started_s: float) -> None:
        if not 0 < bucket_s < float("inf"):
            raise InvalidWindow(f"a rate window's bucket lasts {bucket_s} s: give a positive time")
        if not 1 <= buckets <= BUCKETS_MAX:
            raise InvalidWindow(f"a rate window has {buckets} buckets: give 1 to {BUCKETS_MAX}")
        self._bucket_s = bucket_s
        self._origin_s = started_s
        self._latest_s = started_s
        self._open_index = 0
        # Until this time an arrival counts in the open bucket, without further checks.
        self._open_until_s = started_s
        # A ring buffer: one bucket is open, the others have ended and their sum is `_closed`.
        self._counts = [0] * (buckets + 1)
        self._closed = 0

    def add(self, count: int, now_s: float) -> None:
        """Count `count` arrivals at `now_s`."""
        if not self._latest_s <= now_s < self._open_until_s:
            self._advance(now_s)
        self._counts[self._open_index % len(self._counts)] += count

    def rate(self, now_s: float) -> float:
        """Return the arrivals a second over the window, or over its part since `started_s`."""
        self._advance(now_s)
        ended = min(self._open_index, len(self._counts) - 1)
        if ended == 0:
            return self._counts[0] / self._bucket_s
        return self._closed / (ended * self._bucket_s)

    def _advance(self, now_s: float) -> None:
        """Close the buckets that have ended, and forget the buckets that are older than the window."""
        if now_s < self._latest_s:
            # The clock was set back slightly, or the caller read it before the previous caller did.
            if self._latest_s - now_s < self._bucket_s:
                return
            self._origin_s -= self._latest_s - now_s
        self._latest_s = now_s
        index = int((now_s - self._origin_s) // self._bucket_s)
        # Slightly before the bucket's end, since the sum may round to just after it.
        self._open_until_s = self._origin_s + (index + 1 - 1e-6) * self._bucket_s
        if index <= self._open_index:
            return
        size = len(self._counts)
        for ending in range(self._open_index, min(index, self._open_index + size)):
            self._closed += self._counts[ending % size]
            # The next bucket takes the slot of the oldest.
            self._closed -= self._counts[(ending + 1) % size]
            self._counts[(ending + 1) % size] = 0
        self._open_index = index
