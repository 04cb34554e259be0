"""Requests of the client, within the server's windows."""

import asyncio
from collections.abc import Callable

from fairlead.rpc.client.call import ClientCall
from fairlead.rpc.frames import DATA, END_HEADERS, END_STREAM, FRAME_BYTES_MAX, FRAME_HEADER, HEADERS
from fairlead.rpc.message import MESSAGE_FRONT, PREFIX_BYTES
from fairlead.rpc.outbox import Outbox


class ClientOutbox(Outbox):
    """Sends requests: headers and one message, which ends the stream."""

    __slots__ = ("_on_room",)

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, *, on_room: Callable[[], None]
    ) -> None:
        super().__init__(loop, transport)
        self._on_room = on_room

    @property
    def is_paused(self) -> bool:
        """Whether the transport is full."""
        return self._is_paused

    def request(self, call: ClientCall, block: bytes) -> None:
        """Send a call's headers and its message, or as much of it as fits."""
        message = call.request
        size = len(message) + PREFIX_BYTES
        call.sent_in = self.writes
        if (
            size > self._window
            or size > call.send_window
            or size > FRAME_BYTES_MAX
            or len(block) > FRAME_BYTES_MAX
            or self._ready
        ):
            self.headers(call.id, block)
            self.queue(call, message).ends_with_data = True
            return
        self._window -= size
        length = len(block)
        self._out += (
            FRAME_HEADER.pack(length >> 8, length & 0xFF, HEADERS, END_HEADERS, call.id),
            block,
            MESSAGE_FRONT.pack(size >> 8, size & 0xFF, DATA, END_STREAM, call.id, 0, len(message)),
            message,
        )
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.flush)

    def resume(self) -> None:
        """The transport has room again."""
        super().resume()
        self._on_room()
