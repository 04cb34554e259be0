"""Receive windows of one peer: a fixed window for small messages, and more for large ones, in order of arrival."""

from collections import deque
from collections.abc import Iterator

from fairlead.rpc.frames import WINDOW_DEFAULT, ErrorCode, StreamFault, window_update
from fairlead.rpc.memory import Account
from fairlead.rpc.message import PREFIX_BYTES, MessageReader, Packed
from fairlead.rpc.outbox import Outbox
from fairlead.rpc.status import Code, RpcStatus
from fairlead.rpc.stream import Flow, Incoming

# Bytes of a stream's receive window; most messages fit and need no window updates.
STREAM_WINDOW_BYTES = 64 * 1024
# Bytes of the connection's receive window. It only paces the peer; the streams' windows and `receive_bytes_max` bound
# memory.
CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024
_WIDEN_BELOW_BYTES = CONNECTION_WINDOW_BYTES // 2


class Intake:
    """Gives the peer window to send.

    A message larger than a stream's window gets a reservation: window for all of it, first come first served. All
    reservations together stay below `receive_bytes_max`, and none is made while the server is short of memory. This
    bounds memory, and no two half-sent messages ever wait for each other.
    """

    __slots__ = (
        "_account",
        "_outbox",
        "_partial_bytes",
        "_receive_bytes_max",
        "_reserved_bytes",
        "_waiting",
        "_window",
    )

    def __init__(self, outbox: Outbox, *, receive_bytes_max: int, account: Account | None = None) -> None:
        self._account = account or Account()
        self._outbox = outbox
        self._receive_bytes_max = receive_bytes_max
        self._window = CONNECTION_WINDOW_BYTES
        self._reserved_bytes = 0
        self._waiting: deque[Flow] = deque()
        # Received bytes of unfinished messages without a reservation.
        self._partial_bytes = 0

    def open(self) -> None:
        """Send the connection's window to the peer; the streams' window is in our SETTINGS."""
        self._outbox.write(window_update(0, CONNECTION_WINDOW_BYTES - WINDOW_DEFAULT))

    def raise_to(self, receive_bytes_max: int) -> None:
        """Receive more bytes of unfinished messages from now on."""
        self._receive_bytes_max = receive_bytes_max
        self._give_turns()

    def received(self, size: int) -> None:
        """Count a DATA frame, with its padding, against the connection's window."""
        # The window is refilled at half, so it can't be overdrawn.
        self._window -= size
        if self._window < _WIDEN_BELOW_BYTES:
            self._outbox.write(window_update(0, CONNECTION_WINDOW_BYTES - self._window))
            self._window = CONNECTION_WINDOW_BYTES

    def received_on(self, stream: Flow, size: int, *, padding: int) -> None:
        """Count a DATA frame against its stream's window."""
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the stream's window allows")
        if padding:
            # Padding is not kept: give its bytes back, so that the message keeps the window reserved for it.
            self.give(stream, padding)

    def messages(
        self, stream: Flow, data: bytes, *, encoding: str, bytes_max: int
    ) -> Iterator[tuple[bytes | Packed, int]]:
        """Add data to a stream's message and yield the messages that it completes; raises RpcStatus.

        Each comes with the window to give back once it is read. Exhaust the iterator: at its end it counts the
        remaining bytes.
        """
        incoming = stream.incoming
        if incoming is None:
            incoming = stream.incoming = Incoming(MessageReader(encoding=encoding, bytes_max=bytes_max))
        buffer = incoming.reader.buffer
        buffer += data
        while True:
            before_bytes = len(buffer)
            message = incoming.reader.take()
            if message is None:
                break
            yield message, before_bytes - len(buffer) - self.release(incoming)
        if buffer:
            self.hold(stream, incoming)

    def hold(self, stream: Flow, incoming: Incoming) -> None:
        """Count the received part of a message, and queue for more window if the rest needs it; raises RpcStatus."""
        self._account.hold(len(incoming.reader.buffer) - incoming.counted_bytes)
        incoming.counted_bytes = len(incoming.reader.buffer)
        if incoming.reserved_bytes:
            return
        self._partial_bytes += len(incoming.reader.buffer) - incoming.held_bytes
        incoming.held_bytes = len(incoming.reader.buffer)
        if self._partial_bytes > self._receive_bytes_max:
            raise RpcStatus(
                Code.RESOURCE_EXHAUSTED,
                f"{self._partial_bytes} bytes of unfinished messages on one connection: send fewer at once",
            )
        # Until the length is known, the usual window is enough: it is refilled as the earlier messages are read.
        is_known = len(incoming.reader.buffer) >= PREFIX_BYTES
        if not is_known or incoming.is_waiting or incoming.reader.needed_bytes() <= stream.receive_window:
            return
        incoming.is_waiting = True
        self._waiting.append(stream)
        self._give_turns()

    def release(self, incoming: Incoming) -> int:
        """Release what a finished or abandoned message held; return the window bytes given beyond the usual."""
        extra_bytes = incoming.extra_bytes
        self._partial_bytes -= incoming.held_bytes
        self._reserved_bytes -= incoming.reserved_bytes
        had_turn = incoming.reserved_bytes > 0
        if incoming.counted_bytes:
            self._account.free(incoming.counted_bytes)
        incoming.held_bytes = incoming.reserved_bytes = incoming.extra_bytes = incoming.counted_bytes = 0
        incoming.is_waiting = False
        if had_turn:
            self._give_turns()
        return extra_bytes

    def give(self, stream: Flow, size: int) -> None:
        """Let the peer send `size` more bytes on a stream."""
        if size > 0 and not stream.is_half_closed:
            stream.receive_window += size
            self._outbox.write(window_update(stream.id, size))

    def _give_turns(self) -> None:
        while self._waiting:
            stream = self._waiting[0]
            incoming = stream.incoming
            if incoming is None or not incoming.is_waiting:
                self._waiting.popleft()
                continue
            needed_bytes = incoming.reader.needed_bytes()
            whole_bytes = len(incoming.reader.buffer) + needed_bytes
            if self._reserved_bytes and self._reserved_bytes + whole_bytes > self._receive_bytes_max:
                return
            if self._account.memory.is_short:
                self._account.memory.when_enough(self._give_turns)
                return
            self._waiting.popleft()
            incoming.is_waiting = False
            self._partial_bytes -= incoming.held_bytes
            incoming.held_bytes = 0
            self._reserved_bytes += whole_bytes
            incoming.reserved_bytes = whole_bytes
            incoming.extra_bytes = needed_bytes - stream.receive_window
            self.give(stream, incoming.extra_bytes)
