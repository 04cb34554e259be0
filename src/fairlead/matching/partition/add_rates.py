"""The rates at which tasks are added to one partition."""

from fairlead.core.scaling import RateWindow
from fairlead.matching.partition.priority_rates import PriorityRates


class AddRates:
    """Rates of added tasks, without forwarded tasks. `in_flight` is the number of adds that have not returned yet."""

    __slots__ = ("_for_scaler", "_scaler_s", "_started_s", "by_priority", "in_flight")

    def __init__(self, *, scaler_s: float, started_s: float) -> None:
        """`scaler_s` is the interval over which the scaler measures."""
        self._scaler_s = scaler_s
        self._started_s = started_s
        self.by_priority = PriorityRates(started_s=started_s)
        # Created at the first task.
        self._for_scaler: RateWindow | None = None
        self.in_flight = 0

    def add(self, priority: int, now_s: float) -> None:
        """Count a task."""
        self.by_priority.add(priority, now_s)
        if self._for_scaler is None:
            # With two buckets, the scaler's rate has no arrivals older than one and a half times the interval.
            self._for_scaler = RateWindow(bucket_s=self._scaler_s / 2, buckets=2, started_s=self._started_s)
        self._for_scaler.add(1, now_s)

    def scaler_rate(self, now_s: float) -> float:
        """Return the tasks a second for the scaler."""
        return 0.0 if self._for_scaler is None else self._for_scaler.rate(now_s)
