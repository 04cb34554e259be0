"""Values as text for people: numbers, sizes, durations, times; and names without harmful characters."""

import math
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from markupsafe import Markup

from fairlead.api.times import in_seconds

_MISSING: Final = "\u2013"
# Joiners within emoji and within words of some languages; other invisible characters are replaced.
_KEPT: Final = frozenset("\n\t\u200c\u200d")
_REPLACED: Final = "\ufffd"
_UNITS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "m"))


def harmless(value: Any) -> Any:
    """A value as it may be shown: control characters and marks that reverse the text are replaced."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return _MISSING if value is None else value
    return "".join(each if each.isprintable() or each in _KEPT else _REPLACED for each in value)


def number(value: float | None) -> str:
    """A number with few digits: 0.02, 3.4, 120, 12,345."""
    if value is None or math.isnan(value):
        return _MISSING
    if math.isinf(value):
        return "unlimited" if value > 0 else _MISSING
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def size(value: float | None) -> str:
    """A number of bytes."""
    if value is None:
        return _MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1_000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1_000
    return f"{value:.1f} TB"


def duration(value: float | Duration | None) -> str:
    """Seconds as 350 ms, 4.2 s, 3m 20s, 2h 5m or 3d 4h."""
    if value is None:
        return _MISSING
    seconds = in_seconds(value) if isinstance(value, Duration) else float(value)
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 1:
        return f"{sign}{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{sign}{seconds:.0f} s" if seconds == int(seconds) else f"{sign}{seconds:.1f} s"
    for place, (unit_s, unit) in enumerate(_UNITS):
        if seconds >= unit_s:
            count, rest = divmod(seconds, unit_s)
            lower_s, lower = _UNITS[place + 1] if place + 1 < len(_UNITS) else (1.0, "s")
            more = int(rest // lower_s)
            return f"{sign}{count:.0f}{unit}" + (f" {more}{lower}" if more else "")
    raise AssertionError("unreachable")


def seconds_of(value: Timestamp | None) -> float | None:
    """Seconds since 1970; None for a time that is not set."""
    if value is None or (value.seconds == 0 and value.nanos == 0):
        return None
    return in_seconds(value)


def moment(value: float | Timestamp | None) -> Markup | str:
    """A time as an element that the page's script shows in the viewer's time zone, with its age."""
    at_s = seconds_of(value) if isinstance(value, Timestamp) else value
    if at_s is None:
        return _MISSING
    try:
        at = datetime.fromtimestamp(at_s, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return _MISSING
    iso = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        iso, at.strftime("%Y-%m-%d %H:%M:%S"), at.strftime("%Y-%m-%d %H:%M:%S")
    )


def plural(count: int, noun: str, many: str = "") -> str:
    """A count with its noun: 1 task, 2 tasks."""
    return f"{number(count)} {noun if count == 1 else many or noun + 's'}"
