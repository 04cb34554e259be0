"""Servers that read slowly or not at all, and limits that they set."""

import asyncio

from fairlead.rpc import Code
from fairlead.rpc.client import NotSent, ResponseLost
from fairlead.rpc.frames import (
    DATA,
    END_STREAM,
    SETTING,
    SETTING_INITIAL_WINDOW,
    SETTING_STREAMS_MAX,
    SETTINGS,
    frame,
    window_update,
)
from fairlead.rpc.message import framed
from tests.rpc.client.faking import (
    answer,
    answering,
    call,
    channel_to,
    failed,
    faking,
    silence,
    taken,
)
from tests.rpc.served import Peer, until


async def test_a_request_waits_for_window_and_ends_at_its_deadline_without_it() -> None:
    message = bytes(200_000)

    async with faking(silence) as fake, channel_to(fake.address) as channel:
        failure = await failed(call(channel, message, timeout_s=0.1))
        assert (type(failure), failure.code) == (ResponseLost, Code.DEADLINE_EXCEEDED)
        connection = next(iter(channel._connections))
        assert connection._outbox.waiting_bytes == 0

    async def trickle(peer: Peer) -> None:
        size = 0
        is_last = False
        while not is_last:
            read = await peer.read_until(DATA)
            size += len(read.payload)
            is_last = bool(read.flags & END_STREAM)
            if not is_last:
                peer.send(window_update(0, len(read.payload)) + window_update(read.stream_id, len(read.payload)))
        assert size == len(framed(message))
        peer.send(answer(1))
        await silence(peer)

    async with faking(trickle) as fake, channel_to(fake.address) as channel:
        assert await call(channel, message) == b"answer"


async def test_starved_requests_are_bounded_in_memory() -> None:
    async with (
        faking(silence, settings=SETTING.pack(SETTING_INITIAL_WINDOW, 0)) as fake,
        channel_to(fake.address, message_bytes_max=1_000_000, send_bytes_max=3_000_000) as channel,
    ):
        calls = [asyncio.ensure_future(call(channel, bytes(1_000_000), timeout_s=60)) for _ in range(10)]
        failures = await asyncio.gather(*(failed(each) for each in calls[4:]))
        assert {(type(failure), failure.code) for failure in failures} == {(NotSent, Code.RESOURCE_EXHAUSTED)}
        for each in calls[:4]:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert next(iter(channel._connections))._outbox.waiting_bytes == 0


async def test_a_server_that_reads_nothing_makes_calls_wait_unsent() -> None:
    stop = asyncio.Event()

    async def ignore(peer: Peer) -> None:
        peer.send(window_update(0, 2**30))
        peer._reader._transport.pause_reading()  # type: ignore[attr-defined]
        await stop.wait()

    async with (
        faking(ignore, settings=SETTING.pack(SETTING_INITIAL_WINDOW, 2**20)) as fake,
        channel_to(fake.address, keepalive_s=600.0) as channel,
    ):
        calls = [asyncio.ensure_future(call(channel, bytes(100_000))) for _ in range(100)]
        await until(lambda: bool(channel._connections) and next(iter(channel._connections))._outbox.is_paused)
        late = [asyncio.ensure_future(call(channel, bytes(100))) for _ in range(8_000)]
        await until(lambda: channel.stats().calls == 8_100)
        stop.set()
        failures = await asyncio.gather(*(failed(each) for each in (*calls, *late)))
        # Requests that waited for room in the socket were surely not sent.
        assert {type(failure) for failure in failures[-len(late) :]} == {NotSent}
        assert {type(failure) for failure in failures[:5]} == {ResponseLost}


async def test_a_lower_limit_of_streams_and_a_later_raise_are_obeyed() -> None:
    seen: list[int] = []

    async def meter(peer: Peer) -> None:
        while len(seen) < 2:
            seen.append(await taken(peer))
        peer.send(frame(SETTINGS, 0, 0, SETTING.pack(SETTING_STREAMS_MAX, 5)))
        while len(seen) < 5:
            seen.append(await taken(peer))
        peer.send(b"".join(answer(stream_id) for stream_id in reversed(seen)))
        await answering(peer)

    async with (
        faking(meter, settings=SETTING.pack(SETTING_STREAMS_MAX, 2)) as fake,
        channel_to(fake.address) as channel,
    ):
        assert await asyncio.gather(*(call(channel) for _ in range(8))) == [b"answer"] * 8
        assert seen == [1, 3, 5, 7, 9]
