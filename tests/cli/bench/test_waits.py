import random

import pytest

from fairlead.cli.bench.waits import COLUMNS, PERCENTILES, WAIT_S_MAX, Waits


def exact(waits_s: list[float], percentile: float) -> float:
    """The smallest wait that this share of all did not exceed."""
    ordered = sorted(waits_s)
    return ordered[max(0, -(-len(ordered) * round(percentile * 10) // 1000) - 1)]


@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_percentiles_agree_with_the_exact_ones_to_three_digits(spread: float) -> None:
    source = random.Random(7)
    waits_s = [0.01 * source.lognormvariate(0, spread) for _ in range(20_000)]
    waits = Waits()
    for wait_s in waits_s:
        waits.add(wait_s)
    for percentile in PERCENTILES:
        # Half a microsecond is lost by rounding.
        assert waits.at_s(percentile) == pytest.approx(exact(waits_s, percentile), rel=0.001, abs=1e-6)
    assert waits.max_s == max(waits_s)
    assert waits.mean_s == pytest.approx(sum(waits_s) / len(waits_s))


def test_no_percentile_is_above_the_maximum() -> None:
    waits = Waits()
    waits.add(1.2345)
    assert [waits.at_s(percentile) for percentile in PERCENTILES] == [1.2345] * len(PERCENTILES)
    assert waits.row() == (1, *[1234] * (len(COLUMNS) - 1))


def test_below_a_second_microseconds_are_shown() -> None:
    waits = Waits()
    waits.add(0.0012345)
    assert waits.row()[1] == 1.234


def test_of_nothing_there_is_no_percentile() -> None:
    assert Waits().row() == (0, *[None] * (len(COLUMNS) - 1))


def test_a_wait_beyond_all_bounds_is_counted_and_not_lost() -> None:
    waits = Waits()
    waits.add(10 * WAIT_S_MAX)
    waits.add(-0.001)
    assert waits.count == 2
    assert waits.max_s == 10 * WAIT_S_MAX
    assert waits.at_s(50) == 0.0
    assert waits.at_s(99) == pytest.approx(WAIT_S_MAX, rel=0.001)


def test_a_merge_is_as_if_one_had_seen_all() -> None:
    one, other, both = Waits(), Waits(), Waits()
    for number in range(1, 1001):
        (one if number % 3 else other).add(number / 1000)
        both.add(number / 1000)
    one.merge(other)
    assert one.row() == both.row()
