"""The calls of one connection of the client: from a request to the end of its response."""

from collections.abc import Callable, Sequence
from struct import Struct

from fairlead.aio.deadlines import Deadlines
from fairlead.rpc.client.call import ClientCall
from fairlead.rpc.client.client_outbox import ClientOutbox
from fairlead.rpc.client.failures import CallFailed, NotSent, ResponseLost, unreadable
from fairlead.rpc.client.request_head import timeout_field
from fairlead.rpc.client.response_head import encoding, failure, is_informational
from fairlead.rpc.frame_reader import HEADER_LIST_FACTOR_MAX
from fairlead.rpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEADERS,
    STREAM_ID_MAX,
    ConnectionFault,
    ErrorCode,
    StreamFault,
    error_name,
    rst_stream,
)
from fairlead.rpc.header_block import Field, HeaderDecoder
from fairlead.rpc.header_blocks import HEADERS_BLOCK, OK_TRAILERS_BLOCK
from fairlead.rpc.intake import STREAM_WINDOW_BYTES, Intake
from fairlead.rpc.limits import ChannelLimits
from fairlead.rpc.message import PREFIX_BYTES
from fairlead.rpc.status import Code, RpcStatus

# A unary response as our server sends it: a HEADERS frame, the start of the DATA frame, and after the message the
# trailers. Lengths, kinds and flags that never differ are compared as bytes.
_FRONT = Struct(f">5sI{len(HEADERS_BLOCK)}sHB2sIBI")
_FRONT_CONSTANT = bytes((0, 0, len(HEADERS_BLOCK), HEADERS, END_HEADERS))
_DATA_CONSTANT = bytes((DATA, 0))
_BACK = Struct(f">5sI{len(OK_TRAILERS_BLOCK)}s")
_BACK_CONSTANT = bytes((0, 0, len(OK_TRAILERS_BLOCK), HEADERS, END_HEADERS | END_STREAM))
_WHOLE_BYTES_MIN = _FRONT.size + _BACK.size

# Limit on concurrent streams if the server sets none: our own server's limit.
_STREAMS_MAX_DEFAULT = 4_096
# gRPC codes of resets; any other is INTERNAL.
_CODES: dict[int, Code] = {
    ErrorCode.CANCEL: Code.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
}


class ClientCalls:
    """Opens streams and reads their responses; every call ends through `_close`.

    Calls above the server's limit of streams wait here. `on_idle` is called when no call is left.
    """

    __slots__ = (
        "_clock",
        "_deadlines",
        "_decoder",
        "_intake",
        "_limits",
        "_on_idle",
        "_outbox",
        "_waiting",
        "is_accepting",
        "last_id",
        "streams",
        "streams_max",
    )

    def __init__(
        self,
        limits: ChannelLimits,
        outbox: ClientOutbox,
        intake: Intake,
        *,
        clock: Callable[[], float],
        deadlines: Deadlines[ClientCall],
        on_idle: Callable[[], None],
    ) -> None:
        self._limits = limits
        self._outbox = outbox
        self._intake = intake
        self._clock = clock
        self._on_idle = on_idle
        self._decoder = HeaderDecoder(list_bytes_max=limits.header_list_bytes_max * HEADER_LIST_FACTOR_MAX)
        self._deadlines = deadlines
        self._waiting: dict[ClientCall, None] = {}
        # False after GOAWAY, when all stream ids are used up, and when the connection has ended.
        self.is_accepting = True
        # The last stream that was opened; streams of clients have odd ids.
        self.last_id = -1
        self.streams: dict[int, ClientCall] = {}
        self.streams_max = _STREAMS_MAX_DEFAULT

    @property
    def number(self) -> int:
        """Number of calls that have not ended."""
        return len(self.streams) + len(self._waiting)

    # Called by the channel.

    def open(self, call: ClientCall) -> None:
        """Send a call now, or as soon as the server's limit of streams allows; raises NotSent."""
        if len(call.request) > self._limits.message_bytes_max:
            raise NotSent(
                Code.RESOURCE_EXHAUSTED,
                f"the request of {call.path} has {len(call.request)} bytes: at most {self._limits.message_bytes_max}",
            )
        if self.number >= self._limits.calls_max or self._outbox.waiting_bytes > self._limits.send_bytes_max:
            raise NotSent(
                Code.RESOURCE_EXHAUSTED,
                f"{self.number} calls with {self._outbox.waiting_bytes} unsent bytes are under way: send fewer",
            )
        if call.deadline_s is not None:
            call.owner = self
            call.tick = self._deadlines.add(call, call.deadline_s)
        if self._waiting or len(self.streams) >= self.streams_max or self._outbox.is_paused:
            self._waiting[call] = None
        else:
            self._send(call)

    def cancel(self, call: ClientCall) -> None:
        """Give up a call: its caller no longer waits. The reset cancels the handler at the server."""
        if not call.is_done:
            call.is_done = True
            self._give_up(call)

    def resume(self) -> None:
        """Send waiting calls, as far as the limits allow."""
        while self._waiting and len(self.streams) < self.streams_max and not self._outbox.is_paused:
            call = next(iter(self._waiting))
            if not self.is_accepting:
                call.fail(NotSent(Code.UNAVAILABLE, f"{call.path} was not sent: the connection has no stream ids left"))
                self._close(call)
                continue
            del self._waiting[call]
            self._send(call)

    # Called for the server's frames.

    def take_whole(self, data: bytes, position: int, end: int) -> int:
        """Fast path: a whole successful response as our server sends it; 0 if the frames are anything else."""
        if end - position < _WHOLE_BYTES_MIN:
            return 0
        front, stream_id, block, size, low, kind, data_id, compression, length = _FRONT.unpack_from(data, position)
        if front != _FRONT_CONSTANT or block != HEADERS_BLOCK or kind != _DATA_CONSTANT or compression:
            return 0
        size = size << 8 | low
        message_at = position + _FRONT.size
        message_end = message_at + length
        whole_end: int = message_end + _BACK.size
        if size != length + PREFIX_BYTES or size > FRAME_BYTES_MAX or data_id != stream_id or whole_end > end:
            return 0
        back, back_id, block = _BACK.unpack_from(data, message_end)
        call = self.streams.get(stream_id)
        if back != _BACK_CONSTANT or back_id != stream_id or block != OK_TRAILERS_BLOCK or call is None:
            return 0
        future = call.future
        if future is None or call.has_headers or call.outgoing is not None or length > self._limits.message_bytes_max:
            return 0
        self._intake.received(size)
        call.is_half_closed = call.is_done = True
        if not future.done():
            future.set_result(data[message_at:message_end])
        self._close(call)
        return whole_end

    def headers(self, stream_id: int, block: bytes, *, is_last: bool) -> None:
        """Handle a response's headers or trailers. Every block must be decoded: it may change the table."""
        fields = self._decoder.decode(block)
        call = self._call(stream_id)
        if call is None:
            return
        if is_last:
            call.is_half_closed = True
            self._end(call, fields)
        elif call.has_headers:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "headers in the middle of a response")
        elif not is_informational(fields):
            call.has_headers = True
            try:
                call.encoding = encoding(fields, call.path)
            except CallFailed as failed:
                self._give_up(call, failed)

    def data(self, stream_id: int, data: bytes, *, padding: int, is_last: bool) -> bool:
        """Handle a DATA frame; return whether it completed a message."""
        self._intake.received(len(data) + padding)
        call = self._call(stream_id)
        if call is None:
            return False
        if not call.has_headers:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "data before the headers of a response")
        call.is_half_closed = is_last
        self._intake.received_on(call, len(data) + padding, padding=padding)
        is_whole = False
        try:
            is_whole = bool(data) and self._took(call, data)
            if is_last:
                raise ResponseLost(Code.INTERNAL, f"the response of {call.path} ended without a status")
        except CallFailed as failed:
            self._give_up(call, failed)
        except RpcStatus as status:
            self._give_up(call, unreadable(call.path, status))
        return is_whole

    def reset(self, stream_id: int, code: int) -> bool:
        """End a call that the server reset; a reset of a stream that has ended counts against the server."""
        call = self._call(stream_id)
        if call is None:
            return True
        # The reset closed the stream in both directions: send no more frames on it.
        call.is_half_closed = True
        self._outbox.forget(call)
        if code == ErrorCode.REFUSED_STREAM and not call.has_headers:
            failed: CallFailed = NotSent(Code.UNAVAILABLE, f"the server refused {call.path}: it has too many calls")
        else:
            failed = ResponseLost(_CODES.get(code, Code.INTERNAL), f"the server reset {call.path} ({error_name(code)})")
        call.fail(failed)
        self._close(call)
        return False

    def fault(self, stream_id: int, fault: StreamFault) -> None:
        """Reset a stream on which the server broke the protocol."""
        call = self.streams.get(stream_id)
        if call is None:
            self._outbox.write(rst_stream(stream_id, fault.code))
            return
        call.fail(ResponseLost(Code.INTERNAL, f"the server broke the protocol at {call.path}: {fault}"))
        self._close(call, fault.code)

    def check_not_idle(self, stream_id: int) -> None:
        """Raise for a frame on a stream that was never opened; frames on a closed stream may have crossed its end."""
        if stream_id > self.last_id or not stream_id % 2:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a frame on stream {stream_id}, which was never opened")

    def go_away(self, last_id: int, reason: str) -> None:
        """The server opens no more streams: calls above `last_id` were not processed, the others continue."""
        self.is_accepting = False
        for call in (*self._waiting, *(call for call in self.streams.values() if call.id > last_id)):
            if call.id:
                # The server ignores the stream.
                call.is_half_closed = True
                self._outbox.forget(call)
            call.fail(NotSent(Code.UNAVAILABLE, f"the server did not accept {call.path}: {reason}"))
            self._close(call)

    def lose(self, reason: str) -> None:
        """End all calls: the connection is lost."""
        self.is_accepting = False
        for call in (*self._waiting, *self.streams.values()):
            call.is_half_closed = True
            self._outbox.forget(call)
            if not call.id or call.sent_in >= self._outbox.writes:
                call.fail(NotSent(Code.UNAVAILABLE, f"{call.path} was not sent: {reason}"))
            else:
                call.fail(ResponseLost(Code.UNAVAILABLE, f"no response to {call.path}: {reason}"))
            self._close(call)

    def _call(self, stream_id: int) -> ClientCall | None:
        call = self.streams.get(stream_id)
        if call is None:
            self.check_not_idle(stream_id)
        return call

    def _send(self, call: ClientCall) -> None:
        stream_id = self.last_id + 2
        self.last_id = stream_id
        if stream_id + 2 > STREAM_ID_MAX:
            self.is_accepting = False
        block = call.head
        if call.deadline_s is not None:
            # The time that is left: the call may have waited for its stream.
            block += timeout_field(max(0.0, call.deadline_s - self._clock()))
        call.id = stream_id
        call.send_window = self._outbox.stream_window
        call.receive_window = STREAM_WINDOW_BYTES
        self.streams[stream_id] = call
        self._outbox.request(call, block)

    def _took(self, call: ClientCall, data: bytes) -> bool:
        bytes_max = self._limits.message_bytes_max
        is_whole = False
        for message, window_bytes in self._intake.messages(call, data, encoding=call.encoding, bytes_max=bytes_max):
            is_whole = True
            if call.messages is not None:
                call.messages.put(message, window_bytes=window_bytes)
            elif call.message is not None:
                raise ResponseLost(Code.INTERNAL, f"the response of {call.path} has several messages instead of one")
            else:
                call.message = message
        return is_whole

    def _end(self, call: ClientCall, fields: Sequence[Field]) -> None:
        """End a call with the status in its trailers."""
        failed = failure(fields, call.path, list_bytes_max=self._limits.header_list_bytes_max)
        if failed is None and call.incoming is not None and call.incoming.reader.buffer:
            failed = ResponseLost(Code.INTERNAL, f"the response of {call.path} ends within a message")
        if failed is None and call.messages is None and call.message is None:
            failed = ResponseLost(Code.INTERNAL, f"the response of {call.path} has a status of success but no message")
        if failed is None:
            call.succeed()
        else:
            call.fail(failed)
        self._close(call)

    def expire(self, call: ClientCall) -> None:
        """End a call whose deadline has passed."""
        text = f"the deadline of {call.path} has passed"
        is_sent = call.id and call.sent_in < self._outbox.writes
        self._give_up(call, (ResponseLost if is_sent else NotSent)(Code.DEADLINE_EXCEEDED, text))

    def _give_up(self, call: ClientCall, failed: CallFailed | None = None) -> None:
        if failed is not None:
            call.fail(failed)
        self._close(call, ErrorCode.CANCEL)

    def _close(self, call: ClientCall, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """Release all that a call holds; reset its stream if either side has not ended it."""
        if call.tick is not None:
            self._deadlines.remove(call, call.tick)
        if not call.id:
            del self._waiting[call]
        else:
            del self.streams[call.id]
            if call.outgoing is not None or not call.is_half_closed:
                self._outbox.write(rst_stream(call.id, code))
            self._outbox.forget(call)
            if call.incoming is not None:
                incoming, call.incoming = call.incoming, None
                self._intake.release(incoming)
            if self._waiting:
                self.resume()
        if not self.streams and not self._waiting:
            self._on_idle()
