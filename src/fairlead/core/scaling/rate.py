"""How many tasks a second arrive, measured over the last few seconds."""

from fairlead.core.errors import FixRequest

BUCKETS_MAX = 1_000


class InvalidWindow(FixRequest):
    """A rate window was asked for that measures nothing."""


class RateWindow:
    """Measures a rate over a sliding window of whole buckets of time; adding costs O(1) and memory is fixed.

    Buckets begin at `started_s`, and only those that have ended count: a bucket that is half full would make the rate
    dip and swing within each bucket. Until the window is full the rate is that of the buckets there are, so it is right
    from the first bucket's end; within the first bucket it is what has arrived, divided by one bucket.

    Time that stands still or goes back less than a bucket adds to the present bucket. Time that goes back further is
    a clock that was set: the window goes on from there as if it had stood still for that moment, so that neither are
    arrivals forgotten nor do all to come pile up in one bucket. Time that leaps forward is silence.
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
        # Until then nothing has to be looked at when something arrives.
        self._open_until_s = started_s
        # A ring: one bucket is open, the others have ended and sum up to `_closed`.
        self._counts = [0] * (buckets + 1)
        self._closed = 0

    def add(self, count: int, now_s: float) -> None:
        """Count `count` arrivals at this moment."""
        if not self._latest_s <= now_s < self._open_until_s:
            self._advance(now_s)
        self._counts[self._open_index % len(self._counts)] += count

    def rate(self, now_s: float) -> float:
        """Arrivals a second, over as much of the window as has been watched."""
        self._advance(now_s)
        ended = min(self._open_index, len(self._counts) - 1)
        if ended == 0:
            return self._counts[0] / self._bucket_s
        return self._closed / (ended * self._bucket_s)

    def _advance(self, now_s: float) -> None:
        """End the buckets that are over by now and forget those that the window has passed."""
        if now_s < self._latest_s:
            # The clock was set back, or another reader of it was a moment late.
            if self._latest_s - now_s < self._bucket_s:
                return
            self._origin_s -= self._latest_s - now_s
        self._latest_s = now_s
        index = int((now_s - self._origin_s) // self._bucket_s)
        # A little before the bucket's end, since the sum may round to just after it.
        self._open_until_s = self._origin_s + (index + 1 - 1e-6) * self._bucket_s
        if index <= self._open_index:
            return
        size = len(self._counts)
        for ending in range(self._open_index, min(index, self._open_index + size)):
            self._closed += self._counts[ending % size]
            # The slot of the oldest bucket is the next to be opened.
            self._closed -= self._counts[(ending + 1) % size]
            self._counts[(ending + 1) % size] = 0
        self._open_index = index
