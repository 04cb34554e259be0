"""The calls of one connection: from a stream's headers to the end of its response."""

from collections.abc import AsyncIterator, Callable

from fairlead.rpc.budget import Budget
from fairlead.rpc.call import Duplex, ServerStream, Unary
from fairlead.rpc.certificate import PeerCertificate
from fairlead.rpc.frame_reader import HEADER_LIST_FACTOR_MAX
from fairlead.rpc.frames import END_STREAM, ConnectionFault, ErrorCode, StreamFault, rst_stream
from fairlead.rpc.head import Head, check_trailers
from fairlead.rpc.head_cache import HeadCache
from fairlead.rpc.header_blocks import http_block
from fairlead.rpc.host import Host
from fairlead.rpc.intake import STREAM_WINDOW_BYTES, Intake
from fairlead.rpc.memory import SMALL_BYTES_MAX, Account
from fairlead.rpc.message import PREFIX, PREFIX_BYTES, Packed, plain
from fairlead.rpc.responses import Responses
from fairlead.rpc.server_outbox import ServerOutbox
from fairlead.rpc.status import Code, RpcStatus
from fairlead.rpc.stream import Messages, Stream, message_bytes
from fairlead.rpc.whole_request import whole_request

# Running handlers per connection, as a multiple of `streams_max`: cancelled handlers may outlive their streams.
RUNNING_FACTOR_MAX = 2


class Calls(Responses):
    """Opens streams and passes their messages to the handlers; checks the order of frames within a stream."""

    __slots__ = (
        "_certificate",
        "_heads",
        "_limits",
        "_message_bytes_max",
        "_on_fault",
        "_on_trust",
        "_refusals",
        "last_id",
    )

    def __init__(
        self,
        host: Host,
        outbox: ServerOutbox,
        intake: Intake,
        *,
        account: Account,
        refusals: Budget,
        peer: str,
        certificate: PeerCertificate | None,
        on_idle: Callable[[], None],
        on_trust: Callable[[], None],
        on_fault: Callable[[ConnectionFault], None],
    ) -> None:
        """`refusals` is the budget of refused calls, which the connection's resets share.

        `on_trust` is called when the caller is identified, if that changes the limits. `on_fault` gets a fault that
        does not come from a frame.
        """
        super().__init__(
            host,
            outbox,
            intake,
            account=account,
            peer=peer,
            on_idle=on_idle,
            on_caller_refused=self._count_refused_caller,
        )
        self._on_fault = on_fault
        self._refusals = refusals
        self._limits = host.stranger_limits
        self._on_trust = on_trust
        self._certificate = certificate
        self._message_bytes_max = host.limits.message_bytes_max
        list_bytes_max = host.limits.header_list_bytes_max
        self._heads = HeadCache(
            list_bytes_max=list_bytes_max, decoded_bytes_max=list_bytes_max * HEADER_LIST_FACTOR_MAX, account=account
        )
        self.last_id = 0

    # Called for the peer's frames.

    def take_whole(self, data: bytes, position: int, end: int) -> int:
        """Fast path for a call with a cached head and one message: return the end of its frames; 0 for other calls."""
        whole = whole_request(data, position, end)
        if whole is None:
            return 0
        stream_id, block_at, data_at, message_at, message_end, packed, request_end = whole
        size = message_end - message_at
        head, timeout_s = self._heads.find(data[block_at:data_at])
        if (
            head is None
            or not self._may_open(stream_id)
            or size > self._message_bytes_max
            or isinstance(self._host.routes.get(head.path), Duplex)
        ):
            return 0
        self._intake.received(size + PREFIX_BYTES)
        self.last_id = stream_id
        stream = self._opened(stream_id, head, timeout_s, is_last=True)
        if stream is None:
            return request_end
        message = data[message_at:message_end]
        request: bytes | Packed = message
        if packed:
            try:
                request = plain(packed, message, encoding=head.encoding, bytes_max=self._message_bytes_max)
            except RpcStatus as status:
                self._cut_off(stream, status)
                return request_end
        stream.request = request
        if size > SMALL_BYTES_MAX:
            self._hold(stream, size)
        self._half_closed(stream)
        return request_end

    def headers(self, stream_id: int, block: bytes, *, is_last: bool) -> None:
        """Handle a new call's headers or a call's trailers. Every block must be decoded: it may change the table."""
        head, timeout_s = self._heads.find(block)
        fields, is_stable = ((), True) if head is not None else self._heads.decode(block)
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
            head = self._heads.head(block, fields, is_stable=is_stable)
        stream = self._opened(stream_id, head, timeout_s, is_last=is_last)
        if stream is not None and is_last:
            self._half_closed(stream)
        elif stream is not None and stream.requests is None:
            self._unfinished[stream] = self._host.clock()

    def data(self, stream_id: int, data: bytes, *, padding: int, is_last: bool) -> bool:
        """Handle a DATA frame; return whether it completed a message."""
        self._intake.received(len(data) + padding)
        stream = self.streams.get(stream_id)
        if stream is None:
            # The stream is closed; the peer may not know yet.
            self.check_not_idle(stream_id)
            return False
        if stream.is_half_closed:
            raise StreamFault(ErrorCode.STREAM_CLOSED, "data after the end of a request")
        self._intake.received_on(stream, len(data) + padding, padding=padding)
        is_whole = False
        try:
            is_whole = bool(data) and (self._took_whole_message(stream, data) or self._took_parts(stream, data))
            if is_last:
                self._half_closed(stream)
        except RpcStatus as status:
            self._cut_off(stream, status)
        return is_whole

    def reset(self, stream_id: int, code: int) -> bool:  # noqa: ARG002 - any reason cancels the call
        """Cancel the call that the peer reset. Every reset counts: opening and resetting streams is a known attack."""
        stream = self.streams.get(stream_id)
        if stream is None:
            self.check_not_idle(stream_id)
            return True
        # The reset closed the stream in both directions: send no more frames on it.
        stream.is_half_closed = True
        self._abandon(stream)
        return True

    def fault(self, stream_id: int, fault: StreamFault) -> None:
        """Reset a stream on which the peer broke the protocol."""
        self._outbox.write(rst_stream(stream_id, fault.code))
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.is_half_closed = True
            self._abandon(stream)

    def check_not_idle(self, stream_id: int) -> None:
        """Raise for a frame on a stream that was never opened; frames on a closed stream may have crossed its end."""
        if not self._is_final and (stream_id > self.last_id or not stream_id % 2):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a frame on stream {stream_id}, which was never opened")

    # Called by the connection.

    def finalize(self) -> None:
        """Open no more streams; the peer must send streams above the last id to another server."""
        self._is_final = True
        if not self.streams:
            self._on_idle()

    def check(self, now_s: float) -> None:
        """End the calls whose requests are not complete in time."""
        begun_by_s = now_s - self._host.limits.request_s_max
        while self._unfinished:
            stream, begun_s = next(iter(self._unfinished.items()))
            if begun_s > begun_by_s:
                return
            del self._unfinished[stream]
            if stream.incoming is not None and stream.incoming.is_waiting:
                # The peer waits for window that this server has not given.
                self._unfinished[stream] = now_s
            else:
                self._cut_off(stream, self._late(stream))

    def _late(self, stream: Stream) -> RpcStatus:
        limit_s = self._host.limits.request_s_max
        return RpcStatus(Code.DEADLINE_EXCEEDED, f"the request of {stream.path} was not complete within {limit_s:g} s")

    def expire(self, stream: Stream) -> None:
        """End a call whose deadline has passed."""
        self._cut_off(stream, RpcStatus(Code.DEADLINE_EXCEEDED, f"the deadline of {stream.path} has passed"))

    def trust(self) -> None:
        """Give the connection the limits of an identified caller."""
        if self._limits is not self._host.limits:
            self._limits = self._host.limits
            self._on_trust()

    def sent(self, stream: Stream) -> None:
        """Close a stream whose waiting response was sent completely."""
        self._close(stream)

    def _may_open(self, stream_id: int) -> bool:
        return stream_id > self.last_id and stream_id % 2 == 1 and not self._is_final

    def _opened(self, stream_id: int, head: Head, timeout_s: float | None, *, is_last: bool) -> Stream | None:
        """Open a stream, or refuse it and return None."""
        host, limits = self._host, self._limits
        if (
            len(self.streams) >= limits.streams_max
            or self._running >= limits.streams_max * RUNNING_FACTOR_MAX
            or self._outbox.waiting_bytes > limits.send_bytes_max
        ):
            self._count_refusal()
            self._outbox.write(rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            return None
        route = host.routes.get(head.path)
        if (
            route is None
            or head.refusal is not None
            or len(host.tasks) >= limits.calls_max
            or (self._account.memory.is_short and not self._account.may_open)
        ):
            self._refuse(stream_id, head, is_last=is_last)
            return None
        stream = Stream(
            stream_id,
            route,
            head,
            self,
            peer=self._peer,
            certificate=self._certificate,
            clock=host.clock,
            timeout_s=timeout_s,
            send_window=self._outbox.stream_window,
            receive_window=STREAM_WINDOW_BYTES,
        )
        self.streams[stream_id] = stream
        if head.list_bytes > SMALL_BYTES_MAX:
            self._hold(stream, head.list_bytes)
        if stream.deadline_s is not None:
            stream.tick = host.deadlines.add(stream, stream.deadline_s)
        if isinstance(route, Duplex):
            requests = stream.requests = Messages(
                lambda window_bytes, size: self._request_taken(stream, window_bytes, size),
                unpack=lambda packed: self._unpacked(stream, packed),
            )
            self._start(stream, self._answer_many(stream, lambda: route.handle(requests, stream)))
        return stream

    def _count_refusal(self) -> None:
        """Count a call that is refused by the peer's own fault; raises ConnectionFault."""
        if not self._refusals.spend(self._host.clock()):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many calls that had to be refused")

    def _count_refused_caller(self) -> None:
        """Count a call whose handler refused the caller; above the budget, end the connection."""
        try:
            self._count_refusal()
        except ConnectionFault as fault:
            self._on_fault(fault)

    def _refuse(self, stream_id: int, head: Head, *, is_last: bool) -> None:
        refusal = head.refusal
        if refusal is not None or head.path not in self._host.routes:
            self._count_refusal()
        if refusal is not None and refusal.http_status != 200:
            block = http_block(refusal.http_status)
        else:
            if refusal is not None:
                status = refusal.status
            elif head.path not in self._host.routes:
                status = RpcStatus(Code.UNIMPLEMENTED, f"method {head.path} is not implemented here")
            elif not self._account.may_open:
                used = self._account.memory.used_bytes
                status = RpcStatus(
                    Code.RESOURCE_EXHAUSTED, f"the server holds {used} bytes of messages: send fewer at once"
                )
            else:
                status = RpcStatus(Code.RESOURCE_EXHAUSTED, f"{len(self._host.tasks)} calls are under way: send fewer")
            block = self._status_block(status, is_whole_answer=True)
        self._outbox.headers(stream_id, block, flags=END_STREAM)
        if not is_last:
            self._outbox.write(rst_stream(stream_id, ErrorCode.NO_ERROR))

    def _took_whole_message(self, stream: Stream, data: bytes) -> bool:
        """Fast path: most requests are one message in one frame, which needs no reassembly."""
        if stream.incoming is not None or stream.request is not None or stream.requests is not None:
            return False
        if len(data) < PREFIX_BYTES or len(data) - PREFIX_BYTES > self._message_bytes_max:
            return False
        flag, length = PREFIX.unpack_from(data)
        if length != len(data) - PREFIX_BYTES:
            return False
        message: bytes | Packed = data[PREFIX_BYTES:]
        if flag:
            # SDKs compress their requests.
            message = plain(flag, data[PREFIX_BYTES:], encoding=stream.head.encoding, bytes_max=self._message_bytes_max)
        stream.request = message
        if length > SMALL_BYTES_MAX:
            self._hold(stream, length)
        return True

    def _took_parts(self, stream: Stream, data: bytes) -> bool:
        """Take data that is not one whole message; return whether it completed one."""
        encoding, bytes_max = stream.head.encoding, self._message_bytes_max
        is_whole = False
        for message, window_bytes in self._intake.messages(stream, data, encoding=encoding, bytes_max=bytes_max):
            is_whole = True
            self._hold(stream, message_bytes(message))
            if stream.requests is not None:
                stream.requests.put(message, window_bytes=window_bytes)
            elif stream.request is not None:
                raise _several(stream)
            else:
                stream.request = message
        if stream.requests is not None:
            self._note_part(stream, is_new=is_whole)
        if stream.request is not None and stream.incoming is not None and stream.incoming.reader.buffer:
            raise _several(stream)
        return is_whole

    def _note_part(self, stream: Stream, *, is_new: bool) -> None:
        """Note when the unfinished message of a duplex call began."""
        if is_new:
            self._unfinished.pop(stream, None)
        if stream.incoming is not None and stream.incoming.reader.buffer:
            self._unfinished.setdefault(stream, self._host.clock())

    def _request_taken(self, stream: Stream, window_bytes: int, size: int) -> None:
        """Release the window and the memory of a message: the handler of the duplex call has read it."""
        if stream.is_open:
            self._intake.give(stream, window_bytes)
            stream.held_bytes -= size
            self._account.free(size)

    def _half_closed(self, stream: Stream) -> None:
        """Handle the end of the request: start the handler of a call with a single request message."""
        stream.is_half_closed = True
        if self._unfinished:
            self._unfinished.pop(stream, None)
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
                self._start(stream, self._answer_many(stream, self._many(stream, route, request)))

    def _many(self, stream: Stream, route: ServerStream, request: bytes | Packed) -> Callable[[], AsyncIterator[bytes]]:
        if isinstance(request, Packed):
            return lambda: self._handled(stream, route, request)
        return lambda: route.handle(request, stream)


def _several(stream: Stream) -> RpcStatus:
    return RpcStatus(Code.UNIMPLEMENTED, f"{stream.path} takes one message: several were sent")
