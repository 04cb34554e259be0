import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.matching.rates import KEYS_MAX, InvalidRate, KeyRates, Rate


def passed(rate: Rate, *, from_s: float, to_s: float) -> int:
    """How many pass when as many come as can."""
    count, now_s = 0, from_s
    while (now_s := rate.ready_s(now_s)) < to_s:
        rate.take(now_s)
        count += 1
        assert count < 1_000_000
    return count


def test_after_a_pause_a_seconds_worth_passes_at_once_and_then_the_rate_holds() -> None:
    rate = Rate(10)
    assert passed(rate, from_s=0.0, to_s=0.001) == 10
    assert passed(rate, from_s=0.001, to_s=100.0) == pytest.approx(1000, abs=2)


def test_less_than_one_a_second_is_still_one_at_a_time() -> None:
    rate = Rate(0.1)
    assert passed(rate, from_s=0.0, to_s=5.0) == 1
    assert passed(rate, from_s=5.0, to_s=100.0) == 9


def test_a_rate_of_zero_stops_everything_and_none_limits_nothing() -> None:
    assert Rate(0).ready_s(5.0) == math.inf
    unlimited = Rate(math.inf)
    for _ in range(10_000):
        assert unlimited.ready_s(5.0) == 5.0
        unlimited.take(5.0)


def test_what_is_given_back_can_pass_again() -> None:
    rate = Rate(1)
    rate.take(0.0)
    assert rate.ready_s(0.5) == pytest.approx(1.0)
    rate.give_back()
    assert rate.ready_s(0.5) == 0.5


def test_another_rate_counts_what_has_passed() -> None:
    rate = Rate(10)
    assert passed(rate, from_s=0.0, to_s=0.001) == 10
    rate.change(1000)
    assert rate.ready_s(0.001) == 0.001
    rate.change(0)
    assert rate.ready_s(0.001) == math.inf


@pytest.mark.parametrize("wrong", [-1.0, math.nan, -math.inf])
def test_a_rate_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidRate, match="give 0 to stop"):
        Rate(wrong)
    with pytest.raises(InvalidRate):
        KeyRates(wrong)


@given(st.lists(st.floats(0, 3), max_size=200), st.sampled_from([0.5, 1.0, 7.0, 100.0]))
def test_no_more_passes_than_the_rate_and_one_burst(steps: list[float], rate_per_s: float) -> None:
    """Facts, cadence-matching (b) 16."""
    rate, now_s, taken = Rate(rate_per_s), 0.0, 0
    for step in steps:
        now_s += step
        while rate.ready_s(now_s) <= now_s and taken < 100_000:
            rate.take(now_s)
            taken += 1
        assert taken <= now_s * rate_per_s + max(1.0, rate_per_s) + 1


def test_a_keys_rate_is_in_proportion_to_its_weight() -> None:
    rates = KeyRates(10)
    assert passed(rates.of("heavy", 5.0), from_s=0.0, to_s=10.0) == pytest.approx(550, abs=2)
    assert passed(rates.of("light", 1.0), from_s=0.0, to_s=10.0) == pytest.approx(110, abs=2)


def test_a_key_keeps_its_rate_while_it_is_remembered_and_a_new_weight_counts_at_once() -> None:
    rates = KeyRates(10)
    rate = rates.of("a", 1.0)
    assert rates.of("a", 1.0) is rate
    assert passed(rate, from_s=0.0, to_s=0.001) == 10
    assert rates.of("a", 100.0).ready_s(0.001) == 0.001


def test_the_keys_that_are_remembered_are_bounded() -> None:
    rates = KeyRates(10)
    first = rates.of("first", 1.0)
    for number in range(KEYS_MAX):
        rates.of(f"key-{number}", 1.0)
    assert rates.of("first", 1.0) is not first
    assert rates.of(f"key-{KEYS_MAX - 1}", 1.0) is rates.of(f"key-{KEYS_MAX - 1}", 1.0)


def test_new_limits_reach_the_keys_that_are_remembered() -> None:
    rates = KeyRates(math.inf)
    rate = rates.of("a", 2.0)
    assert rate.ready_s(1.0) == 1.0
    rates.change(0)
    assert rates.is_limiting
    assert rate.ready_s(1.0) == math.inf
