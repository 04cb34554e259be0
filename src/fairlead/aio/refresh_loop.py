"""The loop of a cache that is refreshed from time to time."""

import asyncio
from collections.abc import Awaitable, Callable

from fairlead.core.errors import FairleadError


async def refresh_forever(
    refresh: Callable[[], Awaitable[None]], *, interval_s: float, on_failure: Callable[[FairleadError], None]
) -> None:
    """Call `refresh` after every interval, until cancelled; if it fails, the cached value stays in use.

    `on_failure` gets only the first of consecutive failures, so that an outage does not fill the log.
    """
    is_failing = False
    while True:
        await asyncio.sleep(interval_s)
        try:
            await refresh()
            is_failing = False
        except FairleadError as failure:
            if not is_failing:
                on_failure(failure)
            is_failing = True
