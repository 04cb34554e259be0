"""Times, durations and numbers as text: parsed as in list filters, formatted as in Temporal's messages."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from fairlead.api.times import SECOND_NS
from fairlead.storage.visibility import INT64_MAX

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII)
_CLOCK = re.compile(r"([+-]?)(\d+):([0-5]?\d):([0-5]?\d(?:\.\d+)?)", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_DURATION = re.compile(r"([+-]?)((?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h|d))+)", re.ASCII)
_DURATION_PART = re.compile(r"([\d.]+)(\D+)", re.ASCII)
_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
    "d": 86400 * SECOND_NS,
}
# Maximum number of characters of a number or time: longer ones can't be valid, and are slow to parse.
_CHARACTERS_MAX = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str) -> int | None:
    """Parse an RFC 3339 time to nanoseconds, cut to 64 bits; None if it is invalid."""
    match = _TIME.fullmatch(text) if len(text) <= _CHARACTERS_MAX else None
    if match is None:
        return None
    date_and_clock, fraction, sign, hours, minutes = match.groups()
    zone = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    if zone >= timedelta(days=1):
        return None
    try:
        # Leave out the zone's offset here: near the years 1 and 9999, subtracting it would give an invalid datetime.
        local = datetime.fromisoformat(date_and_clock).replace(tzinfo=UTC)
    except ValueError:
        return None
    offset = zone if sign == "+" else -zone
    seconds = (local - _EPOCH - offset) // timedelta(seconds=1)
    return _bounded(seconds * SECOND_NS + int((fraction or "").ljust(9, "0")[:9]))


def format_time(time_ns: int) -> str:
    """Format a time in UTC, with as many fractional digits as it needs."""
    seconds, nanos = divmod(time_ns, SECOND_NS)
    # Use `isoformat`, which pads the year; `strftime` may not.
    text = (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()
    return f"{text}.{nanos:09d}".rstrip("0") + "Z" if nanos else f"{text}Z"


def parse_duration(text: str) -> int | None:
    """Parse '1h30m', '01:30:00' or a whole number to nanoseconds; None for anything else."""
    if len(text) > _CHARACTERS_MAX:
        return None
    duration_ns: int | Decimal
    if _INTEGER.fullmatch(text):
        duration_ns = int(text)
    elif clock := _CLOCK.fullmatch(text):
        sign, hours, minutes, seconds = clock.groups()
        duration_ns = (int(hours) * 3600 + int(minutes) * 60 + Decimal(seconds)) * SECOND_NS
        duration_ns = -duration_ns if sign == "-" else duration_ns
    elif parts := _DURATION.fullmatch(text):
        duration_ns = sum(Decimal(number) * _UNITS_NS[unit] for number, unit in _DURATION_PART.findall(parts[2]))
        duration_ns = -duration_ns if parts[1] == "-" else duration_ns
    else:
        return None
    return int(duration_ns) if -INT64_MAX <= duration_ns <= INT64_MAX else None


def number_text(number: float) -> str:
    """Format a number as Temporal's messages do: floats of a million or more have an exponent."""
    if isinstance(number, int):
        return str(number)
    sign, digits, scale = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(scale, int)  # noqa: S101 - not of an infinity
    exponent = len(digits) + scale - 1
    if number == 0 or -4 <= exponent < 6:
        return format(Decimal(repr(number)).normalize(), "f")
    head = "".join(map(str, digits))
    fraction = f".{head[1:]}" if len(head) > 1 else ""
    return f"{'-' if sign else ''}{head[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _bounded(value: int) -> int:
    return max(-INT64_MAX, min(value, INT64_MAX))
