"""Servers that fall silent: deadlines and pings end what waits for them."""

import asyncio
import time

from fairlead.rpc import Code
from fairlead.rpc.client import ResponseLost
from fairlead.rpc.frames import (
    ACK,
    PING,
    RST_STREAM,
    ErrorCode,
    frame,
)
from tests.rpc.client.faking import (
    answer,
    call,
    channel_to,
    failed,
    faking,
    silence,
    taken,
)
from tests.rpc.served import Peer, until


async def test_a_call_without_an_answer_ends_at_its_deadline_and_is_reset() -> None:
    resets: list[ErrorCode] = []

    async def listen(peer: Peer) -> None:
        while (read := await peer.read()) is not None:
            if read.kind == RST_STREAM:
                resets.append(read.code)

    async with faking(listen) as fake, channel_to(fake.address) as channel:
        first = asyncio.ensure_future(call(channel, timeout_s=None))
        await until(lambda: channel._current is not None)
        calls = [call(channel, timeout_s=0.02 + number / 1_000) for number in range(20)]
        for failure in await asyncio.gather(*(failed(each) for each in calls)):
            assert (type(failure), failure.code) == (ResponseLost, Code.DEADLINE_EXCEEDED)
        await until(lambda: resets == [ErrorCode.CANCEL] * 20)
        assert channel.stats().calls == 1
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await until(lambda: len(resets) == 21)


async def test_a_half_open_connection_is_found_by_pings_and_its_calls_have_an_unknown_outcome() -> None:
    pings = 0

    async def vanish(peer: Peer) -> None:
        nonlocal pings
        while (read := await peer.read()) is not None:
            pings += read.kind == PING

    limits = {"keepalive_s": 0.05, "keepalive_timeout_s": 0.1}
    async with faking(vanish) as fake, channel_to(fake.address, **limits) as channel:
        failure = await failed(call(channel, timeout_s=None))
        assert (type(failure), failure.code) == (ResponseLost, Code.UNAVAILABLE)
        assert "ping" in failure.message
        assert pings == 1


async def test_a_slow_server_that_answers_pings_is_waited_for() -> None:
    pings = 0
    release = asyncio.Event()

    async def dawdle(peer: Peer) -> None:
        nonlocal pings
        stream_id = await taken(peer)
        while pings < 5:
            read = await peer.read_until(PING)
            pings += 1
            peer.send(frame(PING, ACK, 0, read.payload))
        peer.send(answer(stream_id))
        release.set()
        await silence(peer)

    limits = {"keepalive_s": 0.02, "keepalive_timeout_s": 30.0}
    async with faking(dawdle) as fake, channel_to(fake.address, **limits) as channel:
        assert await call(channel, timeout_s=None) == b"answer"
        assert release.is_set()


async def test_an_event_loop_that_was_busy_reads_before_it_gives_a_server_up() -> None:
    async def reflect(peer: Peer) -> None:
        stream_id = await taken(peer)
        read = await peer.read_until(PING)
        peer.send(frame(PING, ACK, 0, read.payload) + answer(stream_id))
        await peer._writer.drain()
        # The answer is in the socket, but the client's loop, which is this one, was too busy to read it.
        time.sleep(0.3)  # noqa: ASYNC251 - a busy loop is the point
        await silence(peer)

    limits = {"keepalive_s": 0.05, "keepalive_timeout_s": 0.1}
    async with faking(reflect) as fake, channel_to(fake.address, **limits) as channel:
        assert await call(channel, timeout_s=None) == b"answer"


async def test_an_idle_connection_costs_no_pings() -> None:
    kinds: list[int] = []

    async def note(peer: Peer) -> None:
        peer.send(answer(await taken(peer)))
        while (read := await peer.read()) is not None:
            kinds.append(read.kind)

    async with faking(note) as fake, channel_to(fake.address, keepalive_s=0.01) as channel:
        assert await call(channel) == b"answer"
        connection = next(iter(channel._connections))
        await until(lambda: connection._keepalive_timer is None)
        assert PING not in kinds
