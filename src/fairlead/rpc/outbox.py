"""What goes to one peer: as much as its windows allow, in one write a turn of the loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from struct import Struct

from fairlead.rpc.answers import HEADERS_BLOCK, OK_TRAILERS_BLOCK
from fairlead.rpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    HEADERS,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ConnectionFault,
    ErrorCode,
    StreamFault,
    header_frames,
)
from fairlead.rpc.message import PREFIX_BYTES, framed
from fairlead.rpc.stream import Outgoing, Stream

# A larger frame would keep the other streams of the connection waiting, whatever the peer would take.
FRAME_SENT_BYTES_MAX = 64 * 1024
# What one connection sends of large answers before the loop turns to the others.
TURN_BYTES_MAX = 256 * 1024
# A handler that sends many messages waits while more than this waits for its peer.
STREAM_WAITING_BYTES_MAX = 64 * 1024
# Answers to pings, resets and the like, for a peer that asks for them and does not read them.
HELD_BYTES_MAX = 1024 * 1024

# The whole answer of a unary call but its message: the headers, and the start of the data ...
_FRONT = Struct(f">HBBBI{len(HEADERS_BLOCK)}sHBBBIBI")
# ... and the trailers.
_BACK = Struct(f">HBBBI{len(OK_TRAILERS_BLOCK)}s")


class Outbox:
    """Sends frames, and answers within the peer's windows; what does not fit in them waits here, and is counted."""

    __slots__ = (
        "_is_closed",
        "_is_paused",
        "_is_scheduled",
        "_loop",
        "_on_sent",
        "_out",
        "_ready",
        "_transport",
        "_window",
        "frame_bytes_max",
        "header_list_bytes_max",
        "held_bytes",
        "stream_window",
        "waiting_bytes",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, *, on_sent: Callable[[Stream], None]
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._on_sent = on_sent
        self._out: list[bytes] = []
        self._is_scheduled = False
        self._is_paused = False
        self._is_closed = False
        self._window = WINDOW_DEFAULT
        # Streams that have something to send and a window of their own to send it in, in turn.
        self._ready: deque[Stream] = deque()
        self.stream_window = WINDOW_DEFAULT
        self.frame_bytes_max = FRAME_BYTES_MAX
        self.header_list_bytes_max = WINDOW_MAX
        self.waiting_bytes = 0
        self.held_bytes = 0

    def write(self, data: bytes) -> None:
        """Send frames with this turn's others."""
        if self._is_closed:
            return
        self._out.append(data)
        if self._is_paused:
            self.held_bytes += len(data)
            if self.held_bytes > HELD_BYTES_MAX:
                self._transport.abort()
        self.schedule()

    def schedule(self) -> None:
        """Send what there is at the end of this turn. Whoever is to run before that must be scheduled before this."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what there is now, unless the transport is full."""
        self._is_scheduled = False
        if self._is_paused or self._is_closed:
            return
        if self._ready:
            self._send_turn()
        if self._out:
            out, self._out = self._out, []
            self._transport.write(b"".join(out))

    def close(self) -> None:
        """Send what there is, whether the transport is full or not, and nothing from then on."""
        if not self._is_closed:
            self._is_closed = True
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def pause(self) -> None:
        """The transport is full."""
        self._is_paused = True

    def resume(self) -> None:
        """The transport has room again."""
        self._is_paused = False
        self.held_bytes = 0
        self.schedule()

    def answer(self, stream: Stream, message: bytes) -> bool:
        """Send a unary answer; False: some of it has to wait, and `on_sent` tells when it has gone."""
        size = len(message) + PREFIX_BYTES
        if (
            size > self._window
            or size > stream.send_window
            or size > FRAME_BYTES_MAX
            or stream.trailers is not None
            or self._is_paused
            or self._ready
        ):
            return False
        self._window -= size
        stream_id = stream.id
        self._out += (
            _FRONT.pack(
                0,
                len(HEADERS_BLOCK),
                HEADERS,
                END_HEADERS,
                stream_id,
                HEADERS_BLOCK,
                size >> 8,
                size & 0xFF,
                DATA,
                0,
                stream_id,
                0,
                len(message),
            ),
            message,
            _BACK.pack(0, len(OK_TRAILERS_BLOCK), HEADERS, END_HEADERS | END_STREAM, stream_id, OK_TRAILERS_BLOCK),
        )
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.flush)
        return True

    def send(self, stream: Stream, message: bytes) -> None:
        """Send one message of an answer, or as much of it as fits; the rest waits."""
        outgoing = stream.outgoing
        if outgoing is None:
            outgoing = stream.outgoing = Outgoing()
            self.headers(stream.id, HEADERS_BLOCK)
        piece = framed(message)
        outgoing.pieces.append(piece)
        outgoing.waiting_bytes += len(piece)
        self.waiting_bytes += len(piece)
        self._make_ready(stream, outgoing)

    def end(self, stream: Stream, block: bytes) -> None:
        """Send the trailers when all that was sent on the stream has gone; `on_sent` follows."""
        if stream.outgoing is None:
            stream.outgoing = Outgoing()
            self.headers(stream.id, HEADERS_BLOCK)
        stream.outgoing.end_block = block
        if not stream.outgoing.pieces:
            self._send_end(stream, block)

    def headers(self, stream_id: int, block: bytes, *, flags: int = 0) -> None:
        """Send a header block, at once: windows are for data only."""
        self.write(header_frames(stream_id, block, flags=flags, frame_bytes_max=self.frame_bytes_max))

    def room(self, stream: Stream) -> asyncio.Future[None] | None:
        """What the sender of many messages must wait for before the next; None: there is room."""
        outgoing = stream.outgoing
        if outgoing is None or outgoing.waiting_bytes <= STREAM_WAITING_BYTES_MAX:
            return None
        outgoing.room = self._loop.create_future()
        return outgoing.room

    def forget(self, stream: Stream) -> None:
        """The rest of the stream's answer is not to be sent."""
        if stream.outgoing is not None:
            self.waiting_bytes -= stream.outgoing.waiting_bytes
            stream.outgoing = None

    def widen(self, increment: int) -> None:
        """The peer takes so much more on the connection."""
        if self._window + increment > WINDOW_MAX:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window grew beyond 31 bits")
        self._window += increment
        if self._ready:
            self.schedule()

    def widen_stream(self, stream: Stream, increment: int) -> None:
        """The peer takes so much more on a stream."""
        if stream.send_window + increment > WINDOW_MAX:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window grew beyond 31 bits")
        stream.send_window += increment
        if stream.outgoing is not None and stream.outgoing.pieces:
            self._make_ready(stream, stream.outgoing)

    def _make_ready(self, stream: Stream, outgoing: Outgoing) -> None:
        if not outgoing.is_ready and stream.send_window > 0:
            outgoing.is_ready = True
            self._ready.append(stream)
            self.schedule()

    def _send_turn(self) -> None:
        """Let the streams that may send do so in turn, a frame each, until the window or this turn is used up."""
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
            elif outgoing.end_block is not None:
                self._send_end(stream, outgoing.end_block)
        if ready and self._window > 0:
            self.schedule()

    def _send_end(self, stream: Stream, block: bytes) -> None:
        stream.outgoing = None
        self.headers(stream.id, block, flags=END_STREAM)
        self._on_sent(stream)

    def _send_frame(self, stream: Stream, outgoing: Outgoing) -> int:
        piece = outgoing.pieces[0]
        size = min(
            len(piece) - outgoing.offset,
            self._window,
            stream.send_window,
            self.frame_bytes_max,
            FRAME_SENT_BYTES_MAX,
        )
        end = outgoing.offset + size
        self._out.append(FRAME_HEADER.pack(size >> 8, size & 0xFF, DATA, 0, stream.id))
        self._out.append(piece[outgoing.offset : end])
        self._window -= size
        stream.send_window -= size
        outgoing.waiting_bytes -= size
        self.waiting_bytes -= size
        if end == len(piece):
            outgoing.pieces.popleft()
            outgoing.offset = 0
        else:
            outgoing.offset = end
        room = outgoing.room
        if room is not None and not room.done() and outgoing.waiting_bytes <= STREAM_WAITING_BYTES_MAX:
            room.set_result(None)
        return size
