"""A drain: ends long polls early, with another response."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Drain:
    """Tracks the long polls of a server. When draining begins, each poll is cancelled and gets another response."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        # Polls that draining cancelled.
        self._ended: set[asyncio.Task[Any]] = set()
        self._has_begun = False

    async def wait(self, ask: Callable[[], Awaitable[T]], instead: Callable[[], Awaitable[T]]) -> T:
        """Result of `ask`, or of `instead` if draining begins before `ask` ends."""
        waiting = asyncio.current_task()
        if self._has_begun or waiting is None:
            return await instead()
        self._waiting.add(waiting)
        try:
            return await ask()
        except asyncio.CancelledError:
            # If the caller has cancelled the poll too, it needs no response: stay cancelled.
            if waiting not in self._ended or waiting.uncancel() != 0:
                raise
        finally:
            self._waiting.discard(waiting)
            self._ended.discard(waiting)
        return await instead()

    def begin(self) -> None:
        """Answer all waiting polls now, and each later poll as soon as it arrives."""
        self._has_begun = True
        self._ended |= self._waiting
        for waiting in self._waiting:
            waiting.cancel()
