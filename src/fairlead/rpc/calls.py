"""The calls of one connection: from a stream's headers to the end of its answer."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from fairlead.rpc.answers import Trailers, http_block, ok_trailers_block, status_block
from fairlead.rpc.call import Duplex, ServerStream, Unary
from fairlead.rpc.frames import END_STREAM, FRAME_BYTES_MAX, ConnectionFault, ErrorCode, StreamFault, rst_stream
from fairlead.rpc.head import Head, check_trailers, request_head
from fairlead.rpc.header_block import Field, HeaderDecoder
from fairlead.rpc.host import Host
from fairlead.rpc.intake import STREAM_WINDOW_BYTES, Intake
from fairlead.rpc.message import PREFIX, PREFIX_BYTES, MessageReader
from fairlead.rpc.outbox import Outbox
from fairlead.rpc.status import Code, RpcStatus
from fairlead.rpc.stream import Incoming, Requests, Stream

# Blocks whose meaning is remembered: a client has about as many as methods that it calls.
REMEMBERED_HEADS_MAX = 128
REMEMBERED_BLOCK_BYTES_MAX = 1_024
# Past the size that we ask for, a call is refused; past this many times as much, the connection is.
HEADER_LIST_FACTOR_MAX = 4
# Handlers that were cancelled may take their time to end: so many times the streams may run on one connection.
RUNNING_FACTOR_MAX = 2


class Calls:
    """Opens streams, gives their messages to the handlers, and sends back what those answer.

    The order of frames within a stream is checked here, and every way in which a stream ends leads through `_close`.
    `on_idle` is called when the last stream of a connection that opens no more has ended.
    """

    __slots__ = (
        "_decoder",
        "_generation",
        "_heads",
        "_host",
        "_intake",
        "_is_final",
        "_message_bytes_max",
        "_on_idle",
        "_outbox",
        "_peer",
        "_running",
        "last_id",
        "streams",
    )

    def __init__(self, host: Host, outbox: Outbox, intake: Intake, *, peer: str, on_idle: Callable[[], None]) -> None:
        self._host = host
        self._outbox = outbox
        self._intake = intake
        self._peer = peer
        self._on_idle = on_idle
        self._message_bytes_max = host.limits.message_bytes_max
        self._decoder = HeaderDecoder(list_bytes_max=host.limits.header_list_bytes_max * HEADER_LIST_FACTOR_MAX)
        # What blocks mean, as long as the decoder's table is what it was.
        self._heads: dict[bytes, Head] = {}
        self._generation = 0
        self._is_final = False
        self._running = 0
        self.last_id = 0
        self.streams: dict[int, Stream] = {}

    # From the peer.

    def headers(self, stream_id: int, block: bytes, *, is_last: bool) -> None:
        """A header block came: a new call, or the trailers of one. Each must be decoded, for the table's sake."""
        head = self._heads.get(block)
        fields, is_stable = ((), True) if head is not None else self._decoded(block)
        stream = self.streams.get(stream_id)
        if stream is not None:
            if head is not None or not is_last or stream.is_half_closed:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "headers in the middle of a request")
            check_trailers(fields)
            self._half_closed(stream)
            return
        if stream_id <= self.last_id or not stream_id % 2:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"headers on stream {stream_id}, the last one was {self.last_id}"
            )
        if self._is_final:
            return
        self.last_id = stream_id
        if head is None:
            head = request_head(fields, list_bytes_max=self._host.limits.header_list_bytes_max)
            if is_stable and len(block) <= REMEMBERED_BLOCK_BYTES_MAX:
                self._remember(block, head)
        self._open(stream_id, head, is_last=is_last)

    def data(self, stream_id: int, data: bytes, *, padding: int, is_last: bool) -> None:
        """Data came."""
        self._intake.received(len(data) + padding)
        stream = self.streams.get(stream_id)
        if stream is None:
            # On a stream that is over: the peer may not know yet.
            self.check_not_idle(stream_id)
            return
        if stream.is_half_closed:
            raise StreamFault(ErrorCode.STREAM_CLOSED, "data after the end of a request")
        self._intake.received_on(stream, len(data) + padding, padding=padding)
        try:
            if data and not self._took_whole_message(stream, data):
                self._take_part(stream, data)
            if is_last:
                self._half_closed(stream)
        except RpcStatus as status:
            self._cut_off(stream, status)

    def reset(self, stream_id: int) -> bool:
        """The peer gave a call up; False: it was over already."""
        stream = self.streams.get(stream_id)
        if stream is None:
            self.check_not_idle(stream_id)
            return False
        # It is as closed as a stream can be: no word of ours is to follow.
        stream.is_half_closed = True
        self._abandon(stream)
        return True

    def fault(self, stream_id: int, code: ErrorCode) -> None:
        """The peer made a fault that costs it the stream."""
        self._outbox.write(rst_stream(stream_id, code))
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.is_half_closed = True
            self._abandon(stream)

    def check_not_idle(self, stream_id: int) -> None:
        """Frames on a stream that was never opened are a fault; on one that is over, they may have crossed its end."""
        if not self._is_final and (stream_id > self.last_id or not stream_id % 2):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a frame on stream {stream_id}, which was never opened")

    def change_windows(self, increment: int) -> None:
        """The peer changed the window that streams begin with, which holds for those that have begun as well."""
        for stream in tuple(self.streams.values()):
            try:
                self._outbox.widen_stream(stream, increment)
            except StreamFault as fault:
                raise ConnectionFault(fault.code, str(fault)) from None

    # From the connection.

    def finalize(self) -> None:
        """Open no more streams; those with higher numbers than the last are the peer's to send elsewhere."""
        self._is_final = True
        if not self.streams:
            self._on_idle()

    def lose(self) -> None:
        """The connection is gone, and everyone who waited for an answer with it."""
        for stream in tuple(self.streams.values()):
            stream.is_half_closed = True
            self._abandon(stream)

    def sent(self, stream: Stream) -> None:
        """The last of an answer that had to wait was sent."""
        self._close(stream)

    # Inside.

    def _decoded(self, block: bytes) -> tuple[Sequence[Field], bool]:
        """The fields of a block, and whether it means the same next time."""
        decoder = self._decoder
        fields = decoder.decode(block)
        if decoder.generation == self._generation:
            return fields, True
        # The block changed the table, and with it what it and all the others mean.
        self._generation = decoder.generation
        self._heads.clear()
        return fields, False

    def _remember(self, block: bytes, head: Head) -> None:
        if len(self._heads) >= REMEMBERED_HEADS_MAX:
            self._heads.clear()
        self._heads[block] = head

    def _open(self, stream_id: int, head: Head, *, is_last: bool) -> None:
        host, limits = self._host, self._host.limits
        if (
            len(self.streams) >= limits.streams_max
            or self._running >= limits.streams_max * RUNNING_FACTOR_MAX
            or self._outbox.waiting_bytes > limits.send_bytes_max
        ):
            self._outbox.write(rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            return
        route = host.routes.get(head.path)
        if route is None or head.refusal is not None or len(host.tasks) >= limits.calls_max:
            self._refuse(stream_id, head, is_last=is_last)
            return
        stream = Stream(
            stream_id,
            route,
            head,
            peer=self._peer,
            clock=host.clock,
            send_window=self._outbox.stream_window,
            receive_window=STREAM_WINDOW_BYTES,
        )
        self.streams[stream_id] = stream
        if head.timeout_s is not None:
            stream.timer = host.loop.call_later(head.timeout_s, self._deadline_passed, stream)
        if isinstance(route, Duplex):
            requests = stream.requests = Requests(lambda size: self._request_taken(stream, size))
            self._start(stream, self._answer_many(stream, lambda: route.handle(requests, stream)))
        if is_last:
            self._half_closed(stream)

    def _refuse(self, stream_id: int, head: Head, *, is_last: bool) -> None:
        refusal = head.refusal
        if refusal is not None and refusal.http_status != 200:
            block = http_block(refusal.http_status)
        else:
            if refusal is not None:
                status = refusal.status
            elif head.path not in self._host.routes:
                status = RpcStatus(Code.UNIMPLEMENTED, f"method {head.path} is not implemented here")
            else:
                status = RpcStatus(Code.RESOURCE_EXHAUSTED, f"{len(self._host.tasks)} calls are under way: send fewer")
            block = self._status_block(status, is_whole_answer=True)
        self._outbox.headers(stream_id, block, flags=END_STREAM)
        if not is_last:
            self._outbox.write(rst_stream(stream_id, ErrorCode.NO_ERROR))

    def _took_whole_message(self, stream: Stream, data: bytes) -> bool:
        """Most requests are one message, plain and whole in one frame: those need nothing to put them together."""
        if stream.incoming is not None or stream.request is not None or stream.requests is not None:
            return False
        if len(data) < PREFIX_BYTES or len(data) - PREFIX_BYTES > self._message_bytes_max:
            return False
        flag, length = PREFIX.unpack_from(data)
        if flag or length != len(data) - PREFIX_BYTES:
            return False
        stream.request = data[PREFIX_BYTES:]
        return True

    def _take_part(self, stream: Stream, data: bytes) -> None:
        incoming = stream.incoming
        if incoming is None:
            reader = MessageReader(encoding=stream.head.encoding, bytes_max=self._message_bytes_max)
            incoming = stream.incoming = Incoming(reader)
        buffer = incoming.reader.buffer
        buffer += data
        while True:
            before_bytes = len(buffer)
            message = incoming.reader.take()
            if message is None:
                break
            wire_bytes = before_bytes - len(buffer)
            extra_bytes = self._intake.release(incoming)
            if stream.requests is not None:
                stream.requests.put(message, window_bytes=wire_bytes - extra_bytes)
            elif stream.request is not None:
                raise RpcStatus(Code.UNIMPLEMENTED, f"{stream.path} takes one message: several were sent")
            else:
                stream.request = message
        if buffer:
            if stream.request is not None:
                raise RpcStatus(Code.UNIMPLEMENTED, f"{stream.path} takes one message: several were sent")
            self._intake.hold(stream, incoming)

    def _request_taken(self, stream: Stream, size: int) -> None:
        """A handler has read one of many messages."""
        if stream.is_open:
            self._intake.give(stream, size)

    def _half_closed(self, stream: Stream) -> None:
        """The peer has sent all: the handler of a single message can begin."""
        stream.is_half_closed = True
        incoming = stream.incoming
        if incoming is not None:
            if incoming.reader.buffer:
                self._fail(stream, RpcStatus(Code.INVALID_ARGUMENT, "the request ends within a message"))
                return
            stream.incoming = None
        route, request = stream.route, stream.request
        if stream.requests is not None:
            stream.requests.end()
        elif request is None:
            self._fail(stream, RpcStatus(Code.UNIMPLEMENTED, f"{stream.path} takes one message: none was sent"))
        else:
            stream.request = None
            if isinstance(route, Unary):
                self._start(stream, self._answer(stream, route, request))
            elif isinstance(route, ServerStream):
                self._start(stream, self._answer_many(stream, lambda: route.handle(request, stream)))

    def _start(self, stream: Stream, answer: Coroutine[Any, Any, None]) -> None:
        task = stream.task = self._host.loop.create_task(answer)
        self._host.tasks.add(task)
        self._running += 1
        # Behind the task: what it answers at once goes out in the same turn.
        self._outbox.schedule()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._host.tasks.discard(task)
        self._running -= 1

    async def _answer(self, stream: Stream, route: Unary, request: bytes) -> None:
        stream.has_begun = True
        try:
            message = await route.handle(request, stream)
            if stream.is_open:
                self._send_answer(stream, message)
        except RpcStatus as status:
            self._fail(stream, status)
        except asyncio.CancelledError:
            self._cancelled(stream)
            raise
        except Exception as error:  # noqa: BLE001 - a fault of one handler is no reason to lose the others
            self._crashed(stream, error)
        finally:
            if stream.task is not None:
                self._ended(stream.task)

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
                f"the answer of {stream.path} has {len(message)} bytes: at most {limits.message_bytes_max}",
            )
        if len(message) > FRAME_BYTES_MAX and self._outbox.waiting_bytes > 2 * limits.send_bytes_max:
            raise RpcStatus(
                Code.RESOURCE_EXHAUSTED,
                f"{self._outbox.waiting_bytes} bytes of answers wait for this connection's reader: read faster",
            )

    def _cancelled(self, stream: Stream) -> None:
        # Nobody gave the call up, so it was the server that could not wait.
        self._fail(stream, RpcStatus(Code.UNAVAILABLE, "the server is stopping: ask again"))

    def _crashed(self, stream: Stream, error: Exception) -> None:
        self._host.log.error("rpc handler failed", path=stream.path, peer=self._peer, exc_info=error)
        self._fail(
            stream, RpcStatus(Code.INTERNAL, f"{stream.path} failed: {type(error).__name__}, see the server's log")
        )

    def _deadline_passed(self, stream: Stream) -> None:
        self._cut_off(stream, RpcStatus(Code.DEADLINE_EXCEEDED, f"the deadline of {stream.path} has passed"))

    def _fail(self, stream: Stream, status: RpcStatus) -> None:
        """End a call by a status, after all that was answered before."""
        if not stream.is_open:
            return
        if stream.outgoing is None:
            self._send_status(stream, status)
            self._close(stream)
        else:
            self._outbox.end(stream, self._status_block(status, stream.trailers or (), is_whole_answer=False))

    def _cut_off(self, stream: Stream, status: RpcStatus) -> None:
        """End a call by a status at once, whatever its handler does and whatever waits to be sent."""
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
        """Nobody waits for the answer any more."""
        self._close(stream)
        task = stream.task
        if task is not None and not task.done():
            task.cancel()
            if not stream.has_begun:
                self._ended(task)

    def _close(self, stream: Stream) -> None:
        """The stream is over on our side; if the peer was still sending, it may stop."""
        stream.is_open = False
        del self.streams[stream.id]
        if stream.timer is not None:
            stream.timer.cancel()
            stream.timer = None
        self._outbox.forget(stream)
        if stream.incoming is not None:
            incoming, stream.incoming = stream.incoming, None
            self._intake.release(incoming)
        if not stream.is_half_closed:
            self._outbox.write(rst_stream(stream.id, ErrorCode.NO_ERROR))
        if self._is_final and not self.streams:
            self._on_idle()
