"""Clients that are expensive rather than wrong: one connection never holds the event loop or the memory."""

import asyncio

from fairlead.http import Request, Response
from tests.frontend.http.client import Client
from tests.http.test_server import echo, serving
from tests.patience import until

PIPELINED = 5_000


async def test_a_flood_of_pipelined_requests_is_answered_one_by_one_while_others_get_their_turn() -> None:
    answered: list[int] = []

    async def handle(request: Request) -> Response:
        # This handler never waits, so only the server can let other tasks run.
        answered.append(1)
        return await echo(request)

    async with serving(handle) as (_, port), Client(port) as client, Client(port) as bystander:
        await bystander.send("GET", "/first")
        client.writer.write(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n" * PIPELINED)
        largest = 0
        while len(answered) <= PIPELINED:
            before = len(answered)
            await asyncio.sleep(0)
            largest = max(largest, len(answered) - before)
            if before == 100:
                assert (await bystander.send("GET", "/second")).status == 200
                assert len(answered) < PIPELINED / 2
                break
        assert largest <= 2
        for _ in range(PIPELINED):
            assert (await client.read()).status == 200


async def test_a_body_in_tiny_chunks_is_parsed_in_turns_and_takes_no_more_memory_than_its_bytes() -> None:
    async with serving() as (_, port), Client(port) as client, Client(port) as bystander:
        client.writer.write(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"2\r\nab\r\n" * 50_000
        )
        assert (await bystander.send("GET", "/")).status == 200
        client.writer.write(b"0\r\n\r\n")
        assert len((await client.read()).body) == len(b"POST /  ") + 100_000


async def test_requests_with_too_many_header_fields_are_refused() -> None:
    async with serving() as (_, port), Client(port) as client:
        client.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 300 + b"\r\n")
        reply = await client.read()
        assert reply.status == 431
        assert b"header fields" in reply.body


async def test_a_request_that_is_never_finished_is_cut_off() -> None:
    async with serving(request_s_max=0.2) as (server, port), Client(port) as client:
        client.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        await until(lambda: server.connections == 0)
