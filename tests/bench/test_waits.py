import random

import pytest

from fairlead.bench.waits import COLUMNS, PERCENTILES, WAIT_S_MAX, Waits


def exact(waits_s: list[float], percentile: float) -> float:
    """The exact percentile, by sorting."""
    ordered = sorted(waits_s)
    return ordered[max(0, -(-len(ordered) * round(percentile * 10) // 1000) - 1)]


@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_percentiles_are_exact_to_three_digits(spread: float) -> None:
    source = random.Random(7)
    waits_s = [0.01 * source.lognormvariate(0, spread) for _ in range(20_000)]
    waits = Waits()
    for wait_s in waits_s:
        waits.add(wait_s)
    for percentile in PERCENTILES:
        # Rounding to microseconds loses up to half a microsecond.
        assert waits.at_s(percentile) == pytest.approx(exact(waits_s, percentile), rel=0.001, abs=1e-6)
    assert waits.max_s == max(waits_s)
    assert waits.mean_s == pytest.approx(sum(waits_s) / len(waits_s))


def test_no_percentile_is_above_the_maximum() -> None:
    waits = Waits()
    waits.add(1.2345)
    assert [waits.at_s(percentile) for percentile in PERCENTILES] == [1.2345] * len(PERCENTILES)
    assert waits.row() == (1, *[1234] * (len(COLUMNS) - 1))


def test_waits_below_a_second_are_shown_with_microseconds() -> None:
    waits = Waits()
    waits.add(0.0012345)
    assert waits.row()[1] == 1.234


def test_without_waits_there_are_no_percentiles() -> None:
    assert Waits().row() == (0, *[None] * (len(COLUMNS) - 1))


def test_waits_out_of_range_are_counted() -> None:
    waits = Waits()
    waits.add(10 * WAIT_S_MAX)
    waits.add(-0.001)
    assert waits.count == 2
    assert waits.max_s == 10 * WAIT_S_MAX
    assert waits.at_s(50) == 0.0
    assert waits.at_s(99) == pytest.approx(WAIT_S_MAX, rel=0.001)


def test_a_merge_equals_a_single_record_of_all_waits() -> None:
    one, other, both = Waits(), Waits(), Waits()
    for number in range(1, 1001):
        (one if number % 3 else other).add(number / 1000)
        both.add(number / 1000)
    one.merge(other)
    assert one.row() == both.row()
