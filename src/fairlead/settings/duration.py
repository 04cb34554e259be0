"""Durations in settings: "200ms", "1m30s", or a number of seconds."""

import math
import re

from fairlead.settings.problem import InvalidValue

TEXT_CHARACTERS_MAX = 64

_SECONDS_OF_UNIT = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|d|h|m|s)", re.ASCII)
_WHOLE = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def parse_duration_s(raw: object) -> float:
    """Parse a duration into seconds; a number, or a text without a unit, is in seconds, as in Temporal's files."""
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        seconds = _as_float(raw)
    elif isinstance(raw, str) and len(raw) <= TEXT_CHARACTERS_MAX and _NUMBER.fullmatch(raw):
        seconds = float(raw)
    elif isinstance(raw, str) and len(raw) <= TEXT_CHARACTERS_MAX and _WHOLE.fullmatch(raw):
        seconds = math.fsum(float(count) * _SECONDS_OF_UNIT[unit] for count, unit in _PART.findall(raw))
    else:
        raise InvalidValue('is not a duration: write it like "10s", "200ms" or "1m30s"')
    if not math.isfinite(seconds):
        raise InvalidValue("is not finite")
    return seconds


def format_duration(seconds: float) -> str:
    """Format seconds in the shortest usual spelling: 90 is "1m30s", 0.2 is "200ms"."""
    if seconds == 0:
        return "0s"
    if seconds < 1:
        return f"{seconds * 1000:.10g}ms"
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = ((f"{hours:.0f}", "h"), (f"{minutes:.0f}", "m"), (f"{rest:.10g}", "s"))
    return "".join(count + unit for count, unit in parts if count != "0")


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError as too_large:
        raise InvalidValue("is not finite") from too_large
