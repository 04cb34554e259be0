import json
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.schedule.v1 import IntervalSpec, Range, ScheduleSpec, StructuredCalendarSpec

from fairlead.api.schedules.errors import BadSpec
from fairlead.api.schedules.spec import Spec, canonical, compile_spec
from fairlead.api.times import SECOND_NS

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("reference_specs.json").read_text())
# Cases in which the reference server contradicts the API's own description of `timezone_name`: an action at a time of
# day that occurs twice (when clocks go back) is taken twice.
ONCE_AT_THE_REFERENCE = {
    "repeated hour in Berlin": "2026-10-25T00:00:00Z",
    "southern hemisphere": "2026-04-04T15:30:00Z",
}
ALWAYS = StructuredCalendarSpec(
    second=[Range(end=59)],
    minute=[Range(end=59)],
    hour=[Range(end=23)],
    day_of_month=[Range(start=1, end=31)],
    month=[Range(start=1, end=12)],
    day_of_week=[Range(end=6)],
)


def compiled(spec: ScheduleSpec) -> Spec:
    return compile_spec(canonical(spec))


def cron(text: str, **rest: Any) -> Spec:
    return compiled(ScheduleSpec(cron_string=[text], **rest))


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * SECOND_NS


def times(spec: Spec, begin_ns: int, end_ns: int) -> list[int]:
    found = []
    for firing in spec.times(begin_ns, "s"):
        if firing.actual_ns > end_ns:
            break
        found.append(firing.actual_ns)
    return found


def ns(text: str) -> int:
    moment = Timestamp()
    moment.FromJsonString(text)
    return moment.ToNanoseconds()


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_spec_has_the_action_times_of_the_reference_server(case: dict[str, Any]) -> None:
    spec = compiled(ParseDict(case["spec"], ScheduleSpec()))
    expected = {ns(text) for text in case["times"]}
    if case["name"] in ONCE_AT_THE_REFERENCE:
        expected.add(ns(ONCE_AT_THE_REFERENCE[case["name"]]))
    assert times(spec, ns(case["from"]), ns(case["to"])) == sorted(expected)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_spec_is_described_as_the_reference_server_does(case: dict[str, Any]) -> None:
    spec = canonical(ParseDict(case["spec"], ScheduleSpec()))
    assert MessageToDict(spec) == case["canonical"]
    assert canonical(spec) == spec


# By spec: the reference server's error message, after "Invalid schedule spec: ".
REFUSED = {
    "* * * *": "CronString does not have 5-7 fields",
    "": "CronString does not have 5-7 fields",
    "@Hourly": "CronString does not have 5-7 fields",
    "* * * * * * * *": "CronString does not have 5-7 fields",
    "61 * * * *": "Minute is not in range [0-59]",
    "1, * * * *": "Minute is not in range [0-59]",
    "a b c d e": (
        "Minute is not in range [0-59], Hour is not in range [0-23], DayOfWeek is not in range [0-7], "
        "DayOfMonth is not in range [1-31], Month is not in range [1-12]"
    ),
    "*/0 * * * *": "Minute has invalid Step",
    "1/2/3 * * * *": "Minute has too many slashes",
    "1-2-3 * * * *": "Minute has too many dashes",
    "5-1 * * * *": "Minute End is before Start or not in range [0-59]",
    "-1 * * * *": "Minute Start is not in range [0-59]",
    "0 0 * * mon-sun": "DayOfWeek End is before Start or not in range [0-7]",
    "0 0 * * 8": "DayOfWeek is not in range [0-7]",
    "0 0 * ja *": "Month is not in range [1-12]",
    "* * * * * 1999": "Year is not in range [2000-2100]",
    "@every": "CronString does not have interval after @every",
    "@every x": 'time: invalid duration "x"',
    "@every 5": 'time: missing unit in duration "5"',
    "@every 5q": 'time: unknown unit "q" in duration "5q"',
    "@every  5m": 'time: invalid duration " 5m"',
    "@every 9999999h": 'time: invalid duration "9999999h"',
    "@every 500ms": "interval is too small",
    "@every -1h": "interval is too small",
    "@every 1h/-5m": "phase is negative",
    "@every 1h/2h": "phase cannot be greater than Interval",
    "TZ=UTC": "CronString has time zone but missing fields",
    "TZ=Nope/X 0 0 * * *": "unknown time zone Nope/X",
    "TZ=utc 0 0 * * *": "unknown time zone utc",
    "TZ=../x 0 0 * * *": "time: invalid location name",
    "0 0 * * * # " + "c" * 201: "invalid calendar spec: comment is too long",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_bad_cron_string_is_refused_in_the_reference_servers_words(text: str) -> None:
    with pytest.raises(BadSpec) as raised:
        cron(text)
    assert str(raised.value) == REFUSED[text]


def test_every_bad_field_of_a_structured_calendar_is_named() -> None:
    calendar = StructuredCalendarSpec(
        second=[Range(start=60)],
        hour=[Range(start=5, end=2)],
        year=[Range(start=1)],
        day_of_week=[Range(start=7, step=-1)],
    )
    with pytest.raises(BadSpec) as raised:
        canonical(ScheduleSpec(structured_calendar=[calendar]))
    assert str(raised.value) == (
        "invalid calendar spec: Second Start is not in range [0-59], Hour End is before Start or not in range [0-23], "
        "Year Start is not in range [2000-2100], DayOfWeek Start is not in range [0-6], DayOfWeek has invalid Step"
    )


@pytest.mark.parametrize(
    "spec",
    [
        ScheduleSpec(cron_string=["TZ=UTC 0 0 * * *"], timezone_name="Asia/Tokyo"),
        ScheduleSpec(cron_string=["TZ=UTC 0 0 * * *", "0 0 * * *"]),
        ScheduleSpec(cron_string=["TZ=UTC 0 0 * * *"], timezone_data=b"x"),
    ],
)
def test_time_zones_that_contradict_each_other_are_refused(spec: ScheduleSpec) -> None:
    with pytest.raises(BadSpec, match="conflicting timezone names"):
        canonical(spec)


def test_a_damaged_definition_of_a_time_zone_is_refused() -> None:
    with pytest.raises(BadSpec, match="malformed time zone information"):
        canonical(ScheduleSpec(timezone_name="Nope/X", timezone_data=b"abc"))


def test_the_definition_of_a_time_zone_may_come_with_the_spec() -> None:
    tokyo = files("tzdata").joinpath("zoneinfo", "Asia", "Tokyo").read_bytes()
    spec = cron("0 9 * * *", timezone_name="Mine", timezone_data=tokyo)
    assert times(spec, at("2026-03-01T00:00:00+00:00") - 1, at("2026-03-01T12:00:00+00:00")) == [
        at("2026-03-01T00:00:00+00:00")
    ]


def test_a_day_that_begins_twice_is_matched_at_its_first_beginning() -> None:
    spec = cron("0 0 1 11 *", timezone_name="America/Havana")
    assert times(spec, at("2026-10-15T00:00:00+00:00"), at("2026-11-15T00:00:00+00:00")) == [
        at("2026-11-01T04:00:00+00:00"),
        at("2026-11-01T05:00:00+00:00"),
    ]


def test_jitter_is_the_same_each_time_differs_by_schedule_and_keeps_the_order() -> None:
    spec = cron("0 * * * *", jitter=Duration(seconds=86400))
    begin = at("2026-03-01T00:00:00+00:00")
    first = [spec.next(begin + hour * 3600 * SECOND_NS, "one") for hour in range(50)]
    again = [spec.next(begin + hour * 3600 * SECOND_NS, "one") for hour in range(50)]
    other = [spec.next(begin + hour * 3600 * SECOND_NS, "two") for hour in range(50)]
    assert first == again != other
    delays = [firing.actual_ns - firing.nominal_ns for firing in first if firing]
    # Jitter never moves an action past the next one, though it may be up to a day.
    assert all(0 <= delay < 3600 * SECOND_NS for delay in delays)
    assert max(delays) - min(delays) > 1800 * SECOND_NS


def test_jitter_is_within_its_bound() -> None:
    spec = cron("0 0 * * *", jitter=Duration(seconds=10))
    delays = [firing.actual_ns - firing.nominal_ns for firing, _ in zip(spec.times(0, "s"), range(200), strict=False)]
    assert len(set(delays)) > 150
    assert all(0 <= delay < 10 * SECOND_NS for delay in delays)


def test_long_excluded_ranges_are_skipped_in_one_step() -> None:
    weekend = StructuredCalendarSpec()
    weekend.CopyFrom(ALWAYS)
    del weekend.day_of_week[:]
    weekend.day_of_week.extend([Range(start=6), Range(start=0)])
    spec = compiled(
        ScheduleSpec(
            interval=[IntervalSpec(interval=Duration(seconds=1))],
            exclude_structured_calendar=[weekend],
            timezone_name="Europe/Berlin",
        )
    )
    # From Friday to Monday, over the night in which clocks go forward.
    firing = spec.next(at("2026-03-27T22:59:59+00:00"), "s")
    assert firing is not None
    assert firing.nominal_ns == at("2026-03-29T22:00:00+00:00")


def test_a_spec_that_excludes_all_its_times_has_no_action_times() -> None:
    interval = IntervalSpec(interval=Duration(seconds=60))
    always = ScheduleSpec(interval=[interval], exclude_structured_calendar=[ALWAYS])
    assert compiled(always).next(at("2026-01-01T00:00:00+00:00"), "s") is None
    at_zero = StructuredCalendarSpec()
    at_zero.CopyFrom(ALWAYS)
    del at_zero.second[:]
    at_zero.second.add()
    spec = ScheduleSpec(interval=[interval], exclude_structured_calendar=[at_zero])
    assert compiled(spec).next(at("2026-01-01T00:00:00+00:00"), "s") is None


@pytest.mark.parametrize("after_s", [-(10**15), -(2**62), 10**15, 2**62])
def test_times_beyond_all_bounds_are_handled(after_s: int) -> None:
    spec = compiled(ScheduleSpec(cron_string=["0 0 * * *", "@every 1h"]))
    firing = spec.next(after_s * SECOND_NS, "s")
    assert (firing is None) == (after_s > 0)


ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "America/Santiago"]
FIELD_VALUES = st.sampled_from(["*", "0", "*/7", "2-5", "1,3", "30/10"])


@given(
    minute=FIELD_VALUES,
    hour=st.sampled_from(["*", "0", "1-3", "*/6", "23"]),
    day=st.sampled_from(["*", "1", "8/7", "29-31"]),
    weekday=st.sampled_from(["*", "0", "mon-fri", "6,7"]),
    zone_name=st.sampled_from(ZONES),
    begin_s=st.integers(at("2026-01-01T00:00:00+00:00") // SECOND_NS, at("2027-01-01T00:00:00+00:00") // SECOND_NS),
)
def test_the_next_time_is_the_first_minute_whose_local_time_fits(
    *, minute: str, hour: str, day: str, weekday: str, zone_name: str, begin_s: int
) -> None:
    text = f"{minute} {hour} {day} * {weekday}"
    spec = cron(text, timezone_name=zone_name)
    calendar = canonical(ScheduleSpec(cron_string=[text])).structured_calendar[0]
    zone = ZoneInfo(zone_name)

    def fits(at_s: int) -> bool:
        local = datetime.fromtimestamp(at_s, UTC).astimezone(zone)
        parts = [
            (calendar.minute, local.minute),
            (calendar.hour, local.hour),
            (calendar.day_of_month, local.day),
            (calendar.day_of_week, local.isoweekday() % 7),
        ]
        return all(any(value in range(r.start, r.end + 1, r.step) for r in ranges) for ranges, value in parts)

    # Compare every minute of the following two days.
    first_s = begin_s - begin_s % 60 + 60
    days_s = int(timedelta(days=2).total_seconds())
    expected = next((at_s for at_s in range(first_s, begin_s + days_s, 60) if fits(at_s)), None)
    firing = spec.next(begin_s * SECOND_NS, "s")
    found_s = None if firing is None else firing.nominal_ns // SECOND_NS
    if expected is None:
        assert found_s is None or found_s >= begin_s + days_s
    else:
        assert found_s == expected
