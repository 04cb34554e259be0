"""The horizontal scale of a timeline: linear, with long idle times drawn shorter."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from fairlead.console.timeline import Span

# Width of a shortened idle time, and its minimum length: as a share of the whole, and as a share of the busy times.
IDLE_WIDTH: Final = 0.06
IDLE_SHARE_MIN: Final = 0.1
BUSY_SHARE_MIN: Final = 0.25


class Timescale(Struct, frozen=True):
    """Places between 0 and 1 by time: straight lines between the knots, as (seconds since 1970, place).

    `idle` are the shortened times, as (first place, last place); `idle_s` is their length.
    """

    knots: list[tuple[float, float]]
    idle: list[tuple[float, float]] = []
    idle_s: float = 0.0

    def place(self, at_s: float) -> float:
        """The place of a time; the nearest end for a time outside."""
        (before_s, before), *others = self.knots
        if at_s <= before_s:
            return before
        for after_s, after in others:
            if at_s <= after_s:
                return before + (after - before) * (at_s - before_s) / (after_s - before_s)
            before_s, before = after_s, after
        return before


def timescale(spans: Sequence[Span], from_s: float, until_s: float) -> Timescale:
    """The scale for these rows. In an idle time the run only waits: for a timer, a retry, a signal or an update."""
    until_s = max(until_s, from_s + 1e-3)
    busy = _merged(
        sorted((max(from_s, first_s), min(until_s, last_s)) for one in spans for first_s, last_s in _busy(one, until_s))
    )
    edges = [from_s, *(at_s for each in busy for at_s in each), until_s]
    # Idle and busy times take turns, beginning and ending with an idle one.
    pieces = [(edges[number], edges[number + 1], number % 2 == 0) for number in range(len(edges) - 1)]
    length_s = until_s - from_s
    busy_s = sum(last_s - first_s for first_s, last_s in busy)
    least_s = max(IDLE_SHARE_MIN * length_s, BUSY_SHARE_MIN * busy_s)
    long = [piece for piece in pieces if piece[2] and piece[1] - piece[0] > least_s]
    idle_s = sum(piece[1] - piece[0] for piece in long)
    rest = (1.0 - IDLE_WIDTH * len(long)) / (length_s - idle_s) if length_s > idle_s else 0.0
    if not busy or not long or not rest:
        return Timescale([(from_s, 0.0), (until_s, 1.0)])
    knots, idle = [(from_s, 0.0)], []
    for piece in pieces:
        if piece[1] <= piece[0]:
            continue
        place = knots[-1][1]
        width = IDLE_WIDTH if piece in long else (piece[1] - piece[0]) * rest
        knots.append((piece[1], min(1.0, place + width)))
        if piece in long:
            idle.append((place, min(1.0, place + width)))
    return Timescale(knots, idle, idle_s)


def _busy(one: Span, until_s: float) -> list[tuple[float, float]]:
    """The times in which a row is not idle; of an activity that is retried, only the times of its failure are known."""
    if one.ended_s is not None:
        return [(one.began_s, one.ended_s)]
    if one.failed_s is not None:
        failed_s = one.failed_s
        return [(one.began_s, one.began_s), (failed_s if one.ran_s is None else min(one.ran_s, failed_s), failed_s)]
    return [(one.began_s, one.began_s if one.kind == "timer" else until_s)]


def _merged(times: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for began_s, ended_s in times:
        if found and began_s <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended_s))
        elif ended_s >= began_s:
            found.append((began_s, ended_s))
    return found
