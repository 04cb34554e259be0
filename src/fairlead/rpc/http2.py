"""One HTTP/2 connection of either side: control frames, flow control and the end."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import ClassVar, cast

from structlog.typing import FilteringBoundLogger

from fairlead.rpc.frame_reader import FrameReader
from fairlead.rpc.frames import (
    ACK,
    FRAME_BYTES_MAX,
    FRAME_BYTES_SETTING_MAX,
    GOAWAY,
    PING,
    SETTING,
    SETTING_ENABLE_PUSH,
    SETTING_FRAME_BYTES_MAX,
    SETTING_HEADER_LIST_BYTES_MAX,
    SETTING_INITIAL_WINDOW,
    SETTINGS,
    STREAM_ID_MAX,
    UINT32,
    WINDOW_MAX,
    WINDOW_UPDATE,
    ConnectionFault,
    ErrorCode,
    StreamFault,
    frame,
    goaway,
)
from fairlead.rpc.intake import Intake
from fairlead.rpc.limits import ConnectionLimits
from fairlead.rpc.outbox import Outbox

# Protocol that both sides of a TLS connection must negotiate.
ALPN_PROTOCOL = "h2"
# Seconds that the peer has to close its side before we close ours, and to read our last frames before we abort.
LINGER_S = 1.0
CUT_S = 10.0

KEEPALIVE_PING = b"keepaliv"
# Settings in one frame; HTTP/2 defines seven.
SETTINGS_MAX = 64
# Number of open streams for which a changed window counts as one control frame, and the maximum count of one change.
STREAMS_A_CONTROL_FRAME = 16
CONTROL_FRAMES_MAX = 250


class Http2Connection(FrameReader):
    """A connection. A protocol error ends the stream or the connection, never the process.

    A subclass creates `_outbox`, `_intake` and `_calls` when the connection is made.
    """

    _transport: asyncio.Transport
    _outbox: Outbox
    _intake: Intake

    def __init__(
        self,
        limits: ConnectionLimits,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        super().__init__(limits, clock=clock, log=log)
        self._loop = loop

    # Called by the transport.

    def pause_writing(self) -> None:
        """The transport is full."""
        self._outbox.pause()

    def resume_writing(self) -> None:
        """The transport has room again."""
        self._outbox.resume()

    # Defined by the two sides.

    @abstractmethod
    def _lost(self, reason: str) -> None:
        """End all calls: the connection is lost."""

    @abstractmethod
    def _last_peer_id(self) -> int:
        """Return the id of the last stream that the peer opened."""

    def _set(self, name: int, value: int) -> None:
        """Apply one setting of the peer."""
        if name == SETTING_INITIAL_WINDOW:
            if value > WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"an initial window of {value} bytes")
            # `_on_settings` changes the windows of open streams, once per frame.
            self._outbox.stream_window = value
        elif name == SETTING_FRAME_BYTES_MAX:
            if not FRAME_BYTES_MAX <= value <= FRAME_BYTES_SETTING_MAX:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a frame size of {value} bytes")
            self._outbox.frame_bytes_max = value
        elif name == SETTING_HEADER_LIST_BYTES_MAX:
            self._outbox.header_list_bytes_max = value
        elif name == SETTING_ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")

    def _settled(self) -> None:
        """Called when the peer's first SETTINGS are applied."""

    def _ping_answered(self, payload: bytes) -> None:
        """Called when the peer acknowledges a ping."""

    def _going_away(self, last_id: int, code: int, reason: str) -> None:
        """Called when the peer sends GOAWAY."""

    # Control frames.

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._count_control()
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"settings on stream {stream_id}")
        if len(payload) % SETTING.size or (flags & ACK and payload):
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"settings of {len(payload)} bytes")
        if flags & ACK:
            if not self._is_settled:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame acknowledges settings")
            return
        if len(payload) > SETTINGS_MAX * SETTING.size:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"{len(payload) // SETTING.size} settings in one frame: at most {SETTINGS_MAX}",
            )
        is_first, self._is_settled = not self._is_settled, True
        window = self._outbox.stream_window
        for name, value in SETTING.iter_unpack(payload):
            self._set(name, value)
        if self._outbox.stream_window != window:
            self._change_windows(self._outbox.stream_window - window)
        self._outbox.write(frame(SETTINGS, ACK, 0))
        if is_first:
            self._settled()

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._count_control()
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"ping on stream {stream_id}")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"ping of {len(payload)} bytes")
        if flags & ACK:
            self._ping_answered(payload)
        else:
            self._outbox.write(frame(PING, ACK, 0, payload))

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002 - has none
        self._count_control()
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"GOAWAY on stream {stream_id}")
        if len(payload) < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
        last_id, code = UINT32.unpack_from(payload)[0] & STREAM_ID_MAX, UINT32.unpack_from(payload, 4)[0]
        self._going_away(last_id, code, payload[8:].decode(errors="replace"))

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:  # noqa: ARG002 - has none
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {len(payload)} bytes")
        increment = UINT32.unpack(payload)[0] & WINDOW_MAX
        if not stream_id:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE with increment 0")
            self._outbox.widen(increment)
            return
        stream = self._calls.streams.get(stream_id)
        if stream is None:
            self._calls.check_not_idle(stream_id)
        elif not increment:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE with increment 0")
        else:
            self._outbox.widen_stream(stream, increment)

    _ON_FRAME: ClassVar[Mapping[int, Callable[..., None]]] = {
        **FrameReader.STREAM_FRAME_HANDLERS,
        SETTINGS: _on_settings,
        PING: _on_ping,
        GOAWAY: _on_goaway,
        WINDOW_UPDATE: _on_window_update,
    }

    def _change_windows(self, increment: int) -> None:
        """Apply the peer's new initial window to open streams too, as HTTP/2 demands."""
        streams = tuple(self._calls.streams.values())
        price = min(len(streams) // STREAMS_A_CONTROL_FRAME, CONTROL_FRAMES_MAX)
        if price:
            self._count_control(price)
            self._work += price
        for stream in streams:
            try:
                self._outbox.widen_stream(stream, increment)
            except StreamFault as fault:
                raise ConnectionFault(fault.code, str(fault)) from None

    # The end.

    def _fail(self, fault: ConnectionFault) -> None:
        if self._is_ending:
            return
        self._log.info("rpc peer broke the protocol", code=fault.code.name, reason=str(fault))
        self._is_ending = True
        self._outbox.write(goaway(self._last_peer_id(), fault.code, str(fault)))
        self._end()
        self._lost(str(fault))

    def _end(self) -> None:
        """Flush our last frames and close after LINGER_S: closing while unread data is here would lose those frames."""
        self._is_ending = True
        self._rest = b""
        self._outbox.close()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            # The peer may have closed the connection already.
            with suppress(OSError):
                self._transport.write_eof()
        # The timers refer to the transport alone: otherwise a peer with many faulty connections would keep all of their
        # state in memory.
        self._loop.call_later(LINGER_S, close_once, self._transport)
        self._loop.call_later(CUT_S, self._transport.abort)


def close_once(transport: asyncio.Transport) -> None:
    """Close a transport. With TLS, a second close() of asyncio's transport would make a later abort() do nothing."""
    if not transport.is_closing():
        transport.close()


def negotiated_http2(transport: asyncio.BaseTransport) -> bool:
    """Whether the connection is in clear text, or its TLS handshake chose HTTP/2."""
    encryption = transport.get_extra_info("ssl_object")
    return encryption is None or encryption.selected_alpn_protocol() == ALPN_PROTOCOL


def as_transport(transport: asyncio.BaseTransport) -> asyncio.Transport:
    """Asyncio declares the base class; a TCP connection always has a transport that reads and writes."""
    return cast("asyncio.Transport", transport)
