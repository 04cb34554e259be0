"""The responses of one connection's calls: from the start of a handler to the end of its stream."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from itertools import islice
from typing import Any

from fairlead.rpc.call import ServerStream, Unary
from fairlead.rpc.frames import END_STREAM, FRAME_BYTES_MAX, ErrorCode, rst_stream
from fairlead.rpc.header_blocks import Trailers, ok_trailers_block, status_block
from fairlead.rpc.host import Host
from fairlead.rpc.intake import Intake
from fairlead.rpc.memory import Account
from fairlead.rpc.message import Packed
from fairlead.rpc.server_outbox import ServerOutbox
from fairlead.rpc.status import Code, RpcStatus
from fairlead.rpc.stream import Stream

# Calls of a lost connection that are cancelled in one iteration of the event loop, so that others get their turn.
CANCELLED_A_TURN_MAX = 128
# Statuses by which a handler refuses the caller, and which count against the budget of the connection.
CALLER_REFUSED = frozenset((Code.PERMISSION_DENIED, Code.UNAUTHENTICATED))


class Responses:
    """Runs the handlers of a connection's calls, and sends their responses.

    Every stream ends through `_close`. `on_idle` is called when no more streams may open and the last one has ended,
    `on_caller_refused` when a handler has refused its caller.
    """

    __slots__ = (
        "_account",
        "_host",
        "_intake",
        "_is_final",
        "_on_caller_refused",
        "_on_idle",
        "_outbox",
        "_peer",
        "_running",
        "_unfinished",
        "streams",
    )

    def __init__(
        self,
        host: Host,
        outbox: ServerOutbox,
        intake: Intake,
        *,
        account: Account,
        peer: str,
        on_idle: Callable[[], None],
        on_caller_refused: Callable[[], None],
    ) -> None:
        self._account = account
        self._on_caller_refused = on_caller_refused
        # Calls whose requests are not complete, with the time in seconds when they began; oldest first.
        self._unfinished: dict[Stream, float] = {}
        self._host = host
        self._outbox = outbox
        self._intake = intake
        self._peer = peer
        self._on_idle = on_idle
        self._is_final = False
        self._running = 0
        self.streams: dict[int, Stream] = {}

    def _start(self, stream: Stream, answer: Coroutine[Any, Any, None]) -> None:
        task = stream.task = self._host.loop.create_task(answer)
        self._host.tasks.add(task)
        self._running += 1
        # Scheduled after the task: a response that needs no wait is sent in the same iteration of the loop.
        self._outbox.schedule()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._host.tasks.discard(task)
        self._running -= 1

    async def _answer(self, stream: Stream, route: Unary, request: bytes | Packed) -> None:
        stream.has_begun = True
        try:
            if isinstance(request, Packed):
                request = await self._unpacked(stream, request)
            answering = route.handle(request, stream)
            # A call may wait for a minute: don't keep its request meanwhile.
            del request
            message = await answering
            if stream.is_open:
                self._send_answer(stream, message)
        except RpcStatus as status:
            self._fail(stream, status)
            if status.code in CALLER_REFUSED:
                self._on_caller_refused()
        except asyncio.CancelledError:
            self._cancelled(stream)
            raise
        except Exception as error:  # noqa: BLE001 - a fault of one handler is no reason to lose the others
            self._crashed(stream, error)
        finally:
            if stream.task is not None:
                self._ended(stream.task)

    async def _unpacked(self, stream: Stream, packed: Packed) -> bytes:
        """Decompress a request, as soon as the server has the memory."""
        await self._account.memory.enough()
        if stream.is_open:
            self._hold(stream, packed.size)
        return await packed.unpacked_aside()

    async def _handled(self, stream: Stream, route: ServerStream, packed: Packed) -> AsyncIterator[bytes]:
        messages = route.handle(await self._unpacked(stream, packed), stream)
        try:
            async for message in messages:
                yield message
        finally:
            if isinstance(messages, AsyncGenerator):
                await messages.aclose()

    def _hold(self, stream: Stream, size: int) -> None:
        """Count bytes against the server's memory until the stream closes."""
        stream.held_bytes += size
        self._account.hold(size)

    def _send_answer(self, stream: Stream, message: bytes) -> None:
        self._check_answer(stream, message)
        if self._outbox.answer(stream, message):
            self._close(stream)
        else:
            self._outbox.send(stream, message)
            self._outbox.end(stream, ok_trailers_block(stream.trailers or ()))

    async def _answer_many(self, stream: Stream, handle: Callable[[], AsyncIterator[bytes]]) -> None:
        stream.has_begun = True
        try:
            messages = handle()
            try:
                async for message in messages:
                    if not stream.is_open:
                        return
                    await self._send_one(stream, message)
            finally:
                if isinstance(messages, AsyncGenerator):
                    await messages.aclose()
            if stream.is_open:
                self._outbox.end(stream, ok_trailers_block(stream.trailers or ()))
        except RpcStatus as status:
            self._fail(stream, status)
            if status.code in CALLER_REFUSED:
                self._on_caller_refused()
        except asyncio.CancelledError:
            self._cancelled(stream)
            raise
        except Exception as error:  # noqa: BLE001 - a fault of one handler is no reason to lose the others
            self._crashed(stream, error)
        finally:
            if stream.task is not None:
                self._ended(stream.task)

    async def _send_one(self, stream: Stream, message: bytes) -> None:
        self._check_answer(stream, message)
        self._outbox.send(stream, message)
        room = self._outbox.room(stream)
        if room is not None:
            await room

    def _check_answer(self, stream: Stream, message: bytes) -> None:
        limits = self._host.limits
        if len(message) > limits.message_bytes_max:
            raise RpcStatus(
                Code.RESOURCE_EXHAUSTED,
                f"the response of {stream.path} has {len(message)} bytes: at most {limits.message_bytes_max}",
            )
        if len(message) > FRAME_BYTES_MAX and self._outbox.waiting_bytes > 2 * limits.send_bytes_max:
            raise RpcStatus(
                Code.RESOURCE_EXHAUSTED,
                f"{self._outbox.waiting_bytes} bytes of responses on this connection are unread: read faster",
            )

    def _cancelled(self, stream: Stream) -> None:
        # The server cancelled the handler because it is stopping: if the caller had cancelled it, the stream would be
        # closed.
        self._fail(stream, RpcStatus(Code.UNAVAILABLE, "the server is stopping: retry"))

    def _crashed(self, stream: Stream, error: Exception) -> None:
        self._host.log.error("rpc handler failed", path=stream.path, peer=self._peer, exc_info=error)
        self._fail(
            stream, RpcStatus(Code.INTERNAL, f"{stream.path} failed: {type(error).__name__}, see the server's log")
        )

    def _fail(self, stream: Stream, status: RpcStatus) -> None:
        """End a call with a status, after the messages already queued."""
        if not stream.is_open:
            return
        if stream.outgoing is None:
            self._send_status(stream, status)
            self._close(stream)
        else:
            self._outbox.end(stream, self._status_block(status, stream.trailers or (), is_whole_answer=False))

    def _cut_off(self, stream: Stream, status: RpcStatus) -> None:
        """End a call with a status at once: cancel its handler and drop its unsent messages."""
        if not stream.is_open:
            return
        if stream.outgoing is not None and stream.outgoing.offset:
            # Trailers can't follow half a message.
            self._outbox.write(rst_stream(stream.id, ErrorCode.CANCEL))
            stream.is_half_closed = True
        else:
            self._send_status(stream, status)
        self._abandon(stream)

    def _send_status(self, stream: Stream, status: RpcStatus) -> None:
        block = self._status_block(status, stream.trailers or (), is_whole_answer=stream.outgoing is None)
        self._outbox.headers(stream.id, block, flags=END_STREAM)

    def _status_block(self, status: RpcStatus, trailers: Trailers = (), *, is_whole_answer: bool) -> bytes:
        return status_block(
            status,
            trailers,
            list_bytes_max=self._outbox.header_list_bytes_max,
            is_whole_answer=is_whole_answer,
        )

    def _abandon(self, stream: Stream) -> None:
        """Close the stream and cancel its handler: the client no longer waits for the response."""
        self._close(stream)
        task = stream.task
        if task is not None and not task.done():
            task.cancel()
            if not stream.has_begun:
                self._ended(task)

    def lose(self) -> None:
        """Cancel all calls: the connection is lost, so their responses can't be sent."""
        for stream in tuple(islice(self.streams.values(), CANCELLED_A_TURN_MAX)):
            stream.is_half_closed = True
            self._abandon(stream)
        if self.streams:
            self._host.loop.call_soon(self.lose)

    def _close(self, stream: Stream) -> None:
        """Release all that a stream holds; reset the stream if the peer is still sending."""
        stream.is_open = False
        del self.streams[stream.id]
        if stream.tick is not None:
            self._host.deadlines.remove(stream, stream.tick)
        self._outbox.forget(stream)
        if stream.held_bytes:
            self._account.free(stream.held_bytes)
            stream.held_bytes = 0
        if self._unfinished:
            self._unfinished.pop(stream, None)
        if stream.incoming is not None:
            incoming, stream.incoming = stream.incoming, None
            self._intake.release(incoming)
        if not stream.is_half_closed:
            self._outbox.write(rst_stream(stream.id, ErrorCode.NO_ERROR))
        if self._is_final and not self.streams:
            self._on_idle()
