import math

import pytest

from fairlead.telemetry.buckets import LATENCY_BOUNDS_S, BucketCounts, Buckets, merge


def index_of(bound_s: float) -> int:
    return LATENCY_BOUNDS_S.index(bound_s)


def test_a_latency_is_counted_in_the_first_bucket_whose_bound_it_does_not_exceed() -> None:
    buckets = Buckets()
    buckets.observe(0.005)
    buckets.observe(0.0051)
    counted = buckets.read()
    assert counted.counts[index_of(0.005)] == 1
    assert counted.counts[index_of(0.01)] == 1
    assert sum(counted.counts) == 2
    assert counted.total_s == pytest.approx(0.0101)


def test_a_latency_above_all_bounds_is_counted_in_the_last_bucket() -> None:
    buckets = Buckets()
    buckets.observe(LATENCY_BOUNDS_S[-1] * 2)
    assert buckets.read().counts[-1] == 1
    assert len(buckets.read().counts) == len(LATENCY_BOUNDS_S) + 1


@pytest.mark.parametrize("latency_s", [-5.0, -0.0, 0.0, math.nan, math.inf, -math.inf])
def test_an_invalid_latency_is_counted_as_zero(latency_s: float) -> None:
    """Clocks of two hosts that differ can give such a latency; it must not make the sum decrease or become NaN."""
    buckets = Buckets()
    buckets.observe(2.0)
    buckets.observe(latency_s)
    assert buckets.read().total_s == 2.0
    assert buckets.read().counts[0] == 1


def test_counts_that_were_read_do_not_change() -> None:
    buckets = Buckets()
    before = buckets.read()
    buckets.observe(1.0)
    assert sum(before.counts) == 0


def test_two_histograms_are_merged_bucket_by_bucket() -> None:
    assert merge(BucketCounts((1, 2), 3.0), BucketCounts((10, 20), 0.5)) == BucketCounts((11, 22), 3.5)
