"""The scale of a timeline: long idle times take little room, and everything keeps its order."""

import pytest

from fairlead.console.timeline import Span
from fairlead.console.timescale import IDLE_WIDTH, timescale


def span(began_s: float, ended_s: float | None) -> Span:
    return Span(kind="activity", label="pack", event_id=1, began_s=began_s, ended_s=ended_s)


def test_a_run_without_long_idle_times_has_a_linear_scale() -> None:
    for spans in ([], [span(0.0, 40.0), span(50.0, 100.0)], [span(10.0, None)]):
        scale = timescale(spans, 0.0, 100.0)
        assert not scale.idle
        assert [scale.place(at_s) for at_s in (-5.0, 0.0, 25.0, 100.0, 120.0)] == [0.0, 0.0, 0.25, 1.0, 1.0]


def test_a_long_idle_time_is_shortened_and_its_length_is_named() -> None:
    scale = timescale([span(0.0, 6.0), span(4.0, 10.0)], 0.0, 1_000.0)
    assert scale.idle_s == 990.0
    ((first, last),) = scale.idle
    assert (first, last) == pytest.approx((1 - IDLE_WIDTH, 1.0))
    assert scale.place(5.0) == pytest.approx((1 - IDLE_WIDTH) / 2)


def test_places_grow_with_time_across_several_idle_times() -> None:
    scale = timescale([span(400.0, 402.0), span(800.0, 802.0), span(801.0, 805.0)], 0.0, 1_200.0)
    assert len(scale.idle) == 3
    assert scale.idle_s == 400.0 + 398.0 + 395.0
    places = [scale.place(float(at_s)) for at_s in range(1_201)]
    assert places == sorted(places)
    assert places[0] == 0.0
    assert places[-1] == pytest.approx(1.0)
    # The busy seconds take most of the room.
    assert scale.place(402.0) - scale.place(400.0) > 0.2


def test_a_row_that_still_runs_leaves_no_idle_time() -> None:
    assert not timescale([span(0.0, 1.0), span(1.0, None)], 0.0, 1_000.0).idle


def test_the_wait_for_a_retry_or_an_open_timer_is_idle() -> None:
    done = span(0.0, 4.0)
    retried = Span(kind="activity", label="book", event_id=2, began_s=4.0, failed_s=500.0, outcome="retries")
    scale = timescale([done, retried], 0.0, 1_000.0)
    assert scale.idle_s == 996.0
    assert scale.place(4.0) > 0.8
    # The time after a late failure is shortened, too.
    late = Span(kind="activity", label="book", event_id=2, began_s=4.0, failed_s=850.0, outcome="retries")
    assert timescale([done, late], 0.0, 1_000.0).idle_s == 996.0
    timer = Span(kind="timer", label="timer 1", event_id=3, began_s=4.0, ran_s=4.0)
    assert timescale([done, timer], 0.0, 1_000.0).idle_s == 996.0


def test_a_run_of_a_moment_has_a_scale() -> None:
    assert timescale([span(5.0, 5.0)], 5.0, 5.0).place(5.0) == 0.0
