"""Callbacks for the bench's options: durations in the notation of settings, and weights."""

from collections.abc import Callable

import click

from fairlead.bench.keys import WEIGHT_MAX, WEIGHT_MIN, WEIGHTS_MAX
from fairlead.settings import InvalidValue
from fairlead.settings.duration import format_duration, parse_duration_s

Callback = Callable[[click.Context, click.Parameter, str | None], float | None]


def duration_within(minimum_s: float, maximum_s: float) -> Callback:
    """Return a callback that parses a duration like 200ms, 10s or 1m30s into seconds."""

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
    """Parse weights like 1:2:5."""
    try:
        weights = tuple(float(part) for part in text.split(":"))
    except ValueError as wrong:
        raise click.BadParameter(f"{text!r} is not a list of weights: write it like 1:2:5", context, option) from wrong
    if len(weights) > WEIGHTS_MAX:
        raise click.BadParameter(f"{len(weights)} weights are more than {WEIGHTS_MAX}", context, option)
    for part, weight in zip(text.split(":"), weights, strict=True):
        if not WEIGHT_MIN <= weight <= WEIGHT_MAX:
            bounds = f"{WEIGHT_MIN:g} to {WEIGHT_MAX:g}"
            raise click.BadParameter(f"weight {part!r} is out of bounds: choose {bounds}", context, option)
    return weights
