"""A token bucket for calls: `rate` a second, and at most one second's worth at once after a pause."""

import asyncio
from collections.abc import Awaitable, Callable


class Pace:
    """Limits the calls of one process to one server."""

    def __init__(
        self,
        calls_per_s: float,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Use the time of `clock`, in seconds."""
        self._interval_s = 1 / calls_per_s
        self._clock = clock
        self._sleep = sleep
        # Time at which the bucket is full again: each call moves it by one interval.
        self._full_at_s = clock()

    async def wait(self) -> None:
        """Wait until the next call may be made."""
        now_s = self._clock()
        self._full_at_s = max(self._full_at_s, now_s) + self._interval_s
        # The bucket holds one second's worth of calls, but at least one call.
        wait_s = self._full_at_s - now_s - max(1.0, self._interval_s)
        if wait_s > 0:
            await self._sleep(wait_s)
