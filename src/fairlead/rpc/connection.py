"""One connection: frames in and out, and its life from the preface to the last word."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, cast

from fairlead.rpc.budget import Budget
from fairlead.rpc.calls import HEADER_LIST_FACTOR_MAX, Calls
from fairlead.rpc.frames import (
    ACK,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    FRAME_BYTES_SETTING_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    PING,
    PREFACE,
    SETTING,
    SETTING_ENABLE_PUSH,
    SETTING_FRAME_BYTES_MAX,
    SETTING_HEADER_LIST_BYTES_MAX,
    SETTING_INITIAL_WINDOW,
    SETTING_STREAMS_MAX,
    SETTINGS,
    STREAM_ID_MAX,
    UINT32,
    WINDOW_MAX,
    WITH_PRIORITY,
    ConnectionFault,
    ErrorCode,
    StreamFault,
    frame,
    goaway,
    settings,
    without_padding,
)
from fairlead.rpc.host import Host
from fairlead.rpc.intake import STREAM_WINDOW_BYTES, Intake
from fairlead.rpc.outbox import Outbox
from fairlead.rpc.stream import Stream

# What both sides of an encrypted connection must have agreed on.
ALPN_PROTOCOL = "h2"
# A header block in more frames than this is an attack: even 64 KiB of it need only four.
CONTINUATIONS_MAX = 16
# The transport tells that it is full at this many bytes.
TRANSPORT_BYTES_MAX = 256 * 1024
# The peer has so long to close its side before we close ours; and so long to read our last words before they are cut.
LINGER_S = 1.0
CUT_S = 10.0
# The peer has so long to learn that we drain, before calls that it has sent meanwhile are left to it.
DRAIN_NOTICE_S = 1.0
# Frames of calls make up for control frames: some clients measure the network by a ping for every answer.
CONTROL_FRAMES_EARNED = 4

_DRAIN_PING = b"draining"
_KEEPALIVE_PING = b"keepaliv"


class Connection(asyncio.Protocol):
    """Reads a peer's frames. A fault of the peer ends the stream or the connection, never more."""

    def __init__(self, host: Host) -> None:
        limits = host.limits
        self._host = host
        self._clock = host.clock
        self._rest = b""
        self._is_preface_read = False
        self._is_settled = False
        self._is_ending = False
        # Set from GOAWAY on: when new streams are no longer taken.
        self._drained_s: float | None = None
        self._is_final = False
        # A header block that goes on in the next frame: its stream, its flags and its parts.
        self._block_stream_id = 0
        self._block_flags = 0
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._begun_s = self._heard_s = host.clock()
        self._pinged_s: float | None = None
        self._resets = Budget(burst_max=limits.resets_burst_max, per_s_max=limits.resets_per_s_max)
        self._control = Budget(burst_max=limits.control_frames_burst_max, per_s_max=limits.control_frames_per_s_max)

    # From the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what we ask for; the peer does the same, without waiting."""
        self._transport = cast("asyncio.Transport", transport)
        limits = self._host.limits
        self._outbox = Outbox(self._host.loop, self._transport, on_sent=self._sent)
        self._intake = Intake(self._outbox, receive_bytes_max=limits.receive_bytes_max)
        self._calls = Calls(
            self._host, self._outbox, self._intake, peer=_peer(self._transport), on_idle=self._end_when_idle
        )
        encryption = transport.get_extra_info("ssl_object")
        is_other = encryption is not None and encryption.selected_alpn_protocol() != ALPN_PROTOCOL
        if is_other or self._host.is_draining or len(self._host.connections) >= limits.connections_max:
            self._is_ending = True
            self._transport.abort()
            return
        self._host.connections.add(self)
        self._transport.set_write_buffer_limits(high=TRANSPORT_BYTES_MAX)
        self._outbox.write(
            settings(
                (
                    (SETTING_STREAMS_MAX, limits.streams_max),
                    (SETTING_INITIAL_WINDOW, STREAM_WINDOW_BYTES),
                    (SETTING_HEADER_LIST_BYTES_MAX, limits.header_list_bytes_max),
                )
            )
        )
        self._intake.open()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason changes nothing
        """Give up all calls of the peer."""
        self._is_ending = True
        self._host.connections.discard(self)
        self._outbox.close()
        self._calls.lose()

    def pause_writing(self) -> None:
        """The transport is full."""
        self._outbox.pause()

    def resume_writing(self) -> None:
        """The transport has room again."""
        self._outbox.resume()

    def eof_received(self) -> bool:
        """A peer that sends no more has no use for our answers either: gRPC's clients close a connection as a whole."""
        return False

    def data_received(self, data: bytes) -> None:
        """Act on every frame that is here as a whole."""
        if self._is_ending:
            return
        self._heard_s = self._clock()
        self._pinged_s = None
        if self._rest:
            data = self._rest + data
        try:
            self._rest = self._consumed(data)
        except ConnectionFault as fault:
            self._fail(fault)
        except Exception:
            # One peer's frames must not take the server down, whatever they are.
            self._host.log.exception("rpc connection failed")
            self._fail(ConnectionFault(ErrorCode.INTERNAL_ERROR, "the server failed at this frame"))

    # From the server.

    @property
    def streams(self) -> int:
        """How many calls are open."""
        return len(self._calls.streams)

    def drain(self) -> None:
        """Ask the peer to open no more streams here; those that it has opened by the time it hears so are served."""
        if self._drained_s is None and not self._is_ending:
            self._drained_s = self._clock()
            self._outbox.write(goaway(STREAM_ID_MAX, ErrorCode.NO_ERROR, "draining"))
            self._outbox.write(frame(PING, 0, 0, _DRAIN_PING))

    def close(self) -> None:
        """Say the last words and close, whether or not the peer has read them."""
        if not self._is_ending:
            self._is_final = self._is_ending = True
            self._outbox.write(goaway(self._calls.last_id, ErrorCode.NO_ERROR, "stopped"))
            self._outbox.close()
        self._transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def check(self, now_s: float) -> None:
        """See after a peer that is late or silent."""
        limits = self._host.limits
        if self._is_ending:
            return
        if self._drained_s is not None and now_s - self._drained_s > DRAIN_NOTICE_S:
            self._finalize()
        if (not self._is_settled or self._block) and now_s - self._begun_s > limits.preface_s_max:
            self._fail(ConnectionFault(ErrorCode.SETTINGS_TIMEOUT, f"nothing whole within {limits.preface_s_max} s"))
        elif self._pinged_s is not None:
            if now_s - self._pinged_s > limits.keepalive_timeout_s:
                self._transport.abort()
        elif now_s - self._heard_s > limits.keepalive_s:
            self._pinged_s = now_s
            self._outbox.write(frame(PING, 0, 0, _KEEPALIVE_PING))

    # Frames.

    def _consumed(self, data: bytes) -> bytes:
        """Act on whole frames; returns the rest, which is shorter than one."""
        position, end = 0, len(data)
        if not self._is_preface_read:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2 with prior knowledge")
            if end < len(PREFACE):
                return data
            self._is_preface_read = True
            position = len(PREFACE)
        unpack = FRAME_HEADER.unpack_from
        while end - position >= FRAME_HEADER_BYTES:
            length, low, kind, flags, stream_id = unpack(data, position)
            length = length << 8 | low
            if length > FRAME_BYTES_MAX:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes, at most {FRAME_BYTES_MAX}"
                )
            start = position + FRAME_HEADER_BYTES
            position_next = start + length
            if position_next > end:
                break
            position = position_next
            # The first bit is reserved: it says nothing.
            self._frame(kind, flags, stream_id & STREAM_ID_MAX, data[start:position])
            if self._is_ending:
                return b""
        return data[position:]

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block and (kind != CONTINUATION or stream_id != self._block_stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted by another frame")
        if not self._is_settled and kind != SETTINGS:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        try:
            if kind < len(self._ON_FRAME):
                self._ON_FRAME[kind](self, flags, stream_id, payload)
            else:
                # Kinds that we do not know are to be ignored.
                self._count_control()
        except StreamFault as fault:
            self._count_control()
            self._calls.fault(stream_id, fault.code)

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "data on stream 0")
        is_last = bool(flags & END_STREAM)
        data = without_padding(flags, payload)
        if not data and not is_last:
            self._count_control()
        self._calls.data(stream_id, data, padding=len(payload) - len(data), is_last=is_last)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = without_padding(flags, payload)
        if flags & WITH_PRIORITY:
            if len(block) < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "headers too short for their priority")
            self._check_dependency(stream_id, block)
            block = block[5:]
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "headers on stream 0")
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
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a continuation of no headers")
        self._block.append(payload)
        self._block_bytes += len(payload)
        bytes_max = self._host.limits.header_list_bytes_max * HEADER_LIST_FACTOR_MAX
        if len(self._block) > CONTINUATIONS_MAX or self._block_bytes > bytes_max:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"a header block of {self._block_bytes} bytes in {len(self._block)} frames:"
                f" at most {bytes_max} in {CONTINUATIONS_MAX}",
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
        self._calls.reset(stream_id)
        if not self._resets.spend(self._clock()):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many calls are given up")

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._count_control()
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"settings on stream {stream_id}")
        if len(payload) % SETTING.size or (flags & ACK and payload):
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"settings of {len(payload)} bytes")
        if flags & ACK:
            if not self._is_settled:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is an acknowledgement")
            return
        self._is_settled = True
        for name, value in SETTING.iter_unpack(payload):
            self._set(name, value)
        self._outbox.write(frame(SETTINGS, ACK, 0))

    def _set(self, name: int, value: int) -> None:
        if name == SETTING_INITIAL_WINDOW:
            if value > WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"an initial window of {value} bytes")
            increment = value - self._outbox.stream_window
            self._outbox.stream_window = value
            self._calls.change_windows(increment)
        elif name == SETTING_FRAME_BYTES_MAX:
            if not FRAME_BYTES_MAX <= value <= FRAME_BYTES_SETTING_MAX:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a frame size of {value} bytes")
            self._outbox.frame_bytes_max = value
        elif name == SETTING_HEADER_LIST_BYTES_MAX:
            self._outbox.header_list_bytes_max = value
        elif name == SETTING_ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002 - none is read
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client can't push")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._count_control()
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"ping on stream {stream_id}")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"ping of {len(payload)} bytes")
        if not flags & ACK:
            self._outbox.write(frame(PING, ACK, 0, payload))
        elif payload == _DRAIN_PING and self._drained_s is not None:
            self._finalize()

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002 - has none
        self._count_control()
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"GOAWAY on stream {stream_id}")
        if len(payload) < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
        # It is about streams that we would open, of which there are none; the peer closes when it has its answers.

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002 - has none
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {len(payload)} bytes")
        increment = UINT32.unpack(payload)[0] & WINDOW_MAX
        if not stream_id:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            self._outbox.widen(increment)
            return
        stream = self._calls.streams.get(stream_id)
        if stream is None:
            self._calls.check_not_idle(stream_id)
        elif not increment:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        else:
            self._outbox.widen_stream(stream, increment)

    # By kind of frame.
    _ON_FRAME: ClassVar[tuple[Callable[["Connection", int, int, bytes], None], ...]] = (
        _on_data,
        _on_headers,
        _on_priority,
        _on_rst_stream,
        _on_settings,
        _on_push_promise,
        _on_ping,
        _on_goaway,
        _on_window_update,
        _on_continuation,
    )

    def _check_dependency(self, stream_id: int, payload: bytes) -> None:
        if UINT32.unpack_from(payload)[0] & STREAM_ID_MAX == stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} depends on itself")

    def _count_control(self) -> None:
        if not self._control.spend(self._clock()):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that are of no call")

    # The end.

    def _sent(self, stream: Stream) -> None:
        self._calls.sent(stream)

    def _finalize(self) -> None:
        if not self._is_final:
            self._is_final = True
            self._outbox.write(goaway(self._calls.last_id, ErrorCode.NO_ERROR, "draining"))
            self._calls.finalize()

    def _end_when_idle(self) -> None:
        if not self._is_ending:
            self._end()

    def _fail(self, fault: ConnectionFault) -> None:
        if self._is_ending:
            return
        self._host.log.info("rpc peer broke the protocol", code=fault.code.name, reason=str(fault))
        self._is_ending = True
        self._outbox.write(goaway(self._calls.last_id, fault.code, str(fault)))
        self._end()
        self._calls.lose()

    def _end(self) -> None:
        """Say the last words, and leave the peer a moment to read them: closing upon unread data would lose them."""
        self._is_ending = True
        self._rest = b""
        self._outbox.close()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            # A peer that has gone by itself needs not be told.
            with suppress(OSError):
                self._transport.write_eof()
        self._host.loop.call_later(LINGER_S, self._transport.close)
        self._host.loop.call_later(CUT_S, self._transport.abort)


def _peer(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "")
