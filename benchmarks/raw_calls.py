"""Unary gRPC calls at a small cost, for load that must not be busier than the server: frames without a library.

It does only what a measured server needs: no deadlines, no flow control of requests (they are small), and no statuses.
A response without a message is an error.
"""

import asyncio
from struct import Struct
from typing import cast

from hpack import Encoder, NeverIndexedHeaderTuple

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEADER = Struct(">HBBBI")
_FRAME_HEADER_BYTES = 9
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
_ACK = _END_STREAM = 0x1
_END_HEADERS = 0x4
_INITIAL_WINDOW_SETTING = 0x4
_WINDOW_MAX = 2**31 - 1
_WINDOW_DEFAULT = 65_535
# Bytes received on a connection after which its window is opened again.
_WINDOW_RENEWED_BYTES = 2**29
# Bytes of a call's message before its length: the flag for compression, and four bytes of length.
_PREFIX_BYTES = 5


class CallFailed(Exception):
    """A call got an error in place of a response."""


def _frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return _FRAME_HEADER.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream_id) + payload


class RawConnection(asyncio.Protocol):
    """One HTTP/2 connection; the calls of one turn of the event loop leave in one write."""

    def __init__(self, authority: str) -> None:
        self._authority = authority
        self._heads: dict[str, bytes] = {}
        self._stream_id = -1
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._answers: dict[int, bytes] = {}
        self._rest = b""
        self._out: list[bytes] = []
        self._received_bytes = 0
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the windows for responses to their maximum."""
        self._transport = cast("asyncio.Transport", transport)
        setting = Struct(">HI").pack(_INITIAL_WINDOW_SETTING, _WINDOW_MAX)
        self._out += (_PREFACE, _frame(_SETTINGS, 0, 0, setting), self._window(_WINDOW_MAX - _WINDOW_DEFAULT))
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the open calls."""
        for call in self._calls.values():
            if not call.done():
                call.set_exception(CallFailed(f"the connection was lost: {exc}"))
        self._calls.clear()

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def call(self, path: str, message: bytes) -> "asyncio.Future[bytes]":
        """Call a method with an encoded request; the result is the encoded response."""
        self._stream_id += 2
        call = self._calls[self._stream_id] = self._loop.create_future()
        prefix = b"\x00" + len(message).to_bytes(4, "big")
        head = self._heads.get(path) or self._heads.setdefault(path, self._head(path))
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += (
            _frame(_HEADERS, _END_HEADERS, self._stream_id, head),
            _frame(_DATA, _END_STREAM, self._stream_id, prefix + message),
        )
        return call

    def data_received(self, data: bytes) -> None:
        """Handle every complete frame."""
        data = self._rest + data
        position, end = 0, len(data)
        while end - position >= _FRAME_HEADER_BYTES:
            high, low, kind, flags, stream_id = _FRAME_HEADER.unpack_from(data, position)
            start = position + _FRAME_HEADER_BYTES
            if start + (high << 8 | low) > end:
                break
            position = start + (high << 8 | low)
            self._received(kind, flags, stream_id, data[start:position])
        self._rest = data[position:]

    def _received(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == _DATA:
            self._answers[stream_id] = self._answers.get(stream_id, b"") + payload
            self._received_bytes += len(payload)
            if self._received_bytes > _WINDOW_RENEWED_BYTES:
                self._send(self._window(self._received_bytes))
                self._received_bytes = 0
        elif kind == _SETTINGS and not flags & _ACK:
            self._send(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._send(_frame(_PING, _ACK, 0, payload))
        if kind == _RST_STREAM or (kind in {_DATA, _HEADERS} and flags & _END_STREAM):
            call, answer = self._calls.pop(stream_id, None), self._answers.pop(stream_id, None)
            if call is None or call.done():
                return
            if answer is None:
                call.set_exception(CallFailed(f"stream {stream_id} ended without a response: {payload!r}"))
            else:
                call.set_result(answer[_PREFIX_BYTES:])

    def _head(self, path: str) -> bytes:
        fields = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        )
        # Don't use the table of headers: with it, the same bytes could mean different headers later. Don't resize it
        # either: a server may drop the heads that it has decoded when a block changes the table, and no real client
        # changes it at every call.
        return Encoder().encode([NeverIndexedHeaderTuple(*field) for field in fields], huffman=False)

    @staticmethod
    def _window(increment: int) -> bytes:
        return _frame(_WINDOW_UPDATE, 0, 0, increment.to_bytes(4, "big"))

    def _send(self, frame: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._transport.write(b"".join(out))


async def connect_raw(address: str) -> RawConnection:
    """Connect to a server at host:port."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: RawConnection(address), host, int(port))
    return connection
