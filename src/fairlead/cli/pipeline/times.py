"""Times on the command line: a day, an instant, or how long ago."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_AGO = re.compile(r"(\d{1,6})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


class Instant(click.ParamType[int]):
    """Microseconds of the epoch from 2026-01-31, 2026-01-31T12:00, or 90m, 24h, 7d ago; in UTC by default."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read what was typed."""
        if isinstance(value, int):
            return value
        if ago := _AGO.fullmatch(value):
            instant = datetime.now(tz=UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            try:
                instant = datetime.fromisoformat(value)
            except ValueError:
                self.fail(f"{value!r} is no time: give 2026-01-31, 2026-01-31T12:00, or 24h for a day ago", param, ctx)
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=UTC)
        return int(instant.timestamp() * 1_000_000)
