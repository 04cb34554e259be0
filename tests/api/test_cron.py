"""Cron schedules, with the semantics of Temporal's parser."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.cron import BadSchedule, backoff_ns, check_schedule
from fairlead.api.times import SECOND_NS


def after(schedule: str, moment: str, count: int = 1) -> list[str]:
    """The next times of a schedule."""
    now_ns = int(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()) * SECOND_NS
    times = []
    for _ in range(count):
        wait_ns = backoff_ns(schedule, scheduled_ns=now_ns, now_ns=now_ns)
        assert wait_ns is not None
        now_ns += wait_ns
        times.append(datetime.fromtimestamp(now_ns // SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    return times


@pytest.mark.parametrize(
    ("schedule", "moment", "times"),
    [
        ("*/15 * * * *", "2026-03-01T10:14:59", ["2026-03-01T10:15:00", "2026-03-01T10:30:00"]),
        ("5-20/10 9 * * *", "2026-03-01T10:00:00", ["2026-03-02T09:05:00", "2026-03-02T09:15:00"]),
        ("0 0 1 1 *", "2026-03-01T00:00:00", ["2027-01-01T00:00:00", "2028-01-01T00:00:00"]),
        ("@monthly", "2026-01-31T00:00:00", ["2026-02-01T00:00:00", "2026-03-01T00:00:00"]),
        ("0 12 * * MON-WED", "2026-03-04T13:00:00", ["2026-03-09T12:00:00", "2026-03-10T12:00:00"]),
        # With both a date and a weekday, one match is enough.
        ("0 0 13 * FRI", "2026-03-01T00:00:00", ["2026-03-06T00:00:00", "2026-03-13T00:00:00"]),
        ("0 0 ? * 0", "2026-03-02T00:00:00", ["2026-03-08T00:00:00", "2026-03-15T00:00:00"]),
        ("0 0 29 feb *", "2026-03-02T00:00:00", ["2028-02-29T00:00:00"]),
        ("30/10 * * * *", "2026-03-02T00:00:00", ["2026-03-02T00:30:00", "2026-03-02T00:40:00"]),
        ("@every 90s", "2026-03-02T00:00:00", ["2026-03-02T00:01:30", "2026-03-02T00:03:00"]),
        ("@every 1h30m", "2026-03-02T00:00:00", ["2026-03-02T01:30:00"]),
        ("CRON_TZ=America/New_York 0 6 * * *", "2026-01-01T00:00:00", ["2026-01-01T11:00:00"]),
        # Daylight saving skips one of these times, and repeats another.
        ("TZ=America/New_York 30 2 * * *", "2026-03-07T08:00:00", ["2026-03-09T06:30:00"]),
        ("TZ=America/New_York 30 1 * * *", "2026-11-01T00:00:00", ["2026-11-01T05:30:00", "2026-11-01T06:30:00"]),
    ],
)
def test_the_next_times_of_a_schedule(schedule: str, moment: str, times: list[str]) -> None:
    assert after(schedule, moment, len(times)) == times


@pytest.mark.parametrize(
    "schedule",
    ["* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 7", "a * * * *", "*/0 * * * *",
     "5-1 * * * *", "@often", "@every", "@every 5", "@every 1x", "TZ=Mars/Sea * * * * *", "* * * * * *"],
)  # fmt: skip
def test_an_invalid_schedule_is_rejected(schedule: str) -> None:
    with pytest.raises(BadSchedule):
        check_schedule(schedule)


def test_a_date_that_never_comes_has_no_next_time() -> None:
    assert backoff_ns("0 0 31 2 *", scheduled_ns=0, now_ns=0) is None
    assert backoff_ns("", scheduled_ns=0, now_ns=0) is None


def test_times_that_passed_during_the_run_are_skipped() -> None:
    start_ns = 1_800_000_000 * SECOND_NS
    now_ns = start_ns + 3725 * SECOND_NS + 5
    wait_ns = backoff_ns("@every 1m", scheduled_ns=start_ns, now_ns=now_ns)
    # 3,725 s have passed: the next minute begins in 55 s, rounded to whole seconds.
    assert wait_ns == 55 * SECOND_NS


@given(
    schedule=st.sampled_from(["*/7 * * * *", "0 */5 * * 2", "@hourly", "@every 13s", "15 3 * 2,5 *"]),
    scheduled_s=st.integers(10**9, 2 * 10**9),
    lasted_ns=st.integers(0, 10**16),
)
def test_the_next_time_is_never_in_the_past_and_times_never_repeat(
    schedule: str, scheduled_s: int, lasted_ns: int
) -> None:
    now_ns = scheduled_s * SECOND_NS + lasted_ns
    times = [now_ns]
    for _ in range(3):
        wait_ns = backoff_ns(schedule, scheduled_ns=times[-1], now_ns=times[-1])
        assert wait_ns is not None
        assert wait_ns >= 0
        times.append(-(-(times[-1] + wait_ns) // SECOND_NS) * SECOND_NS)
    assert all(later > earlier for earlier, later in pairwise(times[1:]))
