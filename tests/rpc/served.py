"""A server with handlers for every kind of call, and a raw HTTP/2 peer that can break any rule."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from hpack import Decoder, Encoder

from fairlead.rpc import Call, Code, RpcLimits, RpcServer, RpcStatus
from fairlead.rpc.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    UINT32,
    ErrorCode,
    frame,
)
from fairlead.rpc.message import framed
from tests.patience import PATIENCE_S

ECHO = "/test.Service/Echo"
FAIL = "/test.Service/Fail"
DENY = "/test.Service/Deny"
CRASH = "/test.Service/Crash"
WAIT = "/test.Service/Wait"
ABOUT = "/test.Service/About"
COUNT = "/test.Service/Count"
TALK = "/test.Service/Talk"
LARGE = "/test.Service/Large"

WAIT_S_MAX = PATIENCE_S

# The type stubs of grpc.aio require serializers, which are optional, and lack EOF.
EOF: Any = vars(grpc.aio)["EOF"]


def channel(address: str, *options: tuple[str, int], credentials: grpc.ChannelCredentials | None = None) -> Any:
    """A client of C-core with its own connection: otherwise channels to the same address share one."""
    all_options = [*options, ("grpc.use_local_subchannel_pool", 1)]
    if credentials is not None:
        return grpc.aio.secure_channel(address, credentials, options=all_options)
    return grpc.aio.insecure_channel(address, options=all_options)


@dataclass
class Handlers:
    """Records what the handlers get and how they end."""

    begun: int = 0
    cancelled: int = 0
    sent: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def echo(self, request: bytes, call: Call) -> bytes:
        return request

    async def fail(self, request: bytes, call: Call) -> bytes:
        call.set_trailer("reason", "asked")
        raise RpcStatus(Code.FAILED_PRECONDITION, "100 % naïve\n", b"\x08\x09\x12\x03why")

    async def crash(self, request: bytes, call: Call) -> bytes:
        raise ZeroDivisionError("secret")

    async def deny(self, request: bytes, call: Call) -> bytes:
        raise RpcStatus(Code.PERMISSION_DENIED, "Request unauthorized.")

    async def wait(self, request: bytes, call: Call) -> bytes:
        self.begun += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return request

    async def about(self, request: bytes, call: Call) -> bytes:
        call.set_trailer("seen", "yes")
        call.set_trailer("seen-bin", b"\x00\xff")
        remaining_s = call.remaining_s()
        seen = (call.path, call.peer, dict(call.metadata), dict(call.binary_metadata), remaining_s)
        return repr(seen).encode()

    async def count(self, request: bytes, call: Call) -> AsyncIterator[bytes]:
        number, size = map(int, request.split())
        try:
            for _ in range(number):
                self.sent += 1
                yield bytes(size)
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        if size == 1:
            raise RpcStatus(Code.ABORTED, "after all")

    async def talk(self, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        async for request in requests:
            yield b"heard " + request

    async def large(self, request: bytes, call: Call) -> bytes:
        return bytes(int(request))


@dataclass
class Serving:
    server: RpcServer
    address: str
    handlers: Handlers

    async def until_idle(self) -> None:
        """Waits until no stream or handler is left; handlers of cancelled calls may need a moment."""
        await until(lambda: (self.server.stats().streams, self.server.stats().handlers) == (0, 0))

    async def until_streams(self, number: int) -> None:
        await until(lambda: (self.server.stats().streams, self.server.stats().handlers) == (number, 0))


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not is_true():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(
    limits: RpcLimits | None = None,
    tls: ssl.SSLContext | None = None,
    *,
    stranger_limits: RpcLimits | None = None,
    ages_s: Callable[[], tuple[float, float]] | None = None,
) -> AsyncIterator[Serving]:
    """Fails the test on errors that are not awaited, such as those in callbacks."""
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    handlers = Handlers()
    server = RpcServer("127.0.0.1:0", limits=limits, stranger_limits=stranger_limits, tls=tls, ages_s=ages_s)
    server.add(ECHO, handlers.echo)
    server.add(FAIL, handlers.fail)
    server.add(CRASH, handlers.crash)
    server.add(DENY, handlers.deny)
    server.add(WAIT, handlers.wait)
    server.add(ABOUT, handlers.about)
    server.add(LARGE, handlers.large)
    server.add_stream(COUNT, handlers.count)
    server.add_duplex(TALK, handlers.talk)
    address = await server.start()
    try:
        yield Serving(server, address, handlers)
    finally:
        await server.stop(0)
    assert not failures, failures


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> ErrorCode:
        return ErrorCode(UINT32.unpack_from(self.payload, 4 if self.kind == GOAWAY else 0)[0])


Headers = Iterable[tuple[str, str]]


def request_headers(path: str, extra: Headers = ()) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *extra,
    ]


class Peer:
    """One side of an HTTP/2 connection that sends any frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder()
        self.encoder = Encoder()

    @classmethod
    async def connect(cls, address: str, *, settings: bytes | None = b"") -> Self:
        """`settings`: the payload of the first frame; None: not even the preface is sent."""
        host, _, port = address.rpartition(":")
        peer = cls(*await asyncio.open_connection(host, int(port)))
        if settings is not None:
            peer.send(PREFACE + frame(SETTINGS, 0, 0, settings))
        return peer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._writer.transport.abort()

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def headers(self, stream_id: int, headers: Headers, *, flags: int = END_HEADERS) -> bytes:
        return frame(HEADERS, flags, stream_id, self.encoder.encode(list(headers)))

    def call(self, stream_id: int, path: str, message: bytes = b"", extra: Headers = ()) -> None:
        self.send(self.headers(stream_id, request_headers(path, extra)))
        self.send(frame(DATA, END_STREAM, stream_id, framed(message)))

    async def read(self) -> Frame | None:
        """The next frame; None: the connection has ended."""
        async with asyncio.timeout(WAIT_S_MAX):
            try:
                length, low, kind, flags, stream_id = FRAME_HEADER.unpack(await self._reader.readexactly(9))
                payload = await self._reader.readexactly(length << 8 | low)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
        return Frame(kind, flags, stream_id, payload)

    async def read_until(self, *kinds: int, stream_id: int | None = None) -> Frame:
        """The next frame of one of these kinds; skips others, but decodes every header block."""
        while (read := await self.read()) is not None:
            if read.kind in kinds and stream_id in {None, read.stream_id}:
                return read
            if read.kind in {HEADERS, CONTINUATION}:
                self.fields(read)
        raise AssertionError(f"the connection ended without a frame of {kinds}")

    def fields(self, read: Frame) -> dict[str, str]:
        fields: dict[str, str] = {}
        for name, value in self._decoder.decode(read.payload):
            fields[str(name)] = str(value)
        return fields

    async def goaway(self) -> ErrorCode:
        """The error code with which the server ends the connection; the connection must then close."""
        code = (await self.read_until(GOAWAY)).code
        while await self.read() is not None:
            pass
        return code

    async def reset(self, stream_id: int) -> ErrorCode:
        return (await self.read_until(RST_STREAM, stream_id=stream_id)).code

    async def status(self, stream_id: int) -> int:
        """The gRPC status of a call."""
        while True:
            read = await self.read_until(HEADERS, stream_id=stream_id)
            fields = self.fields(read)
            if read.flags & END_STREAM:
                return int(fields["grpc-status"])


async def assert_alive(address: str) -> None:
    """Check that the server still serves other connections."""
    async with await Peer.connect(address) as peer:
        peer.call(1, ECHO, b"alive")
        assert await peer.status(1) == Code.OK
