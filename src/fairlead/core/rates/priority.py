"""A rate limit of calls with priorities."""

from fairlead.core.rates.rate import Rate


class PriorityRate:
    """Lets through a steady number of calls a second, important ones first.

    Each priority has the whole rate, and a call also counts against all less important priorities. So important calls
    displace less important ones, and never the other way round. Priority 0 is the most important one. Calls of
    operators have a rate of their own before that, which is a share of the whole rate: even if all other calls reach
    their limits, an operator can act.
    """

    __slots__ = ("_operators", "_rates")

    def __init__(self, rate_per_s: float, *, burst_s: float, priorities: int, operators_share: float = 0.0) -> None:
        self._rates = tuple(Rate(rate_per_s, burst_s=burst_s) for _ in range(priorities))
        self._operators = Rate(rate_per_s * operators_share, burst_s=burst_s)

    def change(self, rate_per_s: float, *, burst_s: float, operators_share: float = 0.0) -> None:
        """Change the rate; calls that were let through before still count."""
        for rate in self._rates:
            rate.change(rate_per_s, burst_s=burst_s)
        self._operators.change(rate_per_s * operators_share, burst_s=burst_s)

    def try_take(self, priority: int, now_s: float, *, is_operator: bool = False) -> bool:
        """Count a call and return True; return False, without counting, if the limit of its priority is reached."""
        if is_operator and self._operators.ready_s(now_s) <= now_s:
            self._operators.take(now_s)
            priority = 0
        elif self._rates[priority].ready_s(now_s) > now_s:
            return False
        for rate in self._rates[priority:]:
            # Don't count beyond a less important limit, so that its calls pass again as soon as important calls cease.
            rate.take_at_most(now_s)
        return True
