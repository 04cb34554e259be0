"""The HTTP server: requests, responses, and the limits on its clients."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

from fairlead.http import HttpFault, HttpLimits, Request, Response, bound_socket
from fairlead.http.server import HttpServer
from tests.frontend.http.client import Client
from tests.patience import PATIENCE_S

Handle = Callable[[Request], Awaitable[Response]]


async def echo(request: Request) -> Response:
    text = f"{request.method} {request.path} {request.query} ".encode() + request.body
    return Response(200, text, "text/plain")


@asynccontextmanager
async def serving(handle: Handle = echo, **limits: float) -> AsyncIterator[tuple[HttpServer, int]]:
    """A server on a free port."""
    server = HttpServer(handle, limits=HttpLimits(**limits))  # type: ignore[arg-type] # Sizes are whole numbers.
    bound = bound_socket("127.0.0.1", 0, key="listen")
    await server.start(bound)
    try:
        yield server, bound.getsockname()[1]
    finally:
        await server.stop(0)


async def closed(client: Client) -> bytes:
    """The bytes that come before the server closes."""
    async with asyncio.timeout(PATIENCE_S):
        return await client.reader.read()


async def test_a_connection_serves_many_requests() -> None:
    async with serving() as (_, port), Client(port) as client:
        for number in range(3):
            reply = await client.send("POST", f"/path?n={number}", b"body")
            assert reply.body == f"POST /path n={number} body".encode()
            assert reply.headers["x-content-type-options"] == "nosniff"
        assert (await client.send("HEAD", "/path")).headers["content-length"] == str(len(b"HEAD /path  "))
        assert (await client.send("GET", "/", connection="close")).headers["connection"] == "close"
        assert await closed(client) == b""


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def handle(request: Request) -> Response:
        if request.path == "/0":
            await asyncio.sleep(0)
        return await echo(request)

    async with serving(handle, pipelined_max=2) as (_, port), Client(port) as client:
        client.writer.write(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(20)))
        assert [(await client.read()).body.split()[1] for _ in range(20)] == [b"/%d" % number for number in range(20)]


async def test_a_chunked_body_is_put_together() -> None:
    async with serving() as (_, port), Client(port) as client:
        client.writer.write(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        assert (await client.read()).body == b"POST /  abcde"


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    async with serving() as (_, port), Client(port) as client:
        client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(b"ab")
        assert (await client.read()).body == b"POST /  ab"


async def test_an_offer_of_another_protocol_is_declined() -> None:
    """Java's HTTP client offers HTTP/2 with every first request."""
    upgrade = b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
    async with serving() as (_, port), Client(port) as client:
        client.writer.write(b"GET /a HTTP/1.1\r\n" + upgrade + b"\r\n")
        assert (await client.read()).body == b"GET /a  "
        client.writer.write(b"POST /b HTTP/1.1\r\n" + upgrade + b"Content-Length: 2\r\n\r\nxy")
        assert (await client.read()).body == b"POST /b  xy"
        assert (await client.send("GET", "/c")).body == b"GET /c  "


async def test_a_stream_is_sent_in_chunks_and_ended_with_its_client() -> None:
    ended = asyncio.Event()
    more = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await more.wait()
            yield b"second"
        finally:
            ended.set()

    async def handle(_: Request) -> Response:
        return Response(200, parts(), "text/event-stream")

    async with serving(handle) as (_, port):
        async with Client(port) as client:
            client.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                await client.reader.readuntil(b"5\r\nfirst\r\n")
            more.set()
            async with asyncio.timeout(PATIENCE_S):
                await client.reader.readuntil(b"6\r\nsecond\r\n0\r\n\r\n")
        ended.clear()
        more.clear()
        async with Client(port) as client:
            client.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                await client.reader.readuntil(b"first")
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()


async def test_a_stream_for_an_old_client_ends_with_the_connection() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"first "
        yield b"second"

    async def handle(_: Request) -> Response:
        return Response(200, parts(), "text/plain")

    async with serving(handle) as (_, port), Client(port) as client:
        client.writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert (await client.read()).body == b"first second"


async def test_a_handler_is_cancelled_when_its_client_disconnects() -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(_: Request) -> Response:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    async with serving(handle) as (_, port), asyncio.timeout(PATIENCE_S):
        async with Client(port) as client:
            client.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await began.wait()
        await cancelled.wait()


async def test_a_failing_handler_is_answered_with_an_error_and_the_connection_stays_open() -> None:
    async def handle(request: Request) -> Response:
        if request.path == "/fault":
            raise HttpFault(418, "a teapot")
        raise RuntimeError("secret")

    async with serving(handle) as (_, port), Client(port) as client:
        failed = await client.send("GET", "/failure")
        assert (failed.status, b"secret" in failed.body) == (500, False)
        assert (await client.send("GET", "/fault")).body == b"a teapot\n"


async def test_a_head_that_is_too_large_is_refused() -> None:
    async with serving(head_bytes_max=1000) as (_, port), Client(port) as client:
        client.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 2000)
        assert (await client.read()).status == 431
        assert await closed(client) == b""


async def test_a_body_that_is_too_large_is_refused_before_it_is_sent() -> None:
    async with serving(body_bytes_max=10) as (_, port):
        async with Client(port) as client:
            client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\nExpect: 100-continue\r\n\r\n")
            assert (await client.read()).status == 413
        async with Client(port) as client:
            client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n01234567890")
            assert (await client.read()).status == 413
        async with Client(port) as client:
            assert (await client.send("POST", "/", b"0123456789")).status == 200


async def test_bodies_of_all_clients_together_are_bounded() -> None:
    async with serving(bodies_bytes_max=10) as (_, port), Client(port) as one, Client(port) as other:
        one.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n01234567")
        await one.writer.drain()
        while (await other.send("POST", "/", b"012")).status == 200:  # noqa: ASYNC110 - until the other bytes have come
            await asyncio.sleep(0)
        one.writer.write(b"8")
        assert (await one.read()).status == 200
        async with Client(port) as third:
            assert (await third.send("POST", "/", b"0123456789")).status == 200


async def test_requests_that_are_not_http_are_refused() -> None:
    async with serving() as (_, port):
        for wrong in (
            b"\x16\x03\x01 not tls here\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        ):
            async with Client(port) as client:
                client.writer.write(wrong)
                assert (await client.read()).status == 400


async def test_a_request_with_two_lengths_of_its_body_is_refused() -> None:
    """A proxy that trusts the other length would see another request in the same bytes (request smuggling)."""
    async with serving() as (_, port), Client(port) as client:
        client.writer.write(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /evil"
        )
        assert (await client.read()).status == 400


async def test_slow_and_idle_clients_are_cut_off() -> None:
    async with serving(request_s_max=0.05, idle_s_max=0.05) as (server, port):
        async with Client(port) as client:
            client.writer.write(b"GET / HTTP/1.1\r\nHost")
            assert await closed(client) == b""
        async with Client(port) as client:
            assert await closed(client) == b""
        async with Client(port) as client:
            assert (await client.send("GET", "/")).status == 200
            assert await closed(client) == b""
        assert server.connections == 0


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    async def handle(_: Request) -> Response:
        return Response(200, b"x" * (32 << 20))

    async with serving(handle, write_s_max=0.05) as (server, port), Client(port) as client:
        cast(asyncio.Transport, client.writer.transport).pause_reading()
        client.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            while server.connections == 0:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0)
            while server.connections:  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.01)


async def test_connections_are_bounded() -> None:
    async with serving(connections_max=1) as (_, port), Client(port) as first:
        assert (await first.send("GET", "/")).status == 200
        async with Client(port) as second:
            assert (await second.read()).status == 503
        assert (await first.send("GET", "/")).status == 200


async def test_stopping_answers_open_requests_and_closes_idle_connections() -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(request: Request) -> Response:
        began.set()
        await go_on.wait()
        return await echo(request)

    async with serving(handle) as (server, port), Client(port) as busy, Client(port) as idle:
        busy.writer.write(b"GET /open HTTP/1.1\r\nHost: x\r\n\r\n")
        await began.wait()
        server.drain()
        assert await closed(idle) == b""
        stopping = asyncio.create_task(server.stop(PATIENCE_S))
        go_on.set()
        reply = await busy.read()
        assert (reply.body, reply.headers["connection"]) == (b"GET /open  ", "close")
        busy.writer.close()
        await stopping
