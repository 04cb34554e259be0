"""How much of something a peer may do: a burst at once, and a rate from then on."""


class Budget:
    """A bucket of tokens that fills with time."""

    __slots__ = ("_burst_max", "_per_s_max", "_spent_s", "_tokens")

    def __init__(self, *, burst_max: int, per_s_max: int) -> None:
        self._burst_max = burst_max
        self._per_s_max = per_s_max
        self._tokens = float(burst_max)
        self._spent_s = 0.0

    def spend(self, now_s: float) -> bool:
        """Whether there was one left."""
        # The first time is no matter: the bucket is full as it is.
        refill = (now_s - self._spent_s) * self._per_s_max
        self._spent_s = now_s
        self._tokens = min(self._burst_max, self._tokens + refill) - 1
        return self._tokens >= 0

    def earn(self, tokens: int) -> None:
        """Some more, for something that a flood does not do."""
        self._tokens = min(self._burst_max, self._tokens + tokens)
