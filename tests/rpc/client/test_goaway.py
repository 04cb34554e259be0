"""Servers that refuse calls or take no more of them."""

import asyncio

import pytest

from fairlead.rpc import Code
from fairlead.rpc.client import NotSent, ResponseLost
from fairlead.rpc.frames import (
    DATA,
    PING,
    ErrorCode,
    frame,
    goaway,
    rst_stream,
)
from fairlead.rpc.message import framed
from tests.rpc.client.faking import (
    answer,
    answering,
    call,
    channel_to,
    failed,
    faking,
    headers,
    silence,
    taken,
    trailers,
)
from tests.rpc.served import Peer, until


async def test_a_refused_stream_was_not_processed() -> None:
    async def refuse(peer: Peer) -> None:
        peer.send(rst_stream(await taken(peer), ErrorCode.REFUSED_STREAM))
        await answering(peer)

    async with faking(refuse) as fake, channel_to(fake.address) as channel:
        assert isinstance(await failed(call(channel)), NotSent)
        assert await call(channel) == b"answer"


@pytest.mark.parametrize("code", [ErrorCode.NO_ERROR, ErrorCode.ENHANCE_YOUR_CALM, ErrorCode.INTERNAL_ERROR])
@pytest.mark.parametrize("moment", ["before", "headers", "data", "padding", "after"])
async def test_goaway_at_every_moment_keeps_the_calls_that_it_covers(moment: str, code: ErrorCode) -> None:
    """A covered call continues to its answer; a call above the last id was not processed."""
    away = goaway(1, code)

    async def leave(peer: Peer) -> None:
        first, second = await taken(peer), await taken(peer)
        assert (first, second) == (1, 3)
        parts = [headers(1), frame(DATA, 0, 1, framed(b"answer")[:3]), frame(DATA, 0, 1, framed(b"answer")[3:])]
        parts.append(trailers(1))
        parts.insert(["before", "headers", "data", "padding", "after"].index(moment), away)
        for part in parts:
            peer.send(part)
            await peer._writer.drain()
            await asyncio.sleep(0)
        await silence(peer)

    async with faking(leave) as fake, channel_to(fake.address) as channel:
        covered, above = asyncio.ensure_future(call(channel)), asyncio.ensure_future(call(channel))
        assert isinstance(await failed(above), NotSent)
        assert await covered == b"answer"
        await until(lambda: channel.stats().connections == 0)


async def test_a_second_goaway_and_the_end_of_the_connection_fail_the_call_once() -> None:
    async def leave(peer: Peer) -> None:
        await taken(peer)
        peer.send(goaway(2**31 - 1, ErrorCode.NO_ERROR))
        await taken_or_end(peer)
        peer.send(goaway(1, ErrorCode.NO_ERROR))
        await peer._writer.drain()

    async def taken_or_end(peer: Peer) -> None:
        peer.send(frame(PING, 0, 0, b"12345678"))
        await peer.read_until(PING)

    async with faking(leave) as fake, channel_to(fake.address) as channel:
        failure = await failed(call(channel))
        assert (type(failure), failure.code) == (ResponseLost, Code.UNAVAILABLE)


async def test_a_call_after_goaway_has_a_new_connection_while_the_old_one_ends() -> None:
    release = asyncio.Event()

    async def rotate(peer: Peer) -> None:
        stream_id = await taken(peer)
        peer.send(goaway(stream_id, ErrorCode.NO_ERROR))
        await release.wait()
        peer.send(answer(stream_id))
        await silence(peer)

    async with faking(rotate) as fake, channel_to(fake.address, draining_max=3) as channel:
        calls = []
        for number in range(4):
            calls.append(asyncio.ensure_future(call(channel)))
            await until(lambda number=number: fake.connections == number + 1 and channel._current is None)  # type: ignore[misc]
        # The oldest connection above the bound was cut.
        assert isinstance(await failed(calls[0]), ResponseLost)
        release.set()
        assert await asyncio.gather(*calls[1:]) == [b"answer"] * 3
        await until(lambda: channel.stats().connections == 0)


async def test_a_server_that_complains_of_pings_gets_fewer() -> None:
    async def complain(peer: Peer) -> None:
        stream_id = await taken(peer)
        peer.send(goaway(stream_id, ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings") + answer(stream_id))
        await silence(peer)

    async with faking(complain) as fake, channel_to(fake.address, keepalive_s=5.0) as channel:
        for expected_s in (10.0, 20.0):
            assert await call(channel) == b"answer"
            assert channel._keepalive_s == expected_s
