"""Limits on how fast tasks are dispatched: for a whole partition, and for each fairness key."""

import math
from collections import OrderedDict

from fairlead.core.errors import FixRequest

BURST_S = 1.0
KEYS_MAX = 2000


class InvalidRate(FixRequest):
    """A rate limit is negative or no number."""


def check_rate(rate_per_s: float) -> float:
    """Return `rate_per_s` if it can limit anything; 0 stops, infinity does not limit."""
    if math.isnan(rate_per_s) or rate_per_s < 0:
        raise InvalidRate(f"rate limit of {rate_per_s} a second: give 0 to stop, or a positive number")
    return rate_per_s


class Rate:
    """Lets through a steady number a second, and after a pause as many at once as a second has.

    The generic cell rate algorithm: all that is remembered is when the present load will have been worked off at the
    given rate. That time lies in the past while the limit has not been reached.
    """

    __slots__ = ("_burst_s", "_interval_s", "_worked_off_s")

    def __init__(self, rate_per_s: float, *, burst_s: float = BURST_S) -> None:
        rate_per_s = check_rate(rate_per_s)
        self._interval_s = 1 / rate_per_s if rate_per_s else math.inf
        # At less than one in the burst's time, still one at once.
        self._burst_s = max(burst_s, self._interval_s)
        self._worked_off_s = -math.inf

    def change(self, rate_per_s: float) -> None:
        """Go on with another rate; what was let through before still counts."""
        changed = Rate(rate_per_s)
        self._interval_s, self._burst_s = changed._interval_s, changed._burst_s

    def ready_s(self, now_s: float) -> float:
        """When the next may pass: now, or later; infinity if the rate is 0."""
        if self._interval_s == math.inf:
            return math.inf
        return max(now_s, self._worked_off_s + self._interval_s - self._burst_s)

    def take(self, now_s: float) -> None:
        """One has passed."""
        self._worked_off_s = max(now_s, self._worked_off_s) + self._interval_s

    def give_back(self) -> None:
        """One that had passed was not dispatched after all."""
        self._worked_off_s -= self._interval_s


class KeyRates:
    """A rate for each fairness key, in proportion to its weight; the keys that were used last are remembered.

    A key that has been idle for long enough is as good as new, so that forgetting it changes nothing. Where more than
    `KEYS_MAX` are busy at once, the one that was used longest ago starts anew.
    """

    def __init__(self, rate_per_s: float = math.inf) -> None:
        self._rate_per_s = check_rate(rate_per_s)
        self._rates: OrderedDict[str, tuple[Rate, float]] = OrderedDict()

    @property
    def is_limiting(self) -> bool:
        """Whether any key can be held back at all."""
        return self._rate_per_s < math.inf

    def change(self, rate_per_s: float) -> None:
        """Go on with another rate for a key of weight 1."""
        self._rate_per_s = check_rate(rate_per_s)
        for rate, weight in self._rates.values():
            rate.change(rate_per_s * weight)

    def of(self, key: str, weight: float) -> Rate:
        """The rate of a key; a new weight counts from now on."""
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
