"""A server that sends the bytes of a script, whole or broken."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from fairlead.rpc.client import CallFailed, Channel, ChannelLimits
from fairlead.rpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame
from fairlead.rpc.header_block import literal
from fairlead.rpc.message import framed
from tests.patience import PATIENCE_S
from tests.rpc.served import Peer

PATH = "/test.Service/Method"
RESPONSE_BLOCK = b"\x88" + literal(b"content-type", b"application/grpc+proto")
OK_BLOCK = literal(b"grpc-status", b"0")

Script = Callable[[Peer], Awaitable[None]]


@dataclass
class Fake:
    """The requests and connections that the fake server saw."""

    address: str = ""
    connections: int = 0
    peers: list[Peer] = field(default_factory=list)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)


@asynccontextmanager
async def faking(script: Script, *, settings: bytes | None = b"") -> AsyncIterator[Fake]:
    """Run `script` for each connection; if `settings` is None, only `script` sends SETTINGS."""
    fake = Fake()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fake.connections += 1
        task = asyncio.current_task()
        assert task is not None
        fake.tasks.add(task)
        peer = Peer(reader, writer)
        fake.peers.append(peer)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                assert await reader.readexactly(len(PREFACE)) == PREFACE
                if settings is not None:
                    peer.send(frame(SETTINGS, 0, 0, settings))
                await script(peer)
        finally:
            fake.tasks.discard(task)
            peer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    fake.address = f"{host}:{port}"
    try:
        yield fake
    finally:
        server.close()
        for task in tuple(fake.tasks):
            task.cancel()
        await asyncio.gather(*fake.tasks, return_exceptions=True)


async def taken(peer: Peer) -> int:
    """Read frames until a request is complete; return its stream."""
    while (read := await peer.read()) is not None:
        if read.kind in {HEADERS, DATA} and read.flags & END_STREAM:
            return read.stream_id
    raise ConnectionError("the client has closed the connection")


def headers(stream_id: int, block: bytes = RESPONSE_BLOCK, *, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream_id, block)


def data(stream_id: int, message: bytes = b"answer", *, flags: int = 0) -> bytes:
    return frame(DATA, flags, stream_id, framed(message))


def trailers(stream_id: int, block: bytes = OK_BLOCK) -> bytes:
    return frame(HEADERS, END_HEADERS | END_STREAM, stream_id, block)


def answer(stream_id: int, message: bytes = b"answer", block: bytes = RESPONSE_BLOCK) -> bytes:
    return headers(stream_id, block) + data(stream_id, message) + trailers(stream_id)


async def answering(peer: Peer) -> None:
    """Answer every request."""
    while True:
        peer.send(answer(await taken(peer)))


async def silence(peer: Peer) -> None:
    """Read, and never answer."""
    while await peer.read() is not None:
        pass


@asynccontextmanager
async def channel_to(address: str, **limits: Any) -> AsyncIterator[Channel]:
    """A channel; unhandled errors in the background, and calls or connections that are left, fail the test."""
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    channel = Channel(address, limits=ChannelLimits(**limits))
    try:
        yield channel
    finally:
        await channel.close()
    assert (channel.stats().calls, channel.stats().connections) == (0, 0)
    assert not failures, failures


async def failed(calling: Awaitable[Any]) -> CallFailed:
    """The failure of a call, which must end."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            got = await calling
        except CallFailed as failure:
            return failure
    raise AssertionError(f"the call succeeded with {got!r}")


async def call(channel: Channel, message: bytes = b"request", *, timeout_s: float | None = 30.0) -> bytes:
    return await channel.unary(PATH, message, timeout_s=timeout_s)


async def all_of(received: AsyncIterator[bytes]) -> tuple[list[bytes], CallFailed | None]:
    """The messages of a stream, and its failure."""
    messages: list[bytes] = []
    try:
        async for message in received:
            messages.append(message)  # noqa: PERF401 - what came before a failure counts
    except CallFailed as failure:
        return messages, failure
    return messages, None
