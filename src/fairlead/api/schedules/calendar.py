"""The times that match a calendar.

A time matches if its local time does. So an hour that daylight saving time skips has no match, and an hour that it
repeats has two.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from temporalio.api.schedule.v1 import Range, StructuredCalendarSpec

from fairlead.api.schedules.text_specs import YEAR_MAX

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST_S = int((datetime(1, 1, 3, tzinfo=UTC) - _EPOCH).total_seconds())
_LATEST_S = int((datetime(YEAR_MAX + 1, 1, 2, tzinfo=UTC) - _EPOCH).total_seconds())
# Maximum time in seconds since 1970: before the year 9999, so that the next year is a valid year too.
TIME_S_MAX = int((datetime(9999, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) - 1
_EVERY_SIXTIETH = (1 << 60) - 1
_EVERY_HOUR = (1 << 24) - 1
_EVERY_DAY = (1 << 32) - 2
_EVERY_WEEKDAY = (1 << 7) - 1
_EVERY_MONTH = (1 << 13) - 2


class Calendar(NamedTuple):
    """A compiled calendar: each field is a bit set of its values. `years` is None for every year."""

    zone: ZoneInfo
    seconds: int
    minutes: int
    hours: int
    days: int
    weekdays: int
    months: int
    years: frozenset[int] | None

    def next_s(self, after_s: int) -> int | None:
        """The first matching second after `after_s`, in seconds since 1970; None if there is none until 2100."""
        if not (self.seconds and self.minutes and self.hours and self.days and self.weekdays and self.months):
            return None
        at_s = max(after_s, _EARLIEST_S) + 1
        while at_s < _LATEST_S:
            local = _local(at_s, self.zone)
            if local.year > YEAR_MAX:
                return None
            skipped_s = self._misfit_s(local)
            if not skipped_s:
                return at_s
            at_s += skipped_s
        return None

    def matches(self, at_s: int) -> bool:
        """Whether the second matches."""
        return _EARLIEST_S < at_s <= TIME_S_MAX and not self._misfit_s(_local(at_s, self.zone))

    def end_s(self, at_s: int) -> int:
        """The last second up to which all seconds match: the end of the minute, hour, day, month or year of `at_s`."""
        local = _local(at_s, self.zone)
        if self.seconds != _EVERY_SIXTIETH:
            return at_s
        if self.minutes != _EVERY_SIXTIETH:
            return at_s + 59 - local.second
        if self.hours != _EVERY_HOUR:
            return at_s + 3599 - local.second - 60 * local.minute
        if self.days != _EVERY_DAY or self.weekdays != _EVERY_WEEKDAY:
            return at_s + _until_day_s(local, local + timedelta(days=1)) - 1
        if self.months != _EVERY_MONTH:
            return at_s + _until_day_s(local, _next_month(local)) - 1
        return at_s + _until_day_s(local, local.replace(year=local.year + 1, month=1, day=1)) - 1

    def _misfit_s(self, local: datetime) -> int:
        """Number of seconds after this local time that can't match; 0 if it matches."""
        misfit_s = 0
        if self.years is not None and local.year not in self.years:
            misfit_s = _until_day_s(local, local.replace(year=local.year + 1, month=1, day=1))
        elif not self.months >> local.month & 1:
            misfit_s = _until_day_s(local, _next_month(local))
        elif not (self.days >> local.day & 1 and self.weekdays >> local.isoweekday() % 7 & 1):
            misfit_s = _until_day_s(local, local + timedelta(days=1))
        elif not self.hours >> local.hour & 1:
            misfit_s = 3600 - 60 * local.minute - local.second
        elif not self.minutes >> local.minute & 1:
            misfit_s = 60 * (_next_bit(self.minutes, local.minute, 60) - local.minute) - local.second
        elif not self.seconds >> local.second & 1:
            misfit_s = _next_bit(self.seconds, local.second, 60) - local.second
        return misfit_s


def compiled(spec: StructuredCalendarSpec, zone: ZoneInfo) -> Calendar:
    """Compile a calendar whose ranges are within their bounds."""
    return Calendar(
        zone,
        _bits(spec.second) & _EVERY_SIXTIETH,
        _bits(spec.minute) & _EVERY_SIXTIETH,
        _bits(spec.hour) & _EVERY_HOUR,
        _bits(spec.day_of_month) & _EVERY_DAY,
        _bits(spec.day_of_week) & _EVERY_WEEKDAY,
        _bits(spec.month) & _EVERY_MONTH,
        frozenset(year for every in spec.year for year in _values(every)) if spec.year else None,
    )


def _values(every: Range) -> range:
    # Bound the range here too: the ranges of excluded calendars are not validated.
    start, end = max(every.start, 0), min(max(every.end, every.start), YEAR_MAX)
    return range(start, end + 1, max(every.step, 1))


def _bits(ranges: Iterable[Range]) -> int:
    bits = 0
    for every in ranges:
        for value in _values(every):
            bits |= 1 << value
    return bits


def _next_bit(bits: int, after: int, end: int) -> int:
    """The next set bit after `after`, or `end` if there is none."""
    above = bits >> (after + 1)
    return after + 1 + ((above & -above).bit_length() - 1) if above else end


def _local(at_s: int, zone: ZoneInfo) -> datetime:
    return (_EPOCH + timedelta(seconds=at_s)).astimezone(zone)


def _next_month(local: datetime) -> datetime:
    return (local.replace(day=1) + timedelta(days=32)).replace(day=1)


def _until_day_s(local: datetime, day: datetime) -> int:
    """Seconds until the first moment of a later day; the end of the gap if daylight saving time skips midnight."""
    midnight = day.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    return max(1, round((midnight.astimezone(UTC) - local.astimezone(UTC)).total_seconds()))
