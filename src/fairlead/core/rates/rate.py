"""Rate limits: a single limit, and a limit for each fairness key."""

import math
from collections import OrderedDict

from fairlead.core.errors import FixRequest

BURST_S = 1.0
KEYS_MAX = 2000


class InvalidRate(FixRequest):
    """A rate limit is negative or not a number."""


def check_rate(rate_per_s: float) -> float:
    """Return `rate_per_s` if it is valid; 0 stops dispatch, infinity means no limit."""
    if math.isnan(rate_per_s) or rate_per_s < 0:
        raise InvalidRate(f"rate limit of {rate_per_s} a second: give 0 to stop, or a positive number")
    return rate_per_s


class Rate:
    """Allows a steady number of tasks a second, and after a pause a burst of one second's tasks.

    The generic cell rate algorithm. Its only state is the time at which the tasks let through so far would be done, if
    they were done one by one at the given rate. A task may pass if this time, with the task, is at most `burst_s`
    ahead.
    """

    __slots__ = ("_burst_s", "_interval_s", "_worked_off_s")

    def __init__(self, rate_per_s: float, *, burst_s: float = BURST_S) -> None:
        rate_per_s = check_rate(rate_per_s)
        self._interval_s = 1 / rate_per_s if rate_per_s else math.inf
        # A low rate still allows one task at once.
        self._burst_s = max(burst_s, self._interval_s)
        self._worked_off_s = -math.inf

    def change(self, rate_per_s: float, *, burst_s: float = BURST_S) -> None:
        """Change the rate; tasks that were let through before still count."""
        changed = Rate(rate_per_s, burst_s=burst_s)
        self._interval_s, self._burst_s = changed._interval_s, changed._burst_s

    def ready_s(self, now_s: float) -> float:
        """Return when the next task may pass, `now_s` or later; infinity if the rate is 0."""
        if self._interval_s == math.inf:
            return math.inf
        return max(now_s, self._worked_off_s + self._interval_s - self._burst_s)

    def take(self, now_s: float) -> None:
        """Count a task that passes."""
        self._worked_off_s = max(now_s, self._worked_off_s) + self._interval_s

    def take_at_most(self, now_s: float) -> None:
        """Count a task that passes, unless the limit is reached already."""
        if self.ready_s(now_s) <= now_s:
            self.take(now_s)

    def give_back(self) -> None:
        """Uncount a task that was not dispatched after all."""
        self._worked_off_s -= self._interval_s


class KeyRates:
    """A rate limit for each fairness key, in proportion to its weight; holds the `KEYS_MAX` most recently used keys.

    Forgetting a key that was idle for a while changes nothing. If more than `KEYS_MAX` keys are busy, the least
    recently used one starts again with a full burst.
    """

    __slots__ = ("_rate_per_s", "_rates")

    def __init__(self, rate_per_s: float = math.inf) -> None:
        self._rate_per_s = check_rate(rate_per_s)
        # Created when the first key is limited.
        self._rates: OrderedDict[str, tuple[Rate, float]] | None = None

    @property
    def is_limiting(self) -> bool:
        """Whether keys are limited at all."""
        return self._rate_per_s < math.inf

    def change(self, rate_per_s: float) -> None:
        """Change the rate of a key of weight 1."""
        self._rate_per_s = check_rate(rate_per_s)
        if self._rates is not None:
            for rate, weight in self._rates.values():
                rate.change(rate_per_s * weight)

    def of(self, key: str, weight: float) -> Rate:
        """Return the rate limit of a key; a new weight takes effect at once."""
        if self._rates is None:
            self._rates = OrderedDict()
        known = self._rates.get(key)
        if known is None:
            rate = Rate(self._rate_per_s * weight)
            if len(self._rates) >= KEYS_MAX:
                self._rates.popitem(last=False)
        else:
            rate = known[0]
            self._rates.move_to_end(key)
            if known[1] != weight:
                rate.change(self._rate_per_s * weight)
        self._rates[key] = (rate, weight)
        return rate
