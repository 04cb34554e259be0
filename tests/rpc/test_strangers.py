"""Until its caller is identified, a connection has small limits of its own; then it has those of the server."""

import asyncio

from fairlead.rpc import Call, Code, RpcLimits
from fairlead.rpc.frames import DATA, RST_STREAM, SETTING, SETTING_STREAMS_MAX, SETTINGS, UINT32, ErrorCode, frame
from fairlead.rpc.message import framed
from tests.rpc.served import ECHO, WAIT, Peer, Serving, assert_alive, request_headers, serving, until

MIB = 1024 * 1024
LIMITS = RpcLimits(streams_max=100, resets_burst_max=5_000, resets_per_s_max=1, memory_bytes_max=64 * MIB)
STRANGER_LIMITS = RpcLimits(
    streams_max=10, resets_burst_max=500, resets_per_s_max=1, message_bytes_max=MIB, memory_bytes_max=4 * MIB
)
TRUSTED = "/test.Service/Trusted"


def add_trusted(served: Serving) -> None:
    async def trusted(request: bytes, call: Call) -> bytes:
        call.trust()
        return request

    served.server.add(TRUSTED, trusted)


async def trust(peer: Peer, stream_id: int = 1) -> None:
    peer.call(stream_id, TRUSTED)
    assert await peer.status(stream_id) == Code.OK


def reset(peer: Peer, number: int, *, first: int) -> None:
    for n in range(first, first + number):
        peer.send(peer.headers(2 * n + 1, request_headers(WAIT)))
        peer.send(frame(RST_STREAM, 0, 2 * n + 1, UINT32.pack(ErrorCode.CANCEL)))


async def test_an_identified_caller_may_open_more_calls_and_gets_the_new_limit() -> None:
    async with serving(LIMITS, stranger_limits=STRANGER_LIMITS) as served:
        add_trusted(served)
        async with await Peer.connect(served.address) as stranger, await Peer.connect(served.address) as peer:
            for n in range(11):
                stranger.call(2 * n + 1, WAIT)
            # The eleventh call is refused.
            assert await stranger.reset(21) is ErrorCode.REFUSED_STREAM
            assert await streams_max(peer) == 10
            peer.call(1, TRUSTED)
            assert await streams_max(peer) == 100
            for n in range(1, 61):
                peer.call(2 * n + 1, WAIT)
            await until(lambda: served.handlers.begun == 70)
            served.handlers.release.set()
            await served.until_idle()


async def streams_max(peer: Peer) -> int:
    """The limit of streams in the next settings that the server sends."""
    while True:
        payload = (await peer.read_until(SETTINGS)).payload
        for position in range(0, len(payload), SETTING.size):
            name, value = SETTING.unpack_from(payload, position)
            if name == SETTING_STREAMS_MAX:
                return int(value)


async def test_a_stranger_has_a_small_budget_of_resets_and_what_it_spent_stays_spent() -> None:
    async with serving(LIMITS, stranger_limits=STRANGER_LIMITS) as served:
        add_trusted(served)
        async with await Peer.connect(served.address) as peer:
            reset(peer, 400, first=0)
            await trust(peer, 1_001)
            reset(peer, 4_000, first=1_000)
            await trust(peer, 10_001)
            reset(peer, 1_000, first=10_000)
            assert await peer.goaway() is ErrorCode.ENHANCE_YOUR_CALM
        async with await Peer.connect(served.address) as stranger:
            reset(stranger, 600, first=0)
            assert await stranger.goaway() is ErrorCode.ENHANCE_YOUR_CALM
        await assert_alive(served.address)


async def test_strangers_share_a_memory_of_their_own() -> None:
    async with serving(LIMITS, stranger_limits=STRANGER_LIMITS) as served:
        add_trusted(served)
        host = served.server._host
        assert host is not None
        async with await Peer.connect(served.address) as peer:
            await trust(peer)
            strangers = [await Peer.connect(served.address) for _ in range(40)]
            for stranger in strangers:
                for n in range(10):
                    stranger.send(stranger.headers(2 * n + 1, request_headers(ECHO)))
                    # The message is never completed.
                    stranger.send(frame(DATA, 0, 2 * n + 1, framed(bytes(60_000))[:-1][:16_384]))
                    stranger.send(frame(DATA, 0, 2 * n + 1, bytes(16_384)))
                await asyncio.sleep(0)
            await until(lambda: host.stranger_memory.used_bytes > 4 * MIB)
            assert host.stranger_memory.used_bytes <= 9 * MIB
            assert host.memory.used_bytes < MIB
            # The identified caller is not held up, and its messages count elsewhere.
            peer.call(3, ECHO, bytes(15_000))
            assert await peer.status(3) == Code.OK
            for stranger in strangers:
                await stranger.__aexit__(None, None, None)
        await until(lambda: served.server.stats().connections == 0)
        assert (host.memory.used_bytes, host.stranger_memory.used_bytes) == (0, 0)


async def test_the_bytes_of_a_connection_move_with_it() -> None:
    async with serving(LIMITS, stranger_limits=STRANGER_LIMITS) as served:
        add_trusted(served)
        host = served.server._host
        assert host is not None
        async with await Peer.connect(served.address) as peer:
            peer.send(peer.headers(1, request_headers(ECHO)))
            peer.send(frame(DATA, 0, 1, framed(bytes(60_000))[:16_384]))
            await until(lambda: host.stranger_memory.used_bytes > 16_000)
            held_bytes = host.stranger_memory.used_bytes
            await trust(peer, 3)
            assert host.stranger_memory.used_bytes == 0
            assert host.memory.used_bytes >= held_bytes
        await until(lambda: served.server.stats().connections == 0)
        assert (host.memory.used_bytes, host.stranger_memory.used_bytes) == (0, 0)
