import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.scaling import InvalidWindow, RateWindow


def window(*, buckets: int = 10, started_s: float = 0.0) -> RateWindow:
    return RateWindow(bucket_s=1.0, buckets=buckets, started_s=started_s)


def arrive(measured: RateWindow, *, per_second: int, from_s: float, to_s: float) -> None:
    """Add evenly spaced arrivals."""
    count = round((to_s - from_s) * per_second)
    for number in range(count):
        measured.add(1, from_s + number / per_second)


@pytest.mark.parametrize("now_s", [1.0, 1.5, 2.0, 3.7, 10.0, 25.4])
def test_a_steady_rate_is_exact_from_the_first_bucket(now_s: float) -> None:
    measured = window()
    arrive(measured, per_second=100, from_s=0.0, to_s=now_s)
    assert measured.rate(now_s) == 100.0


def test_a_burst_in_the_first_bucket_counts_as_spread_over_the_bucket() -> None:
    measured = window(started_s=5.0)
    measured.add(30, 5.001)
    assert measured.rate(5.002) == 30.0


def test_the_time_between_the_start_and_the_first_arrival_counts() -> None:
    measured = window(started_s=100.0)
    measured.add(40, 103.5)
    assert measured.rate(104.0) == 10.0


def test_bursts_at_the_start_of_each_bucket_are_not_overestimated() -> None:
    measured = window()
    for second in range(30):
        measured.add(70, float(second))
        assert measured.rate(float(second)) == 70.0


def test_the_rate_reaches_a_new_load_within_one_window_without_overshoot() -> None:
    measured = window()
    arrive(measured, per_second=100, from_s=0.0, to_s=20.0)
    seen = []
    for second in range(20, 40):
        arrive(measured, per_second=300, from_s=float(second), to_s=second + 1.0)
        seen.append(measured.rate(second + 1.0))
    assert seen == sorted(seen)
    assert seen[:10] == [100.0 + 20.0 * second for second in range(1, 11)]
    assert set(seen[10:]) == {300.0}


def test_the_rate_is_zero_after_a_window_without_arrivals() -> None:
    measured = window(buckets=5)
    measured.add(100, 0.5)
    assert measured.rate(5.9) == 20.0
    assert measured.rate(6.0) == 0.0
    assert measured.rate(1e9) == 0.0


def test_a_jump_of_the_clock_counts_as_time_without_arrivals_and_is_cheap() -> None:
    measured = window()
    arrive(measured, per_second=50, from_s=0.0, to_s=10.0)
    assert measured.rate(1e15) == 0.0
    measured.add(10, 1e15)
    assert measured.rate(1e15 + 1) == 1.0


def test_arrivals_while_the_clock_stands_still_fill_one_bucket() -> None:
    measured = window()
    arrive(measured, per_second=50, from_s=0.0, to_s=10.0)
    for _ in range(25):
        measured.add(1, 10.0)
    assert measured.rate(10.0) == 50.0
    assert measured.rate(11.0) == (9 * 50 + 25) / 10


def test_clock_readings_that_differ_slightly_do_not_make_time_run_faster() -> None:
    measured = window()
    arrive(measured, per_second=50, from_s=0.0, to_s=10.0)
    for _ in range(25):
        measured.add(1, 10.9)
        measured.add(1, 10.1)
    assert measured.rate(10.95) == 50.0
    assert measured.rate(11.0) == 50.0
    assert measured.rate(12.0) == 45.0


@pytest.mark.parametrize("back_s", [1.0, 7.0, 3600.0, 1e6])
def test_a_clock_that_is_set_back_does_not_change_the_rate(back_s: float) -> None:
    measured = window()
    arrive(measured, per_second=100, from_s=0.0, to_s=20.0)
    assert measured.rate(20.0) == 100.0
    assert measured.rate(20.0 - back_s) == 100.0
    for second in range(20, 50):
        arrive(measured, per_second=100, from_s=second - back_s, to_s=second + 1 - back_s)
        assert measured.rate(second + 1 - back_s) == pytest.approx(100.0, rel=1e-6)


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50)), max_size=60),
    st.integers(1, 6),
    st.integers(-1000, 1000),
)
def test_the_rate_is_measured_over_the_complete_buckets_in_the_window(
    steps: list[tuple[int, int]], buckets: int, started_s: int
) -> None:
    """Compared with a list of all arrivals; steps of a sixteenth of a bucket make every sum exact."""
    measured = RateWindow(bucket_s=1.0, buckets=buckets, started_s=started_s)
    arrivals: list[tuple[float, int]] = []
    now_s = float(started_s)
    for sixteenths, count in steps:
        now_s += sixteenths / 16
        measured.add(count, now_s)
        arrivals.append((now_s - started_s, count))
        ended = math.floor(now_s - started_s)
        first = max(0, ended - buckets)
        if ended == 0:
            expected = float(sum(count for _, count in arrivals))
        else:
            expected = sum(count for at_s, count in arrivals if first <= at_s < ended) / (ended - first)
        assert measured.rate(now_s) == expected


@given(
    st.lists(
        st.tuples(st.floats(-1e9, 1e9), st.integers(0, 1000)),
        max_size=60,
    )
)
def test_the_rate_stays_between_zero_and_all_arrivals_per_bucket_with_any_clock(
    steps: list[tuple[float, int]],
) -> None:
    measured = window(buckets=3)
    total = 0
    for now_s, count in steps:
        measured.add(count, now_s)
        total += count
        assert 0.0 <= measured.rate(now_s) <= total


@pytest.mark.parametrize("bucket_s", [0.0, -1.0, math.inf, math.nan])
def test_the_length_of_a_bucket_must_be_positive(bucket_s: float) -> None:
    with pytest.raises(InvalidWindow, match="bucket lasts"):
        RateWindow(bucket_s=bucket_s, buckets=10, started_s=0.0)


@pytest.mark.parametrize("buckets", [0, -1, 1_001])
def test_the_number_of_buckets_is_bounded(buckets: int) -> None:
    with pytest.raises(InvalidWindow, match="buckets"):
        RateWindow(bucket_s=1.0, buckets=buckets, started_s=0.0)
