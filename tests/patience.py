"""Waits in tests: for a condition, with a time limit that only a hang exceeds."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

# Seconds until a wait counts as a hang. It does not measure speed: it is long enough for a busy machine, and below the
# 180 s that a whole test may take.
PATIENCE_S = 150.0
# Seconds between two checks of a condition.
CHECK_S = 0.01


async def until(holds: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition holds; fails if it still does not hold after `PATIENCE_S`."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        result = holds()
        if (await result) if inspect.isawaitable(result) else result:
            return
        assert time.monotonic() < deadline_s, f"{inspect.getsource(holds).strip()} did not hold within {PATIENCE_S} s"
        await asyncio.sleep(CHECK_S)


async def step(turns: int = 10) -> None:
    """Let the event loop run everything that is ready, and what that makes ready in turn."""
    for _ in range(turns):
        await asyncio.sleep(0)
