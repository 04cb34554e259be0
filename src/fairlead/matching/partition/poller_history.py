"""The workers that polled a partition recently."""

import math

from fairlead.matching.clock import Clock
from fairlead.matching.messages import PollerInfo

# Number of pollers that are remembered; the one that polled longest ago is forgotten first.
POLLERS_MAX = 1000
# Seconds after its last poll until a poller is no longer listed.
POLLER_HISTORY_S = 300.0


class PollerHistory:
    """Remembers the last poll of each worker identity."""

    __slots__ = ("_clock", "_polled_s", "_pollers")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Ordered by the time of the last poll.
        self._pollers: dict[str, tuple[float, float | None, bytes]] = {}
        self._polled_s = -math.inf

    def note(self, identity: str, rate_per_s: float | None = None, worker: bytes = b"") -> None:
        """Record a poll."""
        self._polled_s = now_s = self._clock()
        pollers = self._pollers
        pollers.pop(identity, None)
        pollers[identity] = (now_s, rate_per_s, worker)
        if len(pollers) > POLLERS_MAX:
            del pollers[next(iter(pollers))]

    @property
    def has_recent(self) -> bool:
        """Whether any worker polled within `POLLER_HISTORY_S`."""
        return self._clock() - self._polled_s <= POLLER_HISTORY_S

    def recent(self) -> list[PollerInfo]:
        """Return the workers that polled within `POLLER_HISTORY_S`."""
        now_s = self._clock()
        return [
            PollerInfo(identity, seen_s, rate_per_s, worker)
            for identity, (seen_s, rate_per_s, worker) in self._pollers.items()
            if now_s - seen_s <= POLLER_HISTORY_S
        ]
