"""HTTP/2 frames (RFC 9113, section 6): their numbers and their bytes."""

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct

from fairlead.core.errors import FixRequest

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

SETTING_ENABLE_PUSH = 0x2
SETTING_STREAMS_MAX = 0x3
SETTING_INITIAL_WINDOW = 0x4
SETTING_FRAME_BYTES_MAX = 0x5
SETTING_HEADER_LIST_BYTES_MAX = 0x6

FRAME_HEADER_BYTES = 9
# Bytes of a received frame's payload: the protocol's minimum, so no setting is sent. A larger bound only buffers more.
FRAME_BYTES_MAX = 16_384
FRAME_BYTES_SETTING_MAX = 2**24 - 1
STREAM_ID_MAX = 2**31 - 1
WINDOW_MAX = 2**31 - 1
# Bytes of a flow-control window before any setting changes it.
WINDOW_DEFAULT = 65_535

# Length (24 bits, as its upper 16 and lower 8), kind, flags, and stream id with one reserved bit.
FRAME_HEADER = Struct(">HBBBI")
SETTING = Struct(">HI")
UINT32 = Struct(">I")


class ErrorCode(IntEnum):
    """Reasons to end a stream or a connection (RFC 9113, section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


def error_name(code: int) -> str:
    """Name of a code that a peer sent, or its number."""
    return _ERROR_NAMES.get(code) or f"error {code}"


_ERROR_NAMES = {code.value: code.name for code in ErrorCode}


class ConnectionFault(FixRequest):
    """The peer broke the protocol in a way that ends the connection."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class StreamFault(FixRequest):
    """The peer broke the protocol in a way that ends one stream."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Encode one frame."""
    length = len(payload)
    return FRAME_HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def header_frames(stream_id: int, block: bytes, *, flags: int, frame_bytes_max: int) -> bytes:
    """Encode a header block as one frame, or as several if the peer's frame size requires it."""
    if len(block) <= frame_bytes_max:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [block[start : start + frame_bytes_max] for start in range(0, len(block), frame_bytes_max)]
    frames = [frame(HEADERS, flags, stream_id, parts[0])]
    frames += [frame(CONTINUATION, 0, stream_id, part) for part in parts[1:-1]]
    frames.append(frame(CONTINUATION, END_HEADERS, stream_id, parts[-1]))
    return b"".join(frames)


def window_update(stream_id: int, increment: int) -> bytes:
    """Frame that lets the peer send `increment` more bytes on a stream, or on the connection if `stream_id` is 0."""
    return frame(WINDOW_UPDATE, 0, stream_id, UINT32.pack(increment))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """Frame that ends a stream."""
    return frame(RST_STREAM, 0, stream_id, UINT32.pack(code))


def goaway(stream_id_last: int, code: ErrorCode, reason: str = "") -> bytes:
    """Frame that ends a connection; streams above `stream_id_last` were not processed and never will be."""
    return frame(GOAWAY, 0, 0, UINT32.pack(stream_id_last) + UINT32.pack(code) + reason.encode()[:256])


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """Frame with our settings."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(name, value) for name, value in values))


def without_padding(flags: int, payload: bytes) -> bytes:
    """Content of a DATA or HEADERS frame, without its padding."""
    if not flags & PADDED:
        return payload
    padding = payload[0] if payload else 0
    if padding >= len(payload):
        raise ConnectionFault(
            ErrorCode.PROTOCOL_ERROR, f"{padding} bytes of padding in a frame of {len(payload)} bytes"
        )
    return payload[1 : len(payload) - padding]
