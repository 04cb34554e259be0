"""Frames to one peer: as many as its windows allow, in one write per iteration of the event loop."""

import asyncio
from collections import deque

from fairlead.rpc.frames import (
    DATA,
    END_STREAM,
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ConnectionFault,
    ErrorCode,
    StreamFault,
    header_frames,
)
from fairlead.rpc.memory import Account
from fairlead.rpc.message import framed
from fairlead.rpc.stream import Flow, Outgoing

# Bytes in the transport's write buffer at which it pauses writing.
TRANSPORT_BYTES_MAX = 256 * 1024
# Bytes of a sent DATA frame, even if the peer accepts more: larger frames would delay the connection's other streams.
FRAME_SENT_BYTES_MAX = 64 * 1024
# Bytes of large messages that one connection sends in one iteration of the loop, so that others get their turn.
TURN_BYTES_MAX = 256 * 1024
# Unsent bytes of a stream above which its streaming handler waits.
STREAM_WAITING_BYTES_MAX = 64 * 1024
# Bytes held for a peer that provokes ping replies, resets and the like but does not read them; above it, we abort.
HELD_BYTES_MAX = 1024 * 1024


class Outbox:
    """Sends frames, and messages within the peer's windows; holds and counts the bytes that do not fit."""

    __slots__ = (
        "_account",
        "_is_closed",
        "_is_paused",
        "_is_scheduled",
        "_loop",
        "_out",
        "_ready",
        "_transport",
        "_window",
        "frame_bytes_max",
        "header_list_bytes_max",
        "held_bytes",
        "stream_window",
        "waiting_bytes",
        "writes",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, *, account: Account | None = None
    ) -> None:
        self._account = account or Account()
        self._loop = loop
        self._transport = transport
        self._out: list[bytes] = []
        self._is_scheduled = False
        self._is_paused = False
        self._is_closed = False
        self._window = WINDOW_DEFAULT
        # Streams that have data to send and window left, in round-robin order.
        self._ready: deque[Flow] = deque()
        self.stream_window = WINDOW_DEFAULT
        self.frame_bytes_max = FRAME_BYTES_MAX
        self.header_list_bytes_max = WINDOW_MAX
        self.waiting_bytes = 0
        self.held_bytes = 0
        # Number of writes to the transport. A frame that was queued at this count is unsent until the count rises.
        self.writes = 0

    def write(self, data: bytes) -> None:
        """Send frames together with the others of this loop iteration."""
        if self._is_closed:
            return
        self._out.append(data)
        if self._is_paused:
            self.held_bytes += len(data)
            if self.held_bytes > HELD_BYTES_MAX:
                self._transport.abort()
        self.schedule()

    def schedule(self) -> None:
        """Flush at the end of this loop iteration; callbacks that must run first have to be scheduled before."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send all queued frames now, unless the transport is full."""
        self._is_scheduled = False
        if self._is_paused or self._is_closed:
            return
        if self._ready:
            self._send_turn()
        if self._out:
            out, self._out = self._out, []
            self.writes += 1
            self._transport.write(b"".join(out))

    def close(self) -> None:
        """Send all queued frames even if the transport is full, and nothing from then on."""
        if not self._is_closed:
            self._is_closed = True
            self.writes += 1
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def pause(self) -> None:
        """The transport is full."""
        if not self._is_paused:
            self._is_paused = True
            self._account.hold(TRANSPORT_BYTES_MAX)

    def resume(self) -> None:
        """The transport has room again."""
        if self._is_paused:
            self._is_paused = False
            self._account.free(TRANSPORT_BYTES_MAX)
        self.held_bytes = 0
        self.schedule()

    def queue(self, stream: Flow, message: bytes) -> Outgoing:
        """Send a message, or as much of it as fits; the rest waits."""
        outgoing = stream.outgoing
        if outgoing is None:
            outgoing = stream.outgoing = Outgoing()
        piece = framed(message)
        outgoing.pieces.append(piece)
        outgoing.waiting_bytes += len(piece)
        self.waiting_bytes += len(piece)
        self._account.hold(len(piece))
        self._make_ready(stream, outgoing)
        return outgoing

    def headers(self, stream_id: int, block: bytes, *, flags: int = 0) -> None:
        """Send a header block at once: flow control applies to DATA frames only."""
        self.write(header_frames(stream_id, block, flags=flags, frame_bytes_max=self.frame_bytes_max))

    def room(self, stream: Flow) -> asyncio.Future[None] | None:
        """Future that a streaming handler must await before its next message; None if there is room now."""
        outgoing = stream.outgoing
        if outgoing is None or outgoing.waiting_bytes <= STREAM_WAITING_BYTES_MAX:
            return None
        outgoing.room = self._loop.create_future()
        return outgoing.room

    def forget(self, stream: Flow) -> None:
        """Drop the unsent rest of the stream's messages."""
        if stream.outgoing is not None:
            self.waiting_bytes -= stream.outgoing.waiting_bytes
            self._account.free(stream.outgoing.waiting_bytes)
            stream.outgoing = None

    def widen(self, increment: int) -> None:
        """Enlarge the connection's send window."""
        if self._window + increment > WINDOW_MAX:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window grew beyond 31 bits")
        self._window += increment
        if self._ready:
            self.schedule()

    def widen_stream(self, stream: Flow, increment: int) -> None:
        """Enlarge a stream's send window."""
        if stream.send_window + increment > WINDOW_MAX:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window grew beyond 31 bits")
        stream.send_window += increment
        if stream.outgoing is not None and stream.outgoing.pieces:
            self._make_ready(stream, stream.outgoing)

    def _make_ready(self, stream: Flow, outgoing: Outgoing) -> None:
        if not outgoing.is_ready and stream.send_window > 0:
            outgoing.is_ready = True
            self._ready.append(stream)
            self.schedule()

    def _send_turn(self) -> None:
        """Send one frame per ready stream, round-robin, until the window or TURN_BYTES_MAX is used up."""
        left_bytes = TURN_BYTES_MAX
        ready = self._ready
        while ready and left_bytes > 0 and self._window > 0:
            stream = ready.popleft()
            outgoing = stream.outgoing
            if outgoing is None:
                continue
            left_bytes -= self._send_frame(stream, outgoing)
            outgoing.is_ready = False
            if outgoing.pieces:
                self._make_ready(stream, outgoing)
            else:
                self._emptied(stream, outgoing)
        if ready and self._window > 0:
            self.schedule()

    def _emptied(self, stream: Flow, outgoing: Outgoing) -> None:
        """All queued messages of a stream are sent."""

    def _send_frame(self, stream: Flow, outgoing: Outgoing) -> int:
        piece = outgoing.pieces[0]
        size = min(
            len(piece) - outgoing.offset,
            self._window,
            stream.send_window,
            self.frame_bytes_max,
            FRAME_SENT_BYTES_MAX,
        )
        end = outgoing.offset + size
        is_end = end == len(piece) and outgoing.ends_with_data and len(outgoing.pieces) == 1
        flags = END_STREAM if is_end else 0
        self._out.append(FRAME_HEADER.pack(size >> 8, size & 0xFF, DATA, flags, stream.id))
        self._out.append(piece[outgoing.offset : end])
        self._window -= size
        stream.send_window -= size
        outgoing.waiting_bytes -= size
        self.waiting_bytes -= size
        self._account.free(size)
        if end == len(piece):
            outgoing.pieces.popleft()
            outgoing.offset = 0
        else:
            outgoing.offset = end
        room = outgoing.room
        if room is not None and not room.done() and outgoing.waiting_bytes <= STREAM_WAITING_BYTES_MAX:
            room.set_result(None)
        return size
