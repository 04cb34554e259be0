"""Reads the frames of one HTTP/2 connection: header blocks and data go to the calls."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

from structlog.typing import FilteringBoundLogger

from fairlead.rpc.budget import Budget
from fairlead.rpc.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    HEADERS,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_ID_MAX,
    UINT32,
    WITH_PRIORITY,
    ConnectionFault,
    ErrorCode,
    StreamFault,
    without_padding,
)
from fairlead.rpc.limits import ConnectionLimits
from fairlead.rpc.stream import Flow

# Headers above `header_list_bytes_max` fail the call; above this multiple of it, they end the connection.
HEADER_LIST_FACTOR_MAX = 4
# Frames of one header block; more are an attack: even 64 KiB need only four frames.
CONTINUATIONS_MAX = 16
# Control frames that each call adds to the peer's budget: some clients send a ping for every response.
CONTROL_FRAMES_EARNED = 4
# Frames of one connection in one iteration of the event loop, so that others get their turn. A call needs several
# iterations, and waits for the frames of all connections in each of them.
TURN_FRAMES_MAX = 32
# Frames of a whole request or response: its headers and its data.
WHOLE_FRAMES = 2
# Bytes of a header block that count as one more frame: decoding it takes about as long.
HEADER_BYTES_A_FRAME = 16
# Bytes below which a DATA frame counts as a control frame, unless it completes a message.
TINY_BYTES = 256


class Streams(Protocol):
    """The calls of one connection, as the frames' reader sees them."""

    @property
    def streams(self) -> Mapping[int, Flow]:
        """Open streams by id."""
        ...

    def take_whole(self, data: bytes, position: int, end: int) -> int:
        """Fast path: handle the frames of a whole request or response; return their end, or 0 to leave them alone."""
        ...

    def headers(self, stream_id: int, block: bytes, *, is_last: bool) -> None:
        """Handle a complete header block."""
        ...

    def data(self, stream_id: int, data: bytes, *, padding: int, is_last: bool) -> bool:
        """Handle a DATA frame; return whether it completed a message."""
        ...

    def reset(self, stream_id: int, code: int) -> bool:
        """Handle a reset by the peer; return whether it counts against the peer's limit of resets."""
        ...

    def fault(self, stream_id: int, fault: StreamFault) -> None:
        """Reset a stream on which the peer broke the protocol."""
        ...

    def check_not_idle(self, stream_id: int) -> None:
        """Raise for a frame on a stream that was never opened."""
        ...


class FrameReader(asyncio.Protocol):
    """Splits the received bytes into frames, and joins the frames of a header block.

    A peer whose frames come faster than they are handled is not read until its turn comes again.
    """

    # Handlers by kind of frame.
    _ON_FRAME: ClassVar[Mapping[int, Callable[..., None]]]
    _calls: Streams
    _loop: asyncio.AbstractEventLoop
    _transport: asyncio.Transport

    def __init__(
        self,
        limits: ConnectionLimits,
        *,
        clock: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._log = log
        # Bytes that are not handled yet, and the position of the first one.
        self._rest = b""
        self._rest_at = 0
        # Additional cost of the current frame, as a number of frames that take as long.
        self._work = 0
        # Whether complete frames are left at the end of the turn, and whether the next turn is scheduled.
        self._is_turn_over = False
        self._is_waiting = False
        self._is_settled = False
        self._is_ending = False
        # An unfinished header block, to be continued in the next frame: its stream, its flags and its parts.
        self._block_stream_id = 0
        self._block_flags = 0
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._begun_s = self._heard_s = clock()
        self._pinged_s: float | None = None
        self._resets = Budget(burst_max=limits.resets_burst_max, per_s_max=limits.resets_per_s_max)
        self._control = Budget(burst_max=limits.control_frames_burst_max, per_s_max=limits.control_frames_per_s_max)

    # Called by the transport.

    def eof_received(self) -> bool:
        """Close the connection: gRPC peers never half-close one, so the peer no longer reads either."""
        return False

    def data_received(self, data: bytes) -> None:
        """Handle the complete frames, or as many as one turn allows."""
        if self._is_ending:
            return
        self._heard_s = self._clock()
        self._pinged_s = None
        if self._rest:
            data = self._rest[self._rest_at :] + data
        if self._is_waiting:
            # With TLS, bytes may arrive after reading was paused.
            self._rest, self._rest_at = data, 0
            return
        try:
            position = self._consumed(data, self._begin(data))
        except Exception as failure:  # noqa: BLE001 - a bug met by one peer's frame must not take the process down
            self._fail_at_frame(failure)
        else:
            self._end_turn(data, position)

    def _fail_at_frame(self, failure: Exception) -> None:
        if isinstance(failure, ConnectionFault):
            self._fail(failure)
        else:
            self._log.error("rpc connection failed", exc_info=failure)
            self._fail(ConnectionFault(ErrorCode.INTERNAL_ERROR, "this side failed at a frame"))

    def _end_turn(self, data: bytes, position: int) -> None:
        """Keep the bytes that are left; if they have complete frames, read no more until these are handled."""
        if self._is_ending:
            return
        if not self._is_turn_over:
            self._rest, self._rest_at = data[position:], 0
            return
        self._rest, self._rest_at = data, position
        self._is_waiting = True
        if not self._transport.is_closing():
            self._transport.pause_reading()
        self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._take_turn()
        # Read on, even at the end: only reading notices that the peer has closed its side.
        if not self._is_waiting and not self._transport.is_closing():
            self._transport.resume_reading()

    def _take_turn(self) -> None:
        """Handle the frames that wait, or as many as one turn allows."""
        self._is_waiting = False
        if self._is_ending:
            return
        data, position = self._rest, self._rest_at
        try:
            position = self._consumed(data, position or self._begin(data))
        except Exception as failure:  # noqa: BLE001 - see above
            self._fail_at_frame(failure)
        else:
            self._end_turn(data, position)

    def _finish_turns(self) -> None:
        """Handle all bytes that are here: no more will come."""
        while self._is_waiting and not self._is_ending:
            self._take_turn()

    # Defined by the subclasses.

    def _begin(self, data: bytes) -> int:  # noqa: ARG002 - a server's frames begin at once
        """Return the position of the first frame; negative if the bytes before it are incomplete."""
        return 0

    @abstractmethod
    def _fail(self, fault: ConnectionFault) -> None:
        """End the connection: the peer broke the protocol."""

    # Frames.

    def _consumed(self, data: bytes, position: int) -> int:
        """Handle complete frames until the turn is over; return the position of the first byte that is left."""
        end = len(data)
        if position < 0:
            return 0
        unpack, take_whole = FRAME_HEADER.unpack_from, self._calls.take_whole
        calls = 0
        frames_left = TURN_FRAMES_MAX
        self._is_turn_over = False
        while end - position >= FRAME_HEADER_BYTES:
            if frames_left <= 0:
                self._is_turn_over = True
                break
            frames_left -= 1
            if self._is_settled and not self._block:
                whole = take_whole(data, position, end)
                if whole:
                    position = whole
                    calls += 1
                    frames_left -= WHOLE_FRAMES - 1
                    continue
            length, low, kind, flags, stream_id = unpack(data, position)
            length = length << 8 | low
            if length > FRAME_BYTES_MAX:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR, f"a frame has {length} bytes, more than {FRAME_BYTES_MAX}"
                )
            start = position + FRAME_HEADER_BYTES
            position_next = start + length
            if position_next > end:
                break
            position = position_next
            # The first bit is reserved and ignored.
            self._frame(kind, flags, stream_id & STREAM_ID_MAX, data[start:position])
            if self._is_ending:
                return position
            if self._work:
                frames_left -= self._work
                self._work = 0
        if calls:
            self._control.earn(calls * CONTROL_FRAMES_EARNED)
        return position

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block and (kind != CONTINUATION or stream_id != self._block_stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted by another frame")
        if not self._is_settled and kind != SETTINGS:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        try:
            handle = self._ON_FRAME.get(kind)
            if handle is not None:
                handle(self, flags, stream_id, payload)
            else:
                # HTTP/2 demands that unknown kinds of frames are ignored.
                self._count_control()
        except StreamFault as fault:
            self._count_control()
            self._calls.fault(stream_id, fault)

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "data on stream 0")
        is_last = bool(flags & END_STREAM)
        data = without_padding(flags, payload)
        is_whole = self._calls.data(stream_id, data, padding=len(payload) - len(data), is_last=is_last)
        if len(data) < TINY_BYTES and not is_whole and not is_last:
            self._count_control()

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = without_padding(flags, payload)
        if flags & WITH_PRIORITY:
            if len(block) < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "headers too short for their priority")
            self._check_dependency(stream_id, block)
            block = block[5:]
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "headers on stream 0")
        self._work += len(block) // HEADER_BYTES_A_FRAME
        if flags & END_HEADERS:
            self._control.earn(CONTROL_FRAMES_EARNED)
            self._calls.headers(stream_id, block, is_last=bool(flags & END_STREAM))
            return
        self._block_stream_id, self._block_flags = stream_id, flags
        self._block = [block]
        self._block_bytes = len(block)
        self._begun_s = self._clock()

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._block:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS before it")
        self._block.append(payload)
        self._block_bytes += len(payload)
        self._work += len(payload) // HEADER_BYTES_A_FRAME
        bytes_max = self._limits.header_list_bytes_max * HEADER_LIST_FACTOR_MAX
        if len(self._block) > CONTINUATIONS_MAX or self._block_bytes > bytes_max:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"a header block has {self._block_bytes} bytes in {len(self._block)} frames, more than"
                f" {bytes_max} bytes or {CONTINUATIONS_MAX} frames",
            )
        if flags & END_HEADERS:
            block, self._block = b"".join(self._block), []
            self._control.earn(CONTROL_FRAMES_EARNED)
            self._calls.headers(stream_id, block, is_last=bool(self._block_flags & END_STREAM))

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002 - has none
        self._count_control()
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "priority of stream 0")
        if len(payload) != 5:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"priority of {len(payload)} bytes")
        self._check_dependency(stream_id, payload)

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002 - has none
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"RST_STREAM of {len(payload)} bytes")
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM of stream 0")
        if self._calls.reset(stream_id, UINT32.unpack(payload)[0]) and not self._resets.spend(self._clock()):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many streams were reset")

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002 - none is read
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a push, which gRPC never needs")

    STREAM_FRAME_HANDLERS: ClassVar[Mapping[int, Callable[..., None]]] = {
        DATA: _on_data,
        HEADERS: _on_headers,
        PRIORITY: _on_priority,
        RST_STREAM: _on_rst_stream,
        PUSH_PROMISE: _on_push_promise,
        CONTINUATION: _on_continuation,
    }

    def _check_dependency(self, stream_id: int, payload: bytes) -> None:
        if UINT32.unpack_from(payload)[0] & STREAM_ID_MAX == stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} depends on itself")

    def _count_control(self, frames: int = 1) -> None:
        if not self._control.spend(self._clock(), frames):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many control frames")
