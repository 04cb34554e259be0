"""One look for all who ask for one: however many they are, two at most are on their way."""

import asyncio
from collections.abc import Awaitable, Callable

from fairlead.cluster.calls import is_cancelled
from fairlead.core.errors import RetryLater


class GivenUp(RetryLater):
    """What was asked for was not done to its end, and nobody does it here any more."""


class Turns:
    """Does a thing for whoever asks, one turn at a time of whatever it is to be done with.

    Whoever asks while a turn is under way needs one that begins later: all of them share the next. So what they wait
    for began after they asked, and each is told how it ended.
    """

    def __init__(self, do: Callable[[str], Awaitable[None]]) -> None:
        self._do = do
        self._under_way: dict[str, asyncio.Lock] = {}
        self._next: dict[str, asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def take(self, what: str) -> None:
        """Have it done with something, from now on or later."""
        turn = self._next.get(what)
        if turn is None:
            turn = self._next[what] = asyncio.create_task(self._turn(what))
            self._running.add(turn)
            turn.add_done_callback(self._ended)
        try:
            # Who does not wait any more takes it from nobody else.
            await asyncio.shield(turn)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise GivenUp(f"what is to be had of {what!r} is not waited for any more: this host is stopping") from None

    async def close(self) -> None:
        """Give up what is under way; those who wait are told."""
        running = list(self._running)
        for turn in running:
            turn.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._next.clear()

    async def _turn(self, what: str) -> None:
        async with self._under_way.setdefault(what, asyncio.Lock()):
            del self._next[what]
            await self._do(what)

    def _ended(self, turn: asyncio.Task[None]) -> None:
        self._running.discard(turn)
        if not turn.cancelled():
            # Those who wait are told; there may be nobody any more.
            turn.exception()
