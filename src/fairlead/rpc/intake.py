"""What one peer may send: windows for the many small messages, and more for a large one when its turn has come."""

from collections import deque

from fairlead.rpc.frames import WINDOW_DEFAULT, ErrorCode, StreamFault, window_update
from fairlead.rpc.message import PREFIX_BYTES
from fairlead.rpc.outbox import Outbox
from fairlead.rpc.status import Code, RpcStatus
from fairlead.rpc.stream import Incoming, Stream

# Most messages fit in it, and then need no word about windows at all.
STREAM_WINDOW_BYTES = 64 * 1024
# Only paces the peer: what is held is bounded by the streams' windows and by `receive_bytes_max`.
CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024
_WIDEN_BELOW_BYTES = CONNECTION_WINDOW_BYTES // 2


class Intake:
    """Gives the peer room to send.

    A message that is larger than a stream's window gets room for all of it, in the order of asking, while the messages
    that have such room together stay below `receive_bytes_max`. So memory is bounded, and no two half-sent messages
    ever wait for each other.
    """

    __slots__ = ("_outbox", "_partial_bytes", "_receive_bytes_max", "_reserved_bytes", "_waiting", "_window")

    def __init__(self, outbox: Outbox, *, receive_bytes_max: int) -> None:
        self._outbox = outbox
        self._receive_bytes_max = receive_bytes_max
        self._window = CONNECTION_WINDOW_BYTES
        self._reserved_bytes = 0
        self._waiting: deque[Stream] = deque()
        # Of messages that have no room reserved for them.
        self._partial_bytes = 0

    def open(self) -> None:
        """Tell the peer of the connection's window; the streams' own is in the settings."""
        self._outbox.write(window_update(0, CONNECTION_WINDOW_BYTES - WINDOW_DEFAULT))

    def received(self, size: int) -> None:
        """A frame of data came, padding and all, on whatever stream."""
        # Given back long before it is used up, so that it can't be overdrawn.
        self._window -= size
        if self._window < _WIDEN_BELOW_BYTES:
            self._outbox.write(window_update(0, CONNECTION_WINDOW_BYTES - self._window))
            self._window = CONNECTION_WINDOW_BYTES

    def received_on(self, stream: Stream, size: int, *, padding: int) -> None:
        """A frame of data came on a stream."""
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the stream's window allows")
        if padding:
            # It is not kept, so it takes nothing of the room that was given for the message.
            self.give(stream, padding)

    def hold(self, stream: Stream, incoming: Incoming) -> None:
        """Keep the part of a message that has come, and see to it that the rest of it can; raises RpcStatus."""
        if incoming.reserved_bytes:
            return
        self._partial_bytes += len(incoming.reader.buffer) - incoming.held_bytes
        incoming.held_bytes = len(incoming.reader.buffer)
        if self._partial_bytes > self._receive_bytes_max:
            raise RpcStatus(
                Code.RESOURCE_EXHAUSTED,
                f"{self._partial_bytes} bytes of unfinished messages on one connection: send fewer at once",
            )
        # Until its length is known, the usual window is enough: it opens again as the messages before it are read.
        is_known = len(incoming.reader.buffer) >= PREFIX_BYTES
        if not is_known or incoming.is_waiting or incoming.reader.needed_bytes() <= stream.receive_window:
            return
        incoming.is_waiting = True
        self._waiting.append(stream)
        self._give_turns()

    def release(self, incoming: Incoming) -> int:
        """The message has come as a whole, or never will; says how much window was given for it beyond the usual."""
        extra_bytes = incoming.extra_bytes
        self._partial_bytes -= incoming.held_bytes
        self._reserved_bytes -= incoming.reserved_bytes
        had_turn = incoming.reserved_bytes > 0
        incoming.held_bytes = incoming.reserved_bytes = incoming.extra_bytes = 0
        incoming.is_waiting = False
        if had_turn:
            self._give_turns()
        return extra_bytes

    def give(self, stream: Stream, size: int) -> None:
        """Let the peer send so much more on a stream."""
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
            self._waiting.popleft()
            incoming.is_waiting = False
            self._partial_bytes -= incoming.held_bytes
            incoming.held_bytes = 0
            self._reserved_bytes += whole_bytes
            incoming.reserved_bytes = whole_bytes
            incoming.extra_bytes = needed_bytes - stream.receive_window
            self.give(stream, incoming.extra_bytes)
