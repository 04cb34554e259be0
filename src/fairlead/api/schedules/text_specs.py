"""Parses cron strings, and calendars with text fields, to the structured form.

Schedules are stored and described in the structured form.
"""

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from google.protobuf.duration_pb2 import Duration
from temporalio.api.schedule.v1 import CalendarSpec, IntervalSpec, Range, StructuredCalendarSpec

from fairlead.api.schedules.errors import BadSpec
from fairlead.api.times import SECOND_NS, to_duration

YEAR_MIN, YEAR_MAX = 2000, 2100

_SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")
_SUNDAY_AGAIN = 7


class _Field(NamedTuple):
    """A field of a calendar: its attribute, its name in errors, its bounds, and the value for an empty text."""

    attribute: str
    name: str
    low: int
    high: int
    default: str
    names: tuple[str, ...] = ()
    letters_min: int = 0


# In the order of their error messages.
_FIELDS = (
    _Field("second", "Second", 0, 59, "0"),
    _Field("minute", "Minute", 0, 59, "0"),
    _Field("hour", "Hour", 0, 23, "0"),
    _Field("day_of_week", "DayOfWeek", 0, _SUNDAY_AGAIN, "*", _DAYS, 2),
    _Field("day_of_month", "DayOfMonth", 1, 31, "*"),
    _Field("month", "Month", 1, 12, "*", _MONTHS, 3),
    _Field("year", "Year", YEAR_MIN, YEAR_MAX, "*"),
)


class Cron(NamedTuple):
    """A parsed cron string: a calendar or an interval, and its time zone, empty if it has none."""

    calendar: StructuredCalendarSpec | None
    interval: IntervalSpec | None
    zone_name: str


def from_calendar(calendar: CalendarSpec) -> StructuredCalendarSpec:
    """Convert a calendar with text fields; the message of `BadSpec` names every invalid field."""
    structured = StructuredCalendarSpec(comment=calendar.comment)
    wrong = []
    for field in _FIELDS:
        try:
            ranges = _ranges(getattr(calendar, field.attribute), field)
        except BadSpec as error:
            wrong.append(str(error))
        else:
            getattr(structured, field.attribute).extend(ranges)
    if wrong:
        raise BadSpec(", ".join(wrong))
    return structured


def from_cron(text: str) -> Cron:
    """Parse five to seven fields, a shorthand or `@every`; a time zone may precede, and a comment may follow."""
    text, _, comment = text.partition("#")
    text, zone_name = text.strip(), ""
    if text.startswith(("TZ=", "CRON_TZ=")):
        zone, space, text = text.partition(" ")
        if not space:
            raise BadSpec("CronString has time zone but missing fields")
        zone_name = zone.partition("=")[2]
        text = text.strip()
    if text.startswith("@every"):
        # An interval doesn't depend on the time zone.
        return Cron(None, _every(text), "")
    fields = _SHORTHANDS.get(text, text).split()
    if not 5 <= len(fields) <= 7:
        raise BadSpec("CronString does not have 5-7 fields")
    second = fields.pop(0) if len(fields) == 7 else ""
    minute, hour, day_of_month, month, day_of_week, *year = fields
    calendar = CalendarSpec(
        second=second,
        minute=minute,
        hour=hour,
        day_of_month=day_of_month,
        month=month,
        day_of_week=day_of_week,
        year="".join(year),
        comment=comment.strip(),
    )
    return Cron(from_calendar(calendar), None, zone_name)


def _every(text: str) -> IntervalSpec:
    interval, phase = text.partition(" ")[2], ""
    if not interval:
        raise BadSpec("CronString does not have interval after @every")
    interval, _, phase = interval.partition("/")
    spec = IntervalSpec(interval=_duration(interval))
    if phase:
        spec.phase.CopyFrom(_duration(phase))
    return spec


_PART = re.compile(r"([0-9]*\.?[0-9]*)([^0-9.]*)")
_UNITS_NS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
    "d": 24 * 3600 * SECOND_NS,
}
_DURATION_NS_MAX = 2**63 - 1


def _duration(text: str) -> Duration:
    sign = -1 if text.startswith("-") else 1
    digits = text[1:] if text[:1] in {"-", "+"} else text
    if digits == "0":
        return Duration()
    total_ns, at = Fraction(0), 0
    while at < len(digits):
        part = _PART.match(digits, at)
        if part is None or not part[1].strip("."):
            raise BadSpec(f'time: invalid duration "{text}"')
        if not part[2]:
            raise BadSpec(f'time: missing unit in duration "{text}"')
        if part[2] not in _UNITS_NS:
            raise BadSpec(f'time: unknown unit "{part[2]}" in duration "{text}"')
        total_ns += Fraction(part[1]) * _UNITS_NS[part[2]]
        at = part.end()
    if not digits or total_ns > _DURATION_NS_MAX:
        raise BadSpec(f'time: invalid duration "{text}"')
    if sign < 0:
        # Validation rejects this value later, as too small or as a negative phase.
        return Duration(seconds=-max(1, int(total_ns) // SECOND_NS))
    return to_duration(int(total_ns))


def _ranges(text: str, field: _Field) -> Iterable[Range]:
    text = text.strip() or field.default
    if field.attribute == "year" and text == "*":
        return ()  # No range means every year.
    ranges = []
    for part in text.split(","):
        start, end, step = _part(part, field)
        if field.high == _SUNDAY_AGAIN and end == _SUNDAY_AGAIN:
            end = _SUNDAY_AGAIN - 1
            if start > 0 and (_SUNDAY_AGAIN - start) % step == 0:
                ranges.append(Range(start=0, end=0, step=1))
        if start <= end:
            ranges.append(Range(start=start, end=end, step=step))
    return ranges


def _part(text: str, field: _Field) -> tuple[int, int, int]:
    body, *steps = text.split("/")
    step = 1
    if len(steps) > 1:
        raise BadSpec(f"{field.name} has too many slashes")
    if steps:
        if not _INTEGER.fullmatch(steps[0]) or int(steps[0]) < 1:
            raise BadSpec(f"{field.name} has invalid Step")
        step = int(steps[0])
    if body == "*":
        return field.low, field.high - (field.high == _SUNDAY_AGAIN), step
    bounds = f"[{field.low}-{field.high}]"
    first, *rest = body.split("-")
    if len(rest) > 1:
        raise BadSpec(f"{field.name} has too many dashes")
    start = _value(first, field)
    if start is None:
        raise BadSpec(f"{field.name} {'Start ' if rest else ''}is not in range {bounds}")
    if not rest:
        return start, field.high if steps else start, step
    end = _value(rest[0], field)
    if end is None or end < start:
        raise BadSpec(f"{field.name} End is before Start or not in range {bounds}")
    return start, end, step


def _value(text: str, field: _Field) -> int | None:
    if field.names and len(text) >= field.letters_min:
        for number, name in enumerate(field.names, field.low):
            if name.startswith(text.lower()):
                return number
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if field.low <= number <= field.high else None
