import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.rates import KEYS_MAX, InvalidRate, KeyRates, Rate


def passed(rate: Rate, *, from_s: float, to_s: float) -> int:
    """The number of tasks that the rate lets pass while there is always a task waiting."""
    count, now_s = 0, from_s
    while (now_s := rate.ready_s(now_s)) < to_s:
        rate.take(now_s)
        count += 1
        assert count < 1_000_000
    return count


def test_a_rate_allows_a_burst_of_one_second_and_then_holds() -> None:
    rate = Rate(10)
    assert passed(rate, from_s=0.0, to_s=0.001) == 10
    assert passed(rate, from_s=0.001, to_s=100.0) == pytest.approx(1000, abs=2)


def test_a_rate_below_one_per_second_allows_single_tasks() -> None:
    rate = Rate(0.1)
    assert passed(rate, from_s=0.0, to_s=5.0) == 1
    assert passed(rate, from_s=5.0, to_s=100.0) == 9


def test_a_rate_of_zero_blocks_all_and_an_infinite_rate_limits_nothing() -> None:
    assert Rate(0).ready_s(5.0) == math.inf
    unlimited = Rate(math.inf)
    for _ in range(10_000):
        assert unlimited.ready_s(5.0) == 5.0
        unlimited.take(5.0)


def test_a_task_given_back_frees_its_share_of_the_rate() -> None:
    rate = Rate(1)
    rate.take(0.0)
    assert rate.ready_s(0.5) == pytest.approx(1.0)
    rate.give_back()
    assert rate.ready_s(0.5) == 0.5


def test_tasks_that_have_passed_count_against_a_changed_rate() -> None:
    rate = Rate(10)
    assert passed(rate, from_s=0.0, to_s=0.001) == 10
    rate.change(1000)
    assert rate.ready_s(0.001) == 0.001
    rate.change(0)
    assert rate.ready_s(0.001) == math.inf


@pytest.mark.parametrize("wrong", [-1.0, math.nan, -math.inf])
def test_an_invalid_rate_is_rejected(wrong: float) -> None:
    with pytest.raises(InvalidRate, match="give 0 to stop"):
        Rate(wrong)
    with pytest.raises(InvalidRate):
        KeyRates(wrong)


@given(st.lists(st.floats(0, 3), max_size=200), st.sampled_from([0.5, 1.0, 7.0, 100.0]))
def test_no_more_tasks_pass_than_the_rate_and_one_burst_allow(steps: list[float], rate_per_s: float) -> None:
    """FL-14."""
    rate, now_s, taken = Rate(rate_per_s), 0.0, 0
    for step in steps:
        now_s += step
        while rate.ready_s(now_s) <= now_s and taken < 100_000:
            rate.take(now_s)
            taken += 1
        assert taken <= now_s * rate_per_s + max(1.0, rate_per_s) + 1


def test_the_rate_of_a_key_is_proportional_to_its_weight() -> None:
    rates = KeyRates(10)
    assert passed(rates.of("heavy", 5.0), from_s=0.0, to_s=10.0) == pytest.approx(550, abs=2)
    assert passed(rates.of("light", 1.0), from_s=0.0, to_s=10.0) == pytest.approx(110, abs=2)


def test_a_key_keeps_its_rate_state_and_a_new_weight_takes_effect_at_once() -> None:
    rates = KeyRates(10)
    rate = rates.of("a", 1.0)
    assert rates.of("a", 1.0) is rate
    assert passed(rate, from_s=0.0, to_s=0.001) == 10
    assert rates.of("a", 100.0).ready_s(0.001) == 0.001


def test_the_number_of_cached_keys_is_bounded() -> None:
    rates = KeyRates(10)
    first = rates.of("first", 1.0)
    for number in range(KEYS_MAX):
        rates.of(f"key-{number}", 1.0)
    assert rates.of("first", 1.0) is not first
    assert rates.of(f"key-{KEYS_MAX - 1}", 1.0) is rates.of(f"key-{KEYS_MAX - 1}", 1.0)


def test_a_changed_limit_applies_to_cached_keys() -> None:
    rates = KeyRates(math.inf)
    rate = rates.of("a", 2.0)
    assert rate.ready_s(1.0) == 1.0
    rates.change(0)
    assert rates.is_limiting
    assert rate.ready_s(1.0) == math.inf
