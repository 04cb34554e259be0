"""Latency histograms, cheap enough for every task and poll."""

import math
from bisect import bisect_left
from typing import NamedTuple

# Bounds in seconds, from the match within one process to the task dispatched an hour late. Each bound adds a series to
# every task queue, so there are few.
LATENCY_BOUNDS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    3600.0,
)
_BUCKETS = len(LATENCY_BOUNDS_S) + 1
_INFINITY = math.inf


class BucketCounts(NamedTuple):
    """Number of latencies in each bucket, not cumulative; the last bucket is above all bounds."""

    counts: tuple[int, ...]
    total_s: float


class Buckets:
    """Counts latencies by LATENCY_BOUNDS_S; invalid ones count as 0, so that the sum never decreases."""

    __slots__ = ("_counts", "_total_s")

    def __init__(self) -> None:
        # The counts up to the highest bucket in use: most task queues are idle or fast, and need few.
        self._counts: list[int] | None = None
        self._total_s = 0.0

    def observe(self, latency_s: float) -> None:
        """Count one latency."""
        # Clocks of two hosts may differ, so a task may seem to start before it was added: count 0.
        if not 0.0 < latency_s < _INFINITY:
            latency_s = 0.0
        bucket = bisect_left(LATENCY_BOUNDS_S, latency_s)
        counts = self._counts
        if counts is None or bucket >= len(counts):
            counts = self._counts = [*(counts or ()), *[0] * (bucket + 1 - len(counts or ()))]
        counts[bucket] += 1
        self._total_s += latency_s

    def read(self) -> BucketCounts:
        """Counts until now."""
        counts = self._counts or ()
        return BucketCounts((*counts, *(0,) * (_BUCKETS - len(counts))), self._total_s)


def merge(first: BucketCounts, second: BucketCounts) -> BucketCounts:
    """Sum of two histograms."""
    counts = tuple(one + other for one, other in zip(first.counts, second.counts, strict=True))
    return BucketCounts(counts, first.total_s + second.total_s)
