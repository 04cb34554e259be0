"""Rate limit for one peer: a burst at once, then a steady rate."""


class Budget:
    """Token bucket that refills over time."""

    __slots__ = ("_burst_max", "_per_s_max", "_spent_s", "_tokens")

    def __init__(self, *, burst_max: int, per_s_max: int) -> None:
        self._burst_max = burst_max
        self._per_s_max = per_s_max
        self._tokens = float(burst_max)
        self._spent_s = 0.0

    def spend(self, now_s: float) -> bool:
        """Take one token; False if none was left."""
        # The first refill counts from time 0; it adds nothing, since the bucket starts full.
        refill = (now_s - self._spent_s) * self._per_s_max
        self._spent_s = now_s
        self._tokens = min(self._burst_max, self._tokens + refill) - 1
        return self._tokens >= 0

    def earn(self, tokens: int) -> None:
        """Add tokens, for frames that a flood of control frames doesn't contain."""
        self._tokens = min(self._burst_max, self._tokens + tokens)
