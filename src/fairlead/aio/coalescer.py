"""Coalesces concurrent refreshes: at most one running and one queued per key."""

import asyncio
from collections.abc import Awaitable, Callable

from fairlead.aio.cancellation import is_cancelled
from fairlead.core.errors import RetryLater


class GivenUp(RetryLater):
    """The host stopped before the refresh ended."""


class Coalescer:
    """Coalesces concurrent refreshes: at most one running and one queued per key.

    A caller that comes while a refresh runs shares the queued one with all other such callers. So each caller waits
    for a refresh that began after its call, and gets that refresh's error.
    """

    def __init__(self, do: Callable[[str], Awaitable[None]]) -> None:
        self._do = do
        self._locks: dict[str, asyncio.Lock] = {}
        self._queued: dict[str, asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def refresh(self, key: str) -> None:
        """Wait for a refresh of `key` that begins after this call."""
        refresh = self._queued.get(key)
        if refresh is None:
            refresh = self._queued[key] = asyncio.create_task(self._refresh(key))
            self._running.add(refresh)
            refresh.add_done_callback(self._ended)
        try:
            # A caller that is cancelled does not cancel the refresh for the others.
            await asyncio.shield(refresh)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise GivenUp(f"refresh of {key!r} was cancelled: this host is stopping") from None

    async def close(self) -> None:
        """Cancel all refreshes; their callers get `GivenUp`."""
        running = list(self._running)
        for refresh in running:
            refresh.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._queued.clear()

    async def _refresh(self, key: str) -> None:
        async with self._locks.setdefault(key, asyncio.Lock()):
            del self._queued[key]
            await self._do(key)

    def _ended(self, refresh: asyncio.Task[None]) -> None:
        self._running.discard(refresh)
        if not refresh.cancelled():
            # Reading the error keeps asyncio from logging it when all callers are gone.
            refresh.exception()
