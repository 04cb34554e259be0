"""Times on the command line: a day, a time, or an age."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AGO = re.compile(r"(\d{1,6})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


class Instant(click.ParamType[int]):
    """Microseconds since the epoch, from 2026-01-31, 2026-01-31T12:00, or 90m, 24h, 7d ago; in UTC by default."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the argument."""
        if isinstance(value, int):
            return value
        try:
            if ago := _AGO.fullmatch(value):
                instant = datetime.now(tz=UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            else:
                instant = datetime.fromisoformat(value)
            if instant.tzinfo is None:
                instant = instant.replace(tzinfo=UTC)
            # The time must also be valid after the conversion to UTC.
            return (instant.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time: give 2026-01-31, 2026-01-31T12:00, or 24h for a day ago", param, ctx)
