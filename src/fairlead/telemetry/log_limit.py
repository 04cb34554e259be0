"""Rate limit for repeated log events."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

SAME_EVENTS_MAX = 10
SAME_EVENTS_PERIOD_S = 1.0
# Event names that are tracked; names should be constants. Above it, the least recently logged name is forgotten.
EVENT_NAMES_MAX = 1_000


class EventLimit:
    """Lets each event through ten times per second; the next event let through reports how many were suppressed."""

    __slots__ = ("_clock", "_lock", "_periods")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Libraries log from threads of their own.
        self._lock = threading.Lock()
        # By event: start of its period, number let through in it, and number suppressed since the last one let through.
        self._periods: OrderedDict[Hashable, tuple[float, int, int]] = OrderedDict()

    def take(self, event: Hashable) -> int | None:
        """Number of events suppressed since the last one let through; None if this one is suppressed too."""
        now_s = self._clock()
        with self._lock:
            began_s, passed, suppressed = self._periods.pop(event, (now_s, 0, 0))
            # Start a new period also if the clock was set back: the old period might last for hours.
            if not 0 <= now_s - began_s < SAME_EVENTS_PERIOD_S:
                began_s, passed = now_s, 0
            is_let = passed < SAME_EVENTS_MAX
            self._periods[event] = (began_s, passed + 1, 0) if is_let else (began_s, passed, suppressed + 1)
            if len(self._periods) > EVENT_NAMES_MAX:
                self._periods.popitem(last=False)
        return suppressed if is_let else None
