"""One connection of a client: reads requests, calls the handler, writes responses."""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import cast

import httptools

from fairlead.http.host import Host, Incoming
from fairlead.http.limits import HttpLimits
from fairlead.http.message import HttpFault, Request, Response, response_head

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BAD_REQUEST = HttpFault(400, "not a valid HTTP/1.1 request")
_NO_BODY = frozenset((204, 304))
# Bytes of one connection that are parsed in one iteration of the event loop.
TURN_BYTES_MAX = 16 * 1024


class Connection(asyncio.Protocol):
    """Requests of one connection are answered one after another, in order.

    The server closes the connection at `deadline_s`, in seconds of the loop's clock; None while a handler runs.
    Many methods, because httptools and asyncio each call one for every part of a request.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._limits = host.limits
        self._parser = httptools.HttpRequestParser(self)
        self._incoming = Incoming()
        self._is_in_head = True
        self._head_bytes = 0
        self._waiting: deque[tuple[Request, bool, bool]] = deque()
        # Received bytes that wait for their turn, and whether it is scheduled.
        self._unparsed = bytearray()
        self._has_turn = False
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_paused = False
        # After an early error response, the rest of the request is discarded.
        self._is_discarding = False
        self._peer = ""
        self._is_secure = False
        self._is_trusted: Callable[[], bool] = lambda: True
        self.deadline_s: float | None = None

    # Methods that asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; a connection above the limit is refused."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        self._is_secure = transport.get_extra_info("sslcontext") is not None
        encryption = transport.get_extra_info("ssl_object")
        if (check_of := getattr(getattr(encryption, "context", None), "check_of", None)) is not None:
            self._is_trusted = check_of(encryption)
        # The handshake of a resumed session does not check its certificate again.
        is_unknown = self._is_secure and (_lacks_certificate(encryption) or not self._is_trusted())
        if is_unknown or self._host.descriptors.is_reserved(transport):
            self._is_discarding = True
            self._transport.abort()
            return
        if len(self._host.connections) >= self._limits.connections_max or self._host.is_draining:
            self._is_discarding = True
            self._write_plain(HttpFault(503, "too many connections: try again later"))
            self._transport.close()
            return
        self._host.connections.add(self)
        self._expect_within(self._limits.idle_s_max)

    def data_received(self, data: bytes) -> None:
        """Parse the received bytes, or as many as one turn allows."""
        if self._is_discarding:
            return
        if not self._unparsed and len(data) <= TURN_BYTES_MAX and len(self._waiting) < self._limits.pipelined_max:
            self._parse(data)
            return
        self._unparsed += data
        if not self._has_turn:
            self._take_turn()

    def _take_turn(self) -> None:
        """Parse some bytes; the rest waits for the next iteration of the event loop, so that others get their turn."""
        self._has_turn = False
        if self._is_discarding or len(self._waiting) >= self._limits.pipelined_max:
            # `_run` continues when the requests that wait are answered.
            self._stop_reading()
            return
        data = bytes(self._unparsed[:TURN_BYTES_MAX])
        del self._unparsed[:TURN_BYTES_MAX]
        self._parse(data)
        if self._unparsed and not self._is_discarding:
            self._has_turn = True
            self._stop_reading()
            self._host.loop.call_soon(self._take_turn)
        else:
            self._read_on()

    def _stop_reading(self) -> None:
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if self._is_paused and len(self._waiting) < self._limits.pipelined_max and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        if self._is_in_head:
            if self._head_bytes == 0 and not self._waiting and self._task is None:
                self._expect_within(self._limits.request_s_max)
            self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            fault = error.__context__
            self._refuse(fault if isinstance(fault, HttpFault) else _BAD_REQUEST)
        except httptools.HttpParserError:
            self._refuse(_BAD_REQUEST)
        if self._is_in_head and self._head_bytes > self._limits.head_bytes_max and not self._is_discarding:
            self._refuse(HttpFault(431, f"the request's headers have more than {self._limits.head_bytes_max} bytes"))

    def eof_received(self) -> bool:
        """Close; a client that has stopped sending does not wait for a response."""
        return False

    def connection_lost(self, _: Exception | None) -> None:
        """Cancel the handler: no client waits for its response."""
        self._host.connections.discard(self)
        self._unparsed.clear()
        self._forget_body()
        for request, *_rest in self._waiting:
            self._host.body_bytes -= len(request.body)
        self._waiting.clear()
        self.resume_writing()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Record that the client reads slower than we write."""
        if self._writable is None:
            self._writable = self._host.loop.create_future()
            self._expect_within(self._limits.write_s_max)

    def resume_writing(self) -> None:
        """Record that more can be written."""
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
            self.deadline_s = None if self._task is not None else self._host.loop.time() + self._limits.idle_s_max

    # Methods that the parser calls.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._incoming = Incoming()

    def on_url(self, url: bytes) -> None:
        """Take a part of the request's target."""
        self._incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; values of a repeated one are joined."""
        self._incoming.fields += 1
        if self._incoming.fields > self._limits.fields_max:
            raise HttpFault(431, f"the request has more than {self._limits.fields_max} header fields")
        key = name.lower().decode("latin-1")
        text = value.decode("latin-1")
        headers = self._incoming.headers
        if key == "host" and key in headers:
            raise HttpFault(400, "two Host headers: send one")
        if key == "expect" and text.lower() == "100-continue":
            self._incoming.is_expecting = True
        separator = "; " if key == "cookie" else ", "
        headers[key] = f"{headers[key]}{separator}{text}" if key in headers else text

    def on_headers_complete(self) -> None:
        """Refuse a body that is announced as too large, before it is sent."""
        self._is_in_head = False
        self._head_bytes = 0
        announced = self._incoming.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > self._limits.body_bytes_max:
            raise _too_large(self._limits)
        if self._incoming.is_expecting and self._task is None and not self._parser.should_upgrade():
            self._transport.write(_CONTINUE)

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        incoming = self._incoming
        incoming.body += data
        incoming.body_bytes += len(data)
        self._host.body_bytes += len(data)
        if incoming.body_bytes > self._limits.body_bytes_max:
            raise _too_large(self._limits)
        if self._host.body_bytes > self._limits.bodies_bytes_max:
            raise HttpFault(503, "the server holds too many requests: try again later")

    def on_message_complete(self) -> None:
        """Answer the request, after the earlier ones of the connection."""
        incoming = self._incoming
        self._is_in_head = True
        if self._parser.should_upgrade():
            # The head is parsed again without the offer of another protocol, see `_head_without_offer`.
            return
        request = Request(
            self._parser.get_method().decode("latin-1"),
            incoming.target.decode("latin-1"),
            incoming.headers,
            bytes(incoming.body),
            peer=self._peer,
            is_secure=self._is_secure,
        )
        # The bytes now belong to the waiting request.
        incoming.body_bytes = 0
        is_old = self._parser.get_http_version() == "1.0"
        self._waiting.append((request, self._parser.should_keep_alive(), is_old))
        if len(self._waiting) >= self._limits.pipelined_max:
            self._stop_reading()
        if self._task is None:
            self.deadline_s = None
            self._task = self._host.loop.create_task(self._run())

    # Methods that the server calls.

    def check(self, now_s: float) -> None:
        """Close the connection if the client was too slow, or if its certificate has ended or is withdrawn."""
        is_late = self.deadline_s is not None and now_s >= self.deadline_s
        if is_late or not self._is_trusted():
            self._transport.abort()

    def drain(self) -> None:
        """Close the connection as soon as it has nothing to answer."""
        if self._task is None and not self._is_discarding:
            self._transport.close()

    def cancel(self) -> "asyncio.Task[None] | None":
        """Cancel the running handler, and return its task."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._head_without_offer() + data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
                self._is_in_head = True
                continue
            return

    def _head_without_offer(self) -> bytes:
        """The head of a request that offers another protocol, without the offer.

        The parser would treat the bytes after such a head as the other protocol, but a server may ignore the offer.
        """
        method = self._parser.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserError("this is not a proxy")
        incoming = self._incoming
        kept = {name: text for name, text in incoming.headers.items() if name not in {"upgrade", "connection"}}
        lines = b"".join(f"{name}: {text}\r\n".encode("latin-1") for name, text in kept.items())
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, incoming.target, lines)

    async def _run(self) -> None:
        """Answer the waiting requests."""
        try:
            while self._waiting:
                request, is_kept, is_old = self._waiting.popleft()
                if not self._waiting and not self._has_turn:
                    self._take_turn() if self._unparsed else self._read_on()
                try:
                    response = await self._respond(request)
                    is_last = not is_kept or self._host.is_draining
                    await self._send(request, response, is_last=is_last, is_old=is_old)
                finally:
                    self._host.body_bytes -= len(request.body)
                if self._waiting:
                    # Let other tasks run: a handler that never waits has not done so.
                    await asyncio.sleep(0)
                if is_last:
                    self._waiting.clear()
                    self._is_discarding = True
                    self._close_softly()
                    return
        except asyncio.CancelledError:
            self._transport.abort()
            raise
        finally:
            self._task = None
        self._expect_within(self._limits.idle_s_max)

    async def _respond(self, request: Request) -> Response:
        try:
            return await self._host.handler(request)
        except HttpFault as fault:
            return self._host.refuse(fault)
        except Exception:
            # The connection's other requests must continue.
            self._host.log.exception("request failed", method=request.method, path=request.path)
            return self._host.refuse(HttpFault(500, "internal error: see the server's log"))

    async def _send(self, request: Request, response: Response, *, is_last: bool, is_old: bool) -> None:
        body = response.body
        is_whole = isinstance(body, bytes)
        framing = f"Content-Length: {len(cast(bytes, body))}" if is_whole else "Transfer-Encoding: chunked"
        if response.status in _NO_BODY or (not is_whole and is_old):
            framing = ""
        # Without a length, only the end of the connection ends the body.
        head = response_head(
            response, date=self._host.date(), framing=framing, is_last=is_last or (not is_whole and is_old)
        )
        is_bare = request.method == "HEAD" or response.status in _NO_BODY
        if is_whole:
            self._transport.write(head if is_bare else head + cast(bytes, body))
            await self._drained()
            return
        parts = cast(AsyncIterator[bytes], body)
        async with contextlib.AsyncExitStack() as stack:
            closing = getattr(parts, "aclose", None)
            if closing is not None:
                stack.push_async_callback(closing)
            self._transport.write(head)
            if not is_bare:
                await self._send_parts(parts, is_chunked=not is_old)
        if is_old:
            self._close_softly()

    async def _send_parts(self, parts: AsyncIterator[bytes], *, is_chunked: bool) -> None:
        try:
            async for part in parts:
                if part:
                    self._transport.write(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)
                    await self._drained()
        except Exception:
            # The head is sent, so only the end of the connection can report the failure.
            self._host.log.exception("response ended early")
            self._transport.abort()
            return
        if is_chunked:
            self._transport.write(b"0\r\n\r\n")

    async def _drained(self) -> None:
        """Wait while the client reads slower than we write."""
        if self._writable is not None:
            await self._writable

    def _refuse(self, fault: HttpFault) -> None:
        """Send an error without waiting for the rest of the request, and close."""
        self._is_discarding = True
        self._forget_body()
        if self._task is not None:
            # The response to an earlier request of this connection must come first: an error sent now would be taken
            # for it.
            self._transport.abort()
            return
        self._write_plain(fault)
        self._close_softly()

    def _forget_body(self) -> None:
        self._incoming.body.clear()
        self._host.body_bytes -= self._incoming.body_bytes
        self._incoming.body_bytes = 0

    def _write_plain(self, fault: HttpFault) -> None:
        response = self._host.refuse(fault)
        body = cast(bytes, response.body)
        head = response_head(response, date=self._host.date(), framing=f"Content-Length: {len(body)}", is_last=True)
        self._transport.write(head + body)

    def _close_softly(self) -> None:
        """Send the last bytes and let the client close: closing first could lose the response on its way."""
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._expect_within(self._limits.linger_s_max)
        else:
            self._transport.close()

    def _expect_within(self, seconds: float) -> None:
        self.deadline_s = self._host.loop.time() + seconds


def _too_large(limits: HttpLimits) -> HttpFault:
    return HttpFault(413, f"the request's body has more than {limits.body_bytes_max} bytes")


def _lacks_certificate(encryption: ssl.SSLObject) -> bool:
    """Whether the TLS context chosen by host name requires a client certificate that the handshake did not request."""
    return encryption.context.verify_mode is ssl.CERT_REQUIRED and not encryption.getpeercert()
