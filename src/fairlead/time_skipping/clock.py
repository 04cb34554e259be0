"""The clock of a server that skips time: the wall clock plus an offset that only grows."""

import time
from collections.abc import Callable

from fairlead.api.times import SECOND_NS

# Latest time that the clock jumps to: the year 2200. Timers beyond it are not skipped to.
TIME_NS_MAX = 7_258_118_400 * SECOND_NS


class SkippingClock:
    """The server's clock: the time that workflows see."""

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._wall_ns = wall_ns
        self._offset_ns = 0

    def now_ns(self) -> int:
        """The current time of the server."""
        return self._wall_ns() + self._offset_ns

    def jump_to(self, time_ns: int) -> None:
        """Set the clock to this time, unless it is later already."""
        self._offset_ns = max(self._offset_ns, min(time_ns, TIME_NS_MAX) - self._wall_ns())
