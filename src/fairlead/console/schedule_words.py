"""The times of a schedule in words: "every 1h", or "at 09:00 on Monday to Friday"."""

from collections.abc import Iterable, Sequence
from typing import Final

from temporalio.api.schedule.v1 import IntervalSpec, Range, ScheduleSpec, StructuredCalendarSpec

from fairlead.console.text import duration

_DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
# First and last value of each calendar field; a range from first to last means every value.
_HOURS: Final = (0, 23)
_SIXTY: Final = (0, 59)
_DAYS_OF_MONTH: Final = (1, 31)
_MONTHS_OF_YEAR: Final = (1, 12)
_DAYS_OF_WEEK: Final = (0, 6)


def spec_words(spec: ScheduleSpec) -> list[str]:
    """A line for each part of the specification."""
    lines = [_interval(one) for one in spec.interval]
    lines += [_calendar(one) for one in spec.structured_calendar]
    lines += [f"except {_calendar(one)}" for one in spec.exclude_structured_calendar]
    if spec.HasField("start_time"):
        lines.append(f"not before {spec.start_time.ToDatetime():%Y-%m-%d %H:%M:%S} UTC")
    if spec.HasField("end_time"):
        lines.append(f"not after {spec.end_time.ToDatetime():%Y-%m-%d %H:%M:%S} UTC")
    if spec.jitter.ToTimedelta():
        lines.append(f"each delayed by a random time of up to {duration(spec.jitter)}")
    if spec.structured_calendar or spec.exclude_structured_calendar:
        lines.append(f"in the time zone {spec.timezone_name or 'UTC'}")
    return lines or ["never: it only runs when it is triggered"]


def _interval(spec: IntervalSpec) -> str:
    phase = f", {duration(spec.phase)} after the full interval" if spec.phase.ToTimedelta() else ""
    return f"every {duration(spec.interval)}{phase}"


def _calendar(spec: StructuredCalendarSpec) -> str:
    words = [_time(spec)]
    if not _is_every(spec.day_of_week, _DAYS_OF_WEEK):
        words.append(f"on {_ranges(spec.day_of_week, _DAYS)}")
    if not _is_every(spec.day_of_month, _DAYS_OF_MONTH):
        words.append(f"on day {_ranges(spec.day_of_month)} of the month")
    if not _is_every(spec.month, _MONTHS_OF_YEAR):
        words.append(f"in {_ranges(spec.month, ('', *_MONTHS))}")
    if spec.year:
        words.append(f"in {_ranges(spec.year)}")
    return " ".join(words) + (f" ({spec.comment})" if spec.comment else "")


def _time(spec: StructuredCalendarSpec) -> str:
    """The time of day; the fields are named if they have several values."""
    hour, minute, second = _single(spec.hour), _single(spec.minute), _single(spec.second)
    if minute is not None and second is not None:
        clock = f"{minute:02}" + (f":{second:02}" if second else "")
        if hour is not None:
            return f"at {hour:02}:{clock}"
        if _is_every(spec.hour, _HOURS):
            return f"every hour at :{clock}"
    fields = (("hour", spec.hour, _HOURS), ("minute", spec.minute, _SIXTY), ("second", spec.second, _SIXTY))
    named = [
        f"every {name}" if _is_every(ranges, all_of_it) else f"{name} {_ranges(ranges)}"
        for name, ranges, all_of_it in fields
        if name != "second" or _single(ranges) != 0
    ]
    return "at " + ", ".join(named)


def _single(ranges: Sequence[Range]) -> int | None:
    """The only value; a field without ranges is 0."""
    if not ranges:
        return 0
    return ranges[0].start if len(ranges) == 1 and ranges[0].end <= ranges[0].start else None


def _is_every(ranges: Sequence[Range], all_of_it: tuple[int, int]) -> bool:
    """Whether a field has no limit. A day without ranges has none, a time without ranges is 0."""
    if not ranges:
        return all_of_it not in (_HOURS, _SIXTY)
    first, last = all_of_it
    return any(one.start <= first and one.end >= last and one.step <= 1 for one in ranges)


def _ranges(ranges: Iterable[Range], names: Sequence[str] = ()) -> str:
    return ", ".join(_range(one, names) for one in ranges)


def _range(one: Range, names: Sequence[str]) -> str:
    def name(value: int) -> str:
        return names[value] if 0 <= value < len(names) else str(value)

    if one.end <= one.start:
        return name(one.start)
    step = f", every {one.step}." if one.step > 1 else ""
    return f"{name(one.start)} to {name(one.end)}{step}"
