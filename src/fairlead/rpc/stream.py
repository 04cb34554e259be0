"""The state of one stream: the server's side of a call."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from fairlead.rpc.call import Call, Route
from fairlead.rpc.head import Head
from fairlead.rpc.message import MessageReader


class Incoming:
    """Messages that did not come in one frame each: what is here of them, and the room that was given for the rest."""

    __slots__ = ("extra_bytes", "held_bytes", "is_waiting", "reader", "reserved_bytes")

    def __init__(self, reader: MessageReader) -> None:
        self.reader = reader
        # Counted with the parts of messages that have no room of their own.
        self.held_bytes = 0
        # The whole message, once it has had its turn; and what the peer was given for it beyond the usual window.
        self.reserved_bytes = 0
        self.extra_bytes = 0
        self.is_waiting = False


class Outgoing:
    """The part of an answer that waits for the peer's windows; an answer that fits in them needs none."""

    __slots__ = ("end_block", "is_ready", "offset", "pieces", "room", "waiting_bytes")

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        # How much of the first piece is sent.
        self.offset = 0
        self.waiting_bytes = 0
        # Whether it is among those that send as soon as the connection may.
        self.is_ready = False
        # The trailers that follow the last piece; None while more pieces may come.
        self.end_block: bytes | None = None
        # Waits until little enough waits here.
        self.room: asyncio.Future[None] | None = None


class Requests(AsyncIterator[bytes]):
    """The messages of a caller that sends many, as they come; no more are taken from the peer than are read here."""

    __slots__ = ("_is_ended", "_messages", "_on_taken", "_waiter")

    def __init__(self, on_taken: Callable[[int], None]) -> None:
        self._messages: deque[tuple[bytes, int]] = deque()
        self._on_taken = on_taken
        self._is_ended = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, message: bytes, *, window_bytes: int) -> None:
        """One more message, for which the peer gets `window_bytes` back when it is read."""
        self._messages.append((message, window_bytes))
        self._wake()

    def end(self) -> None:
        """No more messages."""
        self._is_ended = True
        self._wake()

    async def __anext__(self) -> bytes:
        while not self._messages:
            if self._is_ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        message, window_bytes = self._messages.popleft()
        self._on_taken(window_bytes)
        return message

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Stream(Call):
    """A call with all that the connection must know of it."""

    __slots__ = (
        "has_begun",
        "id",
        "incoming",
        "is_half_closed",
        "is_open",
        "outgoing",
        "receive_window",
        "request",
        "requests",
        "route",
        "send_window",
        "task",
        "timer",
    )

    def __init__(
        self,
        stream_id: int,
        route: Route,
        head: Head,
        *,
        peer: str,
        clock: Callable[[], float],
        send_window: int,
        receive_window: int,
    ) -> None:
        super().__init__(head, peer=peer, clock=clock)
        self.id = stream_id
        self.route = route
        self.send_window = send_window
        self.receive_window = receive_window
        # Until we have sent the end, or either side has reset it.
        self.is_open = True
        # The peer has sent the end of its side.
        self.is_half_closed = False
        # The one message of a caller that sends one.
        self.request: bytes | None = None
        # The many messages of one that sends many.
        self.requests: Requests | None = None
        # Only where a message did not come in one frame.
        self.incoming: Incoming | None = None
        self.outgoing: Outgoing | None = None
        self.task: asyncio.Task[None] | None = None
        # A task that is cancelled before its first step never runs at all.
        self.has_begun = False
        self.timer: asyncio.TimerHandle | None = None
