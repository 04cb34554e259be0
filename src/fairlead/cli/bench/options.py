"""Kinds of options that the bench has, as callbacks: durations as settings write them, and weights."""

import math
from collections.abc import Callable

import click

from fairlead.cli.bench.keys import WEIGHTS_MAX
from fairlead.settings import InvalidValue
from fairlead.settings.duration import format_duration, parse_duration_s
from fairlead.settings.static import parse_address

Callback = Callable[[click.Context, click.Parameter, str | None], float | None]


def duration_within(minimum_s: float, maximum_s: float) -> Callback:
    """Reads a duration like 200ms, 10s or 1m30s, as seconds."""

    def read(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
        if text is None:
            return None
        try:
            seconds = parse_duration_s(text)
        except InvalidValue as wrong:
            raise click.BadParameter(f"{text!r} {wrong}", context, option) from wrong
        if not minimum_s <= seconds <= maximum_s:
            bounds = f"{format_duration(minimum_s)} to {format_duration(maximum_s)}"
            raise click.BadParameter(f"{text!r} is out of bounds: choose {bounds}", context, option)
        return seconds

    return read


def read_weights(context: click.Context, option: click.Parameter, text: str) -> tuple[float, ...]:
    """Reads weights like 1:2:5."""
    try:
        weights = tuple(float(part) for part in text.split(":"))
    except ValueError as wrong:
        raise click.BadParameter(f"{text!r} is no list of weights: write them like 1:2:5", context, option) from wrong
    if len(weights) > WEIGHTS_MAX:
        raise click.BadParameter(f"{len(weights)} weights are more than {WEIGHTS_MAX}", context, option)
    if not all(0 < weight < math.inf for weight in weights):
        raise click.BadParameter(f"{text!r}: every weight must be above 0 and finite", context, option)
    return weights


def read_address(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Reads HOST:PORT."""
    try:
        return None if text is None else str(parse_address(text))
    except InvalidValue as wrong:
        raise click.BadParameter(f"{text!r} {wrong}", context, option) from wrong
