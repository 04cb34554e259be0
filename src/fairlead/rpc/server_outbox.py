"""Responses of the server, within the client's windows."""

import asyncio
from collections.abc import Callable
from struct import Struct

from fairlead.rpc.frames import DATA, END_HEADERS, END_STREAM, FRAME_BYTES_MAX, HEADERS
from fairlead.rpc.header_blocks import HEADERS_BLOCK, OK_TRAILERS_BLOCK
from fairlead.rpc.memory import Account
from fairlead.rpc.message import PREFIX_BYTES
from fairlead.rpc.outbox import Outbox
from fairlead.rpc.stream import Flow, Outgoing, Stream

# Start of a unary response: the HEADERS frame, and the start of the DATA frame up to the message.
_FRONT = Struct(f">HBBBI{len(HEADERS_BLOCK)}sHBBBIBI")
# End of a unary response: the frame with the trailers.
_BACK = Struct(f">HBBBI{len(OK_TRAILERS_BLOCK)}s")


class ServerOutbox(Outbox):
    """Sends responses: headers, messages and trailers."""

    __slots__ = ("_on_sent",)

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        *,
        on_sent: Callable[[Stream], None],
        account: Account,
    ) -> None:
        super().__init__(loop, transport, account=account)
        self._on_sent = on_sent

    def answer(self, stream: Stream, message: bytes) -> bool:
        """Send a unary response if all of it fits now; otherwise send nothing and return False."""
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
        """Send one message of a response, or as much of it as fits; the rest waits."""
        if stream.outgoing is None:
            self.headers(stream.id, HEADERS_BLOCK)
        self.queue(stream, message)

    def end(self, stream: Stream, block: bytes) -> None:
        """Send the trailers after all queued messages of the stream, then call `on_sent`."""
        if stream.outgoing is None:
            stream.outgoing = Outgoing()
            self.headers(stream.id, HEADERS_BLOCK)
        stream.outgoing.end_block = block
        if not stream.outgoing.pieces:
            self._send_end(stream, block)

    def _emptied(self, stream: Flow, outgoing: Outgoing) -> None:
        if outgoing.end_block is not None:
            assert isinstance(stream, Stream)  # noqa: S101 - only responses end with trailers
            self._send_end(stream, outgoing.end_block)

    def _send_end(self, stream: Stream, block: bytes) -> None:
        stream.outgoing = None
        self.headers(stream.id, block, flags=END_STREAM)
        self._on_sent(stream)
