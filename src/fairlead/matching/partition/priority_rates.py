"""Rates of tasks a second, of each priority and in all."""

from fairlead.core.scaling import RateWindow

RATE_BUCKET_S = 5.0
RATE_BUCKETS = 6


class PriorityRates(dict[int, RateWindow]):
    """A rate window for each priority, made at its first task."""

    def __init__(self, *, started_s: float) -> None:
        super().__init__()
        self._started_s = started_s

    def __missing__(self, priority: int) -> RateWindow:
        window = self[priority] = RateWindow(bucket_s=RATE_BUCKET_S, buckets=RATE_BUCKETS, started_s=self._started_s)
        return window

    def rate(self, now_s: float) -> float:
        """Return the tasks a second of all priorities together."""
        return sum(window.rate(now_s) for window in self.values())

    def rates(self, now_s: float) -> dict[int, float]:
        """Return the tasks a second of each priority."""
        return {priority: window.rate(now_s) for priority, window in self.items()}
