"""Waits for a condition that has no notification."""

import asyncio
from collections.abc import Callable

# Seconds between two checks of the condition.
CHECK_S = 0.01


async def until(is_true: Callable[[], bool], *, within_s: float) -> None:
    """Wait until `is_true()`, for at most `within_s` seconds."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    while not is_true() and loop.time() < end_s:  # noqa: ASYNC110 - it depends on sets that change in many places
        await asyncio.sleep(CHECK_S)
