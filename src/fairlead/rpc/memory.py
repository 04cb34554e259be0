"""Byte budget of one server: limits the message bytes that all its connections together keep in memory."""

import asyncio
import sys
from collections.abc import Callable

# Bytes up to which a message or its headers are not counted: the limits on calls bound the number of these.
SMALL_BYTES_MAX = 4 * 1024
# Bytes that a connection may hold and still open calls while the server is short of memory.
LIGHT_BYTES_MAX = 1024 * 1024
# Multiple of the budget above which the connection that holds most is cut at once.
EXCESS_FACTOR_MAX = 2


class Memory:
    """Counts the bytes of requests and unsent responses that a server holds.

    Above `bytes_max` the server is short: large messages wait, and connections that hold much open no more calls.
    Above twice as much, `on_excess` is called.
    """

    __slots__ = ("_is_excess_noted", "_loop", "_on_excess", "_waiting", "bytes_max", "is_short", "used_bytes")

    def __init__(
        self,
        bytes_max: int = sys.maxsize,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        on_excess: Callable[[], None] = lambda: None,
    ) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        # Whether large messages must wait. A plain attribute, since every call reads it.
        self.is_short = False
        self._loop = loop
        self._on_excess = on_excess
        self._is_excess_noted = False
        # Called once, in order, as soon as the server is no longer short.
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def is_excessive(self) -> bool:
        """Whether a connection has to be cut."""
        return self.used_bytes > self.bytes_max * EXCESS_FACTOR_MAX

    def add(self, size: int) -> None:
        """Count bytes; a negative number gives them back."""
        self.used_bytes += size
        self.is_short = self.used_bytes > self.bytes_max
        if size > 0:
            if self.is_excessive and not self._is_excess_noted and self._loop is not None:
                self._is_excess_noted = True
                self._loop.call_soon(self._report_excess)
        elif self._waiting and not self.is_short and self._loop is not None:
            self._loop.call_soon(self._wake)

    def when_enough(self, callback: Callable[[], None]) -> None:
        """Register a callback: called once when the server is no longer short of memory, first come, first served."""
        self._waiting[callback] = None

    def forget(self, callback: Callable[[], None]) -> None:
        """Remove a registered callback."""
        self._waiting.pop(callback, None)

    async def enough(self) -> None:
        """Wait until the server is not short of memory."""
        while self.is_short:
            has_enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake(waiting: "asyncio.Future[None]" = has_enough) -> None:
                if not waiting.done():
                    waiting.set_result(None)

            self.when_enough(wake)
            try:
                await has_enough
            finally:
                self.forget(wake)

    def _wake(self) -> None:
        # Call one callback at a time: each may use up the free memory.
        if self._waiting and not self.is_short:
            callback = next(iter(self._waiting))
            del self._waiting[callback]
            callback()
            if self._waiting and self._loop is not None:
                self._loop.call_soon(self._wake)

    def _report_excess(self) -> None:
        self._is_excess_noted = False
        self._on_excess()


class Account:
    """The bytes that one connection holds."""

    __slots__ = ("_is_closed", "held_bytes", "memory")

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.held_bytes = 0
        self._is_closed = False

    @property
    def may_open(self) -> bool:
        """Whether the connection may open another call."""
        memory = self.memory
        return not memory.is_short or (self.held_bytes <= LIGHT_BYTES_MAX and not memory.is_excessive)

    def hold(self, size: int) -> None:
        """Count bytes that the connection holds from now on."""
        self.held_bytes += size
        if not self._is_closed:
            self.memory.add(size)

    def free(self, size: int) -> None:
        """Count bytes as freed."""
        self.held_bytes -= size
        if not self._is_closed:
            self.memory.add(-size)

    def move(self, memory: Memory) -> None:
        """Count the bytes against another budget from now on."""
        if not self._is_closed:
            self.memory.add(-self.held_bytes)
            memory.add(self.held_bytes)
        self.memory = memory

    def close(self) -> None:
        """Count nothing from now on: the connection has ended, and all that it holds is freed in a moment."""
        if not self._is_closed:
            self._is_closed = True
            self.memory.add(-self.held_bytes)
