"""The times at which a schedule fires."""

import io
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from temporalio.api.schedule.v1 import IntervalSpec, Range, ScheduleSpec, StructuredCalendarSpec

from fairlead.api.schedules.calendar import TIME_S_MAX, Calendar, compiled
from fairlead.api.schedules.errors import BadSpec
from fairlead.api.schedules.text_specs import YEAR_MAX, YEAR_MIN, from_calendar, from_cron
from fairlead.api.times import MILLISECOND_NS, SECOND_NS, from_duration, from_timestamp
from fairlead.core.hashing import hash64

COMMENT_LENGTH_MAX = 200
# Maximum number of consecutive excluded times; if a spec excludes more, it counts as having no next time.
EXCLUDED_IN_A_ROW_MAX = 20_000
_COMPILED_MAX = 512
_JITTER_MS_MAX = 2**32 - 1

# Fields of a structured calendar, in the order of their error messages.
_BOUNDS = (
    ("second", "Second", 0, 59),
    ("minute", "Minute", 0, 59),
    ("hour", "Hour", 0, 23),
    ("day_of_month", "DayOfMonth", 1, 31),
    ("month", "Month", 1, 12),
    ("year", "Year", YEAR_MIN, YEAR_MAX),
    ("day_of_week", "DayOfWeek", 0, 6),
)


class Firing(NamedTuple):
    """A time at which a schedule fires: the nominal time of the spec, and the actual time with jitter."""

    nominal_ns: int
    actual_ns: int


class _Interval(NamedTuple):
    interval_s: int
    phase_s: int

    def next_s(self, after_s: int) -> int:
        return (max(after_s - self.phase_s, 0) // self.interval_s + 1) * self.interval_s + self.phase_s


class Spec(NamedTuple):
    """A compiled spec."""

    calendars: tuple[Calendar, ...]
    intervals: tuple[_Interval, ...]
    excluded: tuple[Calendar, ...]
    start_s: int | None
    end_ns: int | None
    jitter_ms: int

    def next(self, after_ns: int, seed: str) -> Firing | None:
        """The first time whose nominal second is after `after_ns`; None if there is none.

        `seed` identifies the schedule: another schedule gets another jitter for the same time.
        """
        after_s = after_ns // SECOND_NS
        if self.start_s is not None:
            after_s = max(after_s, self.start_s - 1)
        for _ in range(EXCLUDED_IN_A_ROW_MAX):
            nominal_s = self._next_s(after_s)
            if nominal_s is None or (self.end_ns is not None and nominal_s * SECOND_NS > self.end_ns):
                return None
            excluded_by = next((calendar for calendar in self.excluded if calendar.matches(nominal_s)), None)
            if excluded_by is None:
                nominal_ns = nominal_s * SECOND_NS
                return Firing(nominal_ns, nominal_ns + self._jitter_ns(nominal_s, seed))
            after_s = excluded_by.end_s(nominal_s)
        return None

    def times(self, after_ns: int, seed: str) -> Iterator[Firing]:
        """All times after `after_ns`, in order."""
        while (firing := self.next(after_ns, seed)) is not None:
            yield firing
            after_ns = firing.nominal_ns

    def _next_s(self, after_s: int) -> int | None:
        found = [at_s for calendar in self.calendars if (at_s := calendar.next_s(after_s)) is not None]
        found.extend(interval.next_s(after_s) for interval in self.intervals)
        return min(found) if found and min(found) <= TIME_S_MAX else None

    def _jitter_ns(self, nominal_s: int, seed: str) -> int:
        if not self.jitter_ms:
            return 0
        jitter_ms = self.jitter_ms
        following_s = self._next_s(nominal_s)
        if following_s is not None:
            # At most the distance to the next time, so that jitter keeps the times in order.
            jitter_ms = min(jitter_ms, (following_s - nominal_s) * 1000)
        return (hash64(f"{seed}/{nominal_s}") * jitter_ms >> 64) * MILLISECOND_NS


def canonical(spec: ScheduleSpec) -> ScheduleSpec:
    """The spec in structured form, as it is stored and described; raises `BadSpec` if the spec is invalid."""
    clean = ScheduleSpec()
    clean.CopyFrom(spec)
    for field in ("calendar", "exclude_calendar", "cron_string"):
        clean.ClearField(field)
    clean.structured_calendar.extend(from_calendar(calendar) for calendar in spec.calendar)
    clean.exclude_structured_calendar.extend(from_calendar(calendar) for calendar in spec.exclude_calendar)
    crons = [from_cron(text) for text in spec.cron_string]
    clean.structured_calendar.extend(cron.calendar for cron in crons if cron.calendar)
    clean.interval.extend(cron.interval for cron in crons if cron.interval)
    zones = {cron.zone_name for cron in crons}
    zone_name = max(zones, default="")
    if len(zones) > 1 or (zone_name and (spec.timezone_data or spec.timezone_name not in {"", zone_name})):
        raise BadSpec("conflicting timezone names")
    clean.timezone_name = zone_name or spec.timezone_name
    for calendar in clean.structured_calendar:
        _check_calendar(calendar)
    for interval in clean.interval:
        _check_interval(interval)
    _zone(clean.timezone_name, clean.timezone_data)
    for calendar in (*clean.structured_calendar, *clean.exclude_structured_calendar):
        for field, *_ in _BOUNDS:
            _fill_ranges(getattr(calendar, field))
    return clean


def compile_spec(spec: ScheduleSpec) -> Spec:
    """Compile a spec in structured form."""
    return _compiled(spec.SerializeToString(deterministic=True))


@lru_cache(_COMPILED_MAX)
def _compiled(serialized: bytes) -> Spec:
    spec = ScheduleSpec.FromString(serialized)
    zone = _zone(spec.timezone_name, spec.timezone_data)
    return Spec(
        tuple(compiled(calendar, zone) for calendar in spec.structured_calendar),
        tuple(
            _Interval(
                max(from_duration(every.interval) // SECOND_NS, 1), max(from_duration(every.phase) // SECOND_NS, 0)
            )
            for every in spec.interval
        ),
        tuple(compiled(calendar, zone) for calendar in spec.exclude_structured_calendar),
        spec.start_time.seconds if spec.HasField("start_time") else None,
        from_timestamp(spec.end_time) if spec.HasField("end_time") else None,
        min(max(from_duration(spec.jitter) // MILLISECOND_NS, 0), _JITTER_MS_MAX),
    )


def _fill_ranges(ranges: list[Range]) -> None:
    for every in ranges:
        every.end = max(every.end, every.start)
        every.step = every.step or 1


def _check_calendar(calendar: StructuredCalendarSpec) -> None:
    wrong = []
    for field, name, low, high in _BOUNDS:
        for every in getattr(calendar, field):
            if not low <= every.start <= high:
                wrong.append(f"{name} Start is not in range [{low}-{high}]")
            if every.end and not every.start <= every.end <= high:
                wrong.append(f"{name} End is before Start or not in range [{low}-{high}]")
            if every.step < 0:
                wrong.append(f"{name} has invalid Step")
    if len(calendar.comment.encode()) > COMMENT_LENGTH_MAX:
        wrong.append("comment is too long")
    if wrong:
        raise BadSpec("invalid calendar spec: " + ", ".join(wrong))


def _check_interval(every: IntervalSpec) -> None:
    interval_ns, phase_ns = from_duration(every.interval), from_duration(every.phase)
    if interval_ns < SECOND_NS:
        raise BadSpec("interval is too small")
    if phase_ns < 0:
        raise BadSpec("phase is negative")
    if phase_ns >= interval_ns:
        raise BadSpec("phase cannot be greater than Interval")


def _zone(name: str, data: bytes) -> ZoneInfo:
    if data:
        try:
            return ZoneInfo.from_file(io.BytesIO(data), key=name or None)
        except Exception as error:
            raise BadSpec("malformed time zone information") from error
    if name in {"", "UTC", "Local"}:
        return ZoneInfo("UTC")
    if ".." in name or name[0] in "/\\":
        raise BadSpec("time: invalid location name")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadSpec(f"unknown time zone {name}") from error
