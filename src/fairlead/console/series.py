"""Time series of the last hours, kept in memory: points of 10 seconds for one hour, of one minute for twelve."""

import math
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

# Seconds between two points, and number of points, of the fine and of the coarse part of a series.
FINE_S: Final = 10
FINE_POINTS: Final = 360
COARSE_S: Final = 60
COARSE_POINTS: Final = 720
# Maximum number of series; each takes up to 4.3 kB. A new series replaces an idle one. If no series is idle, the new
# one is not recorded: replacing busy series would end each of them too early to show a curve.
SERIES_MAX: Final = 2_000
# Seconds without a value above zero after which a series is idle.
IDLE_S: Final = 300.0
# Factor by which a part may exceed its number of points before it is cut.
_SLACK: Final = 1.25

# Parts of a series' name, such as ("starts",) or ("queue", namespace id, task queue, type, "backlog").
SeriesName: TypeAlias = tuple[str, ...]


class Point(NamedTuple):
    """A value at a time, in seconds since 1970. The value is None if nothing was recorded at that time."""

    at_s: float
    value: float | None


class _Part:
    """Points with the same distance in time; missing ones are NaN."""

    __slots__ = ("_last", "_points_max", "_step_s", "_sum", "_values", "_weight")

    def __init__(self, step_s: int, points_max: int) -> None:
        self._step_s = step_s
        self._points_max = points_max
        self._values = array("f")
        self._last = 0
        # Sum and number of the values of the last point, which is their mean.
        self._sum = 0.0
        self._weight = 0

    def record(self, value: float, now_s: float) -> None:
        slot = int(now_s) // self._step_s
        if slot != self._last or not self._values:
            missing = min(max(slot - self._last - 1, 0), self._points_max) if self._values else 0
            self._values.extend([math.nan] * missing + [math.nan])
            self._last, self._sum, self._weight = slot, 0.0, 0
            if len(self._values) > self._points_max * _SLACK:
                del self._values[: len(self._values) - self._points_max]
        self._sum += value
        self._weight += 1
        self._values[-1] = self._sum / self._weight

    def points(self, since_s: float) -> list[Point]:
        kept = self._values[-self._points_max :]
        first = self._last - len(kept) + 1
        return [
            Point(at_s, None if math.isnan(value) else value)
            for number, value in enumerate(kept)
            if (at_s := float((first + number) * self._step_s)) >= since_s
        ]


class _Series:
    __slots__ = ("coarse", "fine", "used_s")

    def __init__(self, now_s: float) -> None:
        self.used_s = now_s
        self.fine = _Part(FINE_S, FINE_POINTS)
        self.coarse = _Part(COARSE_S, COARSE_POINTS)


class TimeSeries:
    """All series of a process. A series begins with its first value that is not zero, so that idle objects take no
    memory.

    The series of the process itself begin with their first value, even if it is zero, and never end.
    """

    def __init__(self, *, series_max: int = SERIES_MAX) -> None:
        self._series_max = series_max
        # In the order of the last value that was not zero.
        self._series: OrderedDict[SeriesName, _Series] = OrderedDict()

    def __len__(self) -> int:
        return len(self._series)

    def record(self, name: SeriesName, value: float, now_s: float, *, begins_at_zero: bool = False) -> None:
        """Add a value to a series."""
        series = self._series.get(name)
        if series is None:
            if not value and not begins_at_zero:
                return
            if not begins_at_zero and not self._has_room(now_s):
                return
            series = self._series[name] = _Series(now_s)
        elif value or begins_at_zero:
            self._series.move_to_end(name)
            series.used_s = now_s
        series.fine.record(value, now_s)
        series.coarse.record(value, now_s)

    def _has_room(self, now_s: float) -> bool:
        """Whether a series may begin; ends the one that is idle for the longest time, if there are too many."""
        while len(self._series) >= self._series_max:
            name, oldest = next(iter(self._series.items()))
            if now_s - oldest.used_s < IDLE_S:
                return False
            del self._series[name]
        return True

    def points(self, name: SeriesName, *, span_s: float, now_s: float) -> list[Point]:
        """The points of the last `span_s` seconds: fine ones up to one hour. Empty without such a series."""
        series = self._series.get(name)
        if series is None:
            return []
        part = series.fine if span_s <= FINE_S * FINE_POINTS else series.coarse
        return part.points(now_s - span_s)

    def names(self, *beginning: str) -> Iterable[SeriesName]:
        """Names of the series that begin with these parts."""
        return [name for name in self._series if name[: len(beginning)] == beginning]
