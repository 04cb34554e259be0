"""Cron schedules with the semantics of Temporal's parser: five fields, descriptors, `@every`, and a leading time zone.

This is our own parser, because no Python library agrees with Temporal's parser on `@every`, on `?`, on restrictions of
both the day of the month and the day of the week (either may match), and on hours that daylight saving time skips or
repeats.
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from fairlead.api.times import SECOND_NS

_YEARS_MAX = 5
_SCHEDULES_CACHED_MAX = 256
_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_DAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNITS_NS = {"ns": 1, "us": 1000, "µs": 1000, "ms": 10**6, "s": SECOND_NS, "m": 60 * SECOND_NS, "h": 3600 * SECOND_NS}


class BadSchedule(ValueError):
    """The text is not a valid cron schedule."""


class _Field(NamedTuple):
    values: frozenset[int]
    is_any: bool


class _Every(NamedTuple):
    interval_ns: int

    def next_ns(self, after_ns: int) -> int | None:
        """The time one interval later, at a whole second."""
        return after_ns + self.interval_ns - after_ns % SECOND_NS


class _Calendar(NamedTuple):
    zone: ZoneInfo
    minute: _Field
    hour: _Field
    day: _Field
    month: _Field
    weekday: _Field

    def next_ns(self, after_ns: int) -> int | None:
        """The first matching time after `after_ns`, or None if there is none within five years.

        Days and months are skipped by the local calendar, hours and minutes by elapsed time: an hour that daylight
        saving time skips never matches, and an hour that it repeats matches twice.
        """
        moment = datetime.fromtimestamp(after_ns // SECOND_NS, UTC).replace(second=0) + timedelta(minutes=1)
        last = moment + timedelta(days=366 * _YEARS_MAX)
        while moment <= last:
            local = moment.astimezone(self.zone)
            if local.month not in self.month.values:
                moment = _local_midnight(local.replace(day=1) + timedelta(days=32), day=1)
            elif not self._is_day(local):
                moment = _local_midnight(local + timedelta(days=1))
            elif local.hour not in self.hour.values:
                moment += timedelta(minutes=60 - local.minute)
            elif local.minute not in self.minute.values:
                moment += timedelta(minutes=1)
            else:
                return int(moment.timestamp()) * SECOND_NS
        return None

    def _is_day(self, local: datetime) -> bool:
        by_date = local.day in self.day.values
        by_weekday = local.isoweekday() % 7 in self.weekday.values
        if self.day.is_any or self.weekday.is_any:
            return by_date and by_weekday
        return by_date or by_weekday


def check_schedule(schedule: str) -> None:
    """Raise `BadSchedule` for a schedule that `backoff_ns` can't parse."""
    if schedule:
        _parse(schedule)


def backoff_ns(schedule: str, *, scheduled_ns: int, now_ns: int) -> int | None:
    """Nanoseconds until the next run is due, in whole seconds; None without a schedule or without a next time.

    The schedule continues from `scheduled_ns`, the time at which this run was due. Times that passed while it ran are
    skipped.
    """
    if not schedule:
        return None
    parsed = _parse(schedule)
    due_ns = parsed.next_ns(scheduled_ns)
    while due_ns is not None and due_ns < now_ns:
        if isinstance(parsed, _Every):
            # Skip all missed intervals at once: after a long run, single steps would take too long.
            due_ns += (now_ns - due_ns + parsed.interval_ns - 1) // parsed.interval_ns * parsed.interval_ns
        else:
            due_ns = parsed.next_ns(now_ns - 1)
    return None if due_ns is None else -(-(due_ns - now_ns) // SECOND_NS) * SECOND_NS


@lru_cache(_SCHEDULES_CACHED_MAX)
def _parse(schedule: str) -> _Every | _Calendar:
    zone, text = ZoneInfo("UTC"), schedule.strip()
    if text.startswith(("TZ=", "CRON_TZ=")):
        name, _, text = text.partition(" ")
        zone = _zone(name.partition("=")[2])
        text = text.strip()
    if text.startswith("@every "):
        return _every(text.removeprefix("@every "))
    if text.startswith("@"):
        if text not in _DESCRIPTORS:
            raise BadSchedule(f"unrecognized descriptor: {text}")
        text = _DESCRIPTORS[text]
    fields = text.split()
    if len(fields) != 5:
        raise BadSchedule(f"expected exactly 5 fields, found {len(fields)}: {text}")
    return _Calendar(
        zone,
        _field(fields[0], 0, 59, {}),
        _field(fields[1], 0, 23, {}),
        _field(fields[2], 1, 31, {}),
        _field(fields[3], 1, 12, _MONTHS),
        _field(fields[4], 0, 6, _DAYS),
    )


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as wrong:
        raise BadSchedule(f"provided bad location {name}") from wrong


def _every(text: str) -> _Every:
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise BadSchedule(f"failed to parse duration @every {text}")
    interval_ns = sum(int(float(number) * _UNITS_NS[unit]) for number, unit in parts)
    return _Every(max(interval_ns // SECOND_NS, 1) * SECOND_NS)


def _field(text: str, low: int, high: int, names: dict[str, int]) -> _Field:
    values: set[int] = set()
    is_any = False
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, {}) if slash else 1
        begin_text, dash, end_text = span.partition("-")
        if begin_text in ("*", "?"):
            begin, end = low, high
            # A star with a step restricts the field.
            is_any = is_any or not slash
        else:
            begin = _number(begin_text, names)
            end = _number(end_text, names) if dash else high if slash else begin
        if not low <= begin <= end <= high or step < 1:
            raise BadSchedule(f"{part} is not within {low} and {high}, or its step is not above zero")
        values.update(range(begin, end + 1, step))
    return _Field(frozenset(values), is_any)


def _number(text: str, names: dict[str, int]) -> int:
    if text.lower() in names:
        return names[text.lower()]
    if not text.isdecimal():
        raise BadSchedule(f"failed to parse int from {text}")
    return int(text)


def _local_midnight(local: datetime, day: int | None = None) -> datetime:
    return local.replace(hour=0, minute=0, day=day or local.day).astimezone(UTC)
