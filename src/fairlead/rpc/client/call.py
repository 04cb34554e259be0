"""One call, as the client's connection sees it."""

import asyncio
from typing import Protocol

from fairlead.rpc.client.failures import CallFailed
from fairlead.rpc.head import IDENTITY
from fairlead.rpc.message import Packed
from fairlead.rpc.stream import Incoming, Messages, Outgoing


class CallOwner(Protocol):
    """The calls of a connection, as their deadlines see them."""

    def expire(self, call: "ClientCall") -> None:
        """End a call whose deadline has passed."""
        ...


class ClientCall:
    """The state of one call, from its request to the end of its response."""

    __slots__ = (
        "deadline_s",
        "encoding",
        "future",
        "has_headers",
        "head",
        "id",
        "incoming",
        "is_done",
        "is_half_closed",
        "message",
        "messages",
        "outgoing",
        "owner",
        "path",
        "receive_window",
        "request",
        "send_window",
        "sent_in",
        "tick",
    )

    def __init__(
        self,
        path: str,
        head: bytes,
        request: bytes,
        *,
        deadline_s: float | None,
        future: "asyncio.Future[bytes | Packed] | None" = None,
        messages: Messages | None = None,
    ) -> None:
        """`future` gets the response of a unary call; `messages` gets those of a call with a streamed response."""
        self.path = path
        self.head = head
        self.request = request
        self.deadline_s = deadline_s
        self.future = future
        self.messages = messages
        # The connection's calls; None until this call is one of them.
        self.owner: CallOwner | None = None
        # Zero until the call has a stream.
        self.id = 0
        # The deadline's tick; None without a deadline.
        self.tick: int | None = None
        # The outbox's number of the write with this call's headers.
        self.sent_in = 0
        self.send_window = 0
        self.receive_window = 0
        self.incoming: Incoming | None = None
        self.outgoing: Outgoing | None = None
        # True once the server has ended its side of the stream.
        self.is_half_closed = False
        self.has_headers = False
        self.encoding = IDENTITY
        # The response of a unary call, until its status is known.
        self.message: bytes | Packed | None = None
        self.is_done = False

    def succeed(self) -> None:
        """End a call with its response."""
        self.is_done = True
        if self.messages is not None:
            self.messages.end()
        elif self.future is not None and not self.future.done():
            self.future.set_result(self.message or b"")

    def fail(self, failure: CallFailed) -> None:
        """End a call with a failure."""
        self.is_done = True
        if self.messages is not None:
            self.messages.end(failure)
        elif self.future is not None and not self.future.done():
            self.future.set_exception(failure)


def expire(call: ClientCall) -> None:
    """End a call whose deadline has passed."""
    if call.owner is not None:
        call.owner.expire(call)
