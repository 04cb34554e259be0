"""Durations of very many operations: percentiles to three digits, in constant memory."""

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
WAIT_S_MAX = 24 * 3600.0
DIGITS = 3
COLUMNS = ("count", "mean_ms", *(f"p{percentile:g}_ms" for percentile in PERCENTILES), "max_ms")

_MICROSECONDS = 1_000_000


class Waits:
    """An HDR histogram of durations: each percentile is right to `digits` digits, over the whole range.

    Mean and maximum are exact.
    """

    def __init__(self, digits: int = DIGITS) -> None:
        self._histogram = HdrHistogram(1, int(WAIT_S_MAX * _MICROSECONDS), digits)
        self._sum_s = 0.0
        self.count = 0
        self.max_s = 0.0

    def add(self, wait_s: float) -> None:
        """Add one duration; in the percentiles, more than a day counts as a day."""
        self.count += 1
        self._sum_s += wait_s
        self.max_s = max(self.max_s, wait_s)
        self._histogram.record_value(round(min(max(wait_s, 0.0), WAIT_S_MAX) * _MICROSECONDS))

    def merge(self, other: "Waits") -> None:
        """Add all durations of `other`."""
        self.count += other.count
        self._sum_s += other._sum_s  # noqa: SLF001 - another instance of this class
        self.max_s = max(self.max_s, other.max_s)
        self._histogram.add(other._histogram)  # noqa: SLF001

    @property
    def mean_s(self) -> float | None:
        """The mean; None without durations."""
        return self._sum_s / self.count if self.count else None

    def at_s(self, percentile: float) -> float | None:
        """Return the percentile; None without durations."""
        if not self.count:
            return None
        # The upper edge of a histogram cell may be above the maximum.
        return min(self.max_s, float(self._histogram.get_value_at_percentile(percentile)) / _MICROSECONDS)

    def row(self) -> tuple[int | float | None, ...]:
        """Return the values of `COLUMNS`."""
        waits_s = (self.mean_s, *(self.at_s(percentile) for percentile in PERCENTILES))
        return (self.count, *map(milliseconds, waits_s), milliseconds(self.max_s if self.count else None))


def milliseconds(seconds: float | None) -> float | None:
    """Convert to milliseconds, without insignificant digits."""
    if seconds is None:
        return None
    return round(seconds * 1000) if seconds >= 1 else round(seconds * 1000, 3)
