"""Rates of tasks a second, of each priority and in all."""

from fairlead.core.scaling import RateWindow

RATE_BUCKET_S = 5.0
RATE_BUCKETS = 6


class PriorityRates:
    """A rate window for each priority, created at its first task. Priorities are small numbers."""

    __slots__ = ("_started_s", "_windows")

    def __init__(self, *, started_s: float) -> None:
        self._started_s = started_s
        # Indexed by priority: a list takes half the memory of a dictionary. Created at the first task.
        self._windows: list[RateWindow | None] | None = None

    def add(self, priority: int, now_s: float) -> None:
        """Count a task."""
        windows = self._windows
        if windows is None or priority >= len(windows):
            windows = self._windows = [*(windows or ()), *[None] * (priority + 1 - len(windows or ()))]
        window = windows[priority]
        if window is None:
            window = windows[priority] = RateWindow(
                bucket_s=RATE_BUCKET_S, buckets=RATE_BUCKETS, started_s=self._started_s
            )
        window.add(1, now_s)

    def rate(self, now_s: float) -> float:
        """Return the tasks a second of all priorities together."""
        if self._windows is None:
            return 0.0
        return sum(window.rate(now_s) for window in self._windows if window is not None)

    def rates(self, now_s: float) -> dict[int, float]:
        """Return the tasks a second of each priority."""
        return {
            priority: window.rate(now_s) for priority, window in enumerate(self._windows or ()) if window is not None
        }
