import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairlead.core.routing.gradual as gradual_module
from fairlead.core.errors import FixRequest
from fairlead.core.hashing import HASH_MAX
from fairlead.core.routing import GradualChange, InvalidChange

KEYS = [f"namespace:queue-{number}:1" for number in range(10_000)]

times = st.floats(min_value=-1e12, max_value=1e12)
keys = st.text(max_size=20)


def switched(change: GradualChange[str], now_s: float) -> set[str]:
    return {key for key in KEYS if change.value(key, now_s) == "new"}


@given(ends=st.tuples(times, times).map(sorted), key=keys, now_s=times)
def test_a_key_uses_the_old_value_before_its_switch_time_and_the_new_value_after_it(
    ends: list[float], key: str, now_s: float
) -> None:
    """MC-15: each partition switches at its own wall-clock time."""
    start_s, end_s = ends
    change = GradualChange("old", "new", start_s, end_s)
    moment_s = change.moment(key)

    assert start_s <= moment_s <= end_s
    assert change.value(key, now_s) == ("new" if now_s >= moment_s else "old")
    assert change.value(key, math.nextafter(start_s, -math.inf)) == "old"
    assert change.value(key, end_s) == "new"


def test_no_key_switches_before_the_start_and_every_key_has_switched_at_the_end() -> None:
    change = GradualChange("old", "new", start_s=1000.0, end_s=1600.0)

    assert switched(change, 999.999) == set()
    assert switched(change, 1600.0) == set(KEYS)


def test_keys_switch_once_and_are_spread_evenly_over_the_window() -> None:
    """The share of 10,000 keys has a standard deviation of at most 0.5 %."""
    change = GradualChange("old", "new", start_s=1000.0, end_s=1600.0)
    before: set[str] = set()
    for step in range(11):
        now = switched(change, 1000.0 + 60.0 * step)
        assert before <= now
        assert len(now) / len(KEYS) == pytest.approx(step / 10, abs=0.02)
        before = now


def test_keys_switch_at_different_times() -> None:
    change = GradualChange("old", "new", start_s=1000.0, end_s=1600.0)

    assert len({change.moment(key) for key in KEYS}) == len(KEYS)


def test_a_change_with_a_window_of_zero_length_happens_at_once() -> None:
    change = GradualChange("old", "new", start_s=1000.0, end_s=1000.0)

    assert switched(change, math.nextafter(1000.0, 0.0)) == set()
    assert switched(change, 1000.0) == set(KEYS)


def test_the_last_key_switches_at_the_end_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rounding, this window ends before its start plus its length; all keys must still have switched at the end."""
    start_s, end_s = 21.9, 103.8
    assert start_s + (end_s - start_s) > end_s
    monkeypatch.setattr(gradual_module, "hash64", lambda _key: HASH_MAX)

    assert GradualChange("old", "new", start_s, end_s).value("key", end_s) == "new"


@pytest.mark.parametrize(
    ("start_s", "end_s"),
    [(2.0, 1.0), (math.nan, 1.0), (1.0, math.nan), (0.0, math.inf), (-math.inf, 0.0), (-1.7e308, 1.7e308)],
)
def test_an_invalid_window_is_rejected(start_s: float, end_s: float) -> None:
    with pytest.raises(InvalidChange) as raised:
        GradualChange(0, 8, start_s, end_s)
    assert isinstance(raised.value, FixRequest)
