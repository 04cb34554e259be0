"""The state of one stream: flow control of either side, and the server's side of a call."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from fairlead.rpc.call import Call, Route
from fairlead.rpc.certificate import PeerCertificate
from fairlead.rpc.head import Head
from fairlead.rpc.message import MessageReader, Packed


class Incoming:
    """An unfinished message of the peer: its received bytes, and the window reserved for the rest."""

    __slots__ = ("counted_bytes", "extra_bytes", "held_bytes", "is_waiting", "reader", "reserved_bytes")

    def __init__(self, reader: MessageReader) -> None:
        self.reader = reader
        # Received bytes that the connection's account has counted.
        self.counted_bytes = 0
        # Received bytes, counted while the message has no reservation.
        self.held_bytes = 0
        # Size of the whole message once it has a reservation, and the window given for it beyond the usual.
        self.reserved_bytes = 0
        self.extra_bytes = 0
        self.is_waiting = False


class Outgoing:
    """Messages that wait for the peer's windows. A message that fits at once is not stored here."""

    __slots__ = ("end_block", "ends_with_data", "is_ready", "offset", "pieces", "room", "waiting_bytes")

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        # Number of bytes of the first piece that were already sent.
        self.offset = 0
        self.waiting_bytes = 0
        # Whether the stream is in the outbox's queue of ready streams.
        self.is_ready = False
        # The trailers that follow the last piece; None while more pieces may come.
        self.end_block: bytes | None = None
        # Whether the last piece ends the stream. The last piece of a request does.
        self.ends_with_data = False
        # Done when `waiting_bytes` is low enough for the handler's next message.
        self.room: asyncio.Future[None] | None = None


class Flow(Protocol):
    """A stream as flow control sees it, on either side."""

    id: int
    send_window: int
    receive_window: int
    # True once the peer has ended its side of the stream.
    is_half_closed: bool
    incoming: Incoming | None
    outgoing: Outgoing | None


class Messages(AsyncIterator[bytes]):
    """Messages of the peer on one stream; the peer gets more window only as they are read."""

    __slots__ = ("_error", "_is_ended", "_messages", "_on_taken", "_unpack", "_waiter")

    def __init__(
        self, on_taken: Callable[[int, int], None], *, unpack: Callable[[Packed], Awaitable[bytes]] | None = None
    ) -> None:
        """`on_taken` gets the window to give back and the size of each message that is taken."""
        self._messages: deque[tuple[bytes | Packed, int, int]] = deque()
        self._on_taken = on_taken
        self._unpack = unpack or Packed.unpacked_aside
        self._is_ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, message: bytes | Packed, *, window_bytes: int) -> None:
        """Add a message; the peer gets `window_bytes` back when the reader takes it."""
        self._messages.append((message, window_bytes, message_bytes(message)))
        self._wake()

    def end(self, error: Exception | None = None) -> None:
        """End the iteration after the messages already here, with an error if there is one."""
        self._is_ended = True
        self._error = error
        self._wake()

    async def __anext__(self) -> bytes:
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._is_ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        message, window_bytes, size = self._messages.popleft()
        self._on_taken(window_bytes, size)
        return await self._unpack(message) if isinstance(message, Packed) else message

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def message_bytes(message: bytes | Packed) -> int:
    """Bytes that a message takes, compressed or not."""
    return message.packed_bytes if isinstance(message, Packed) else len(message)


class StreamOwner(Protocol):
    """The calls of a connection, as their deadlines see them."""

    def expire(self, stream: "Stream") -> None:
        """End a call whose deadline has passed."""
        ...

    def trust(self) -> None:
        """Give the connection the limits of an identified caller."""
        ...


class Stream(Call):
    """A call with the connection's state for it."""

    __slots__ = (
        "has_begun",
        "held_bytes",
        "id",
        "incoming",
        "is_half_closed",
        "is_open",
        "outgoing",
        "owner",
        "receive_window",
        "request",
        "requests",
        "route",
        "send_window",
        "task",
        "tick",
    )

    def __init__(
        self,
        stream_id: int,
        route: Route,
        head: Head,
        owner: StreamOwner,
        *,
        peer: str,
        certificate: PeerCertificate | None,
        clock: Callable[[], float],
        timeout_s: float | None,
        send_window: int,
        receive_window: int,
    ) -> None:
        super().__init__(head, peer=peer, clock=clock, timeout_s=timeout_s, certificate=certificate)
        self.id = stream_id
        self.route = route
        self.owner = owner
        self.send_window = send_window
        self.receive_window = receive_window
        # True until we have sent the end of the response, or either side has reset the stream.
        self.is_open = True
        # True once the peer has sent the end of the request.
        self.is_half_closed = False
        # The request of a call with a single request message.
        self.request: bytes | Packed | None = None
        # Bytes of large headers and requests that the connection's account has counted.
        self.held_bytes = 0
        # The requests of a duplex call.
        self.requests: Messages | None = None
        # Set only if a message spans several frames.
        self.incoming: Incoming | None = None
        self.outgoing: Outgoing | None = None
        self.task: asyncio.Task[None] | None = None
        # False until the handler's first step: a task cancelled before it never runs, nor its `finally`.
        self.has_begun = False
        # The deadline's tick; None without a deadline.
        self.tick: int | None = None

    def trust(self) -> None:
        """See `Call.trust`."""
        self.owner.trust()
