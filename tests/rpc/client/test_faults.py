"""Servers that break off or break the rules: every call ends, and says what its caller may conclude."""

import asyncio
import gc
import tracemalloc

import pytest

from fairlead.rpc import Code
from fairlead.rpc.client import NotSent, RemoteStatus, ResponseLost
from fairlead.rpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTING_ENABLE_PUSH,
    SETTING_FRAME_BYTES_MAX,
    SETTING_INITIAL_WINDOW,
    SETTINGS,
    UINT32,
    WINDOW_UPDATE,
    ErrorCode,
    frame,
    goaway,
    rst_stream,
    window_update,
)
from fairlead.rpc.header_block import literal
from fairlead.rpc.message import framed
from tests.rpc.client.faking import (
    OK_BLOCK,
    PATH,
    RESPONSE_BLOCK,
    all_of,
    answer,
    answering,
    call,
    channel_to,
    data,
    failed,
    faking,
    headers,
    silence,
    taken,
    trailers,
)
from tests.rpc.served import Peer, until

ANSWER = answer(1)


@pytest.mark.parametrize("sent_bytes", range(0, len(ANSWER), 3))
async def test_a_server_that_breaks_off_within_its_answer_leaves_the_outcome_unknown(sent_bytes: int) -> None:
    async def break_off(peer: Peer) -> None:
        await taken(peer)
        peer.send(ANSWER[:sent_bytes])
        await peer._writer.drain()

    async with faking(break_off) as fake, channel_to(fake.address) as channel:
        failure = await failed(call(channel))
        assert (type(failure), failure.code) == (ResponseLost, Code.UNAVAILABLE)


@pytest.mark.parametrize("piece_bytes", [1, 7, 100])
async def test_an_answer_in_pieces_is_whole(piece_bytes: int) -> None:
    async def answer_slowly(peer: Peer) -> None:
        await taken(peer)
        for start in range(0, len(ANSWER), piece_bytes):
            peer.send(ANSWER[start : start + piece_bytes])
            await peer._writer.drain()
            await asyncio.sleep(0)
        await silence(peer)

    async with faking(answer_slowly) as fake, channel_to(fake.address) as channel:
        assert await call(channel) == b"answer"


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"SSH-2.0-OpenSSH_9.6\r\n" + bytes(100),
        b"\xff" * 100,
        frame(PING, 0, 0, bytes(8)),
        frame(SETTINGS, ACK, 0),
        frame(SETTINGS, 0, 0, bytes(5)),
        frame(SETTINGS, 0, 3),
        frame(SETTINGS, 0, 0, SETTING.pack(SETTING_INITIAL_WINDOW, 2**31)),
        frame(SETTINGS, 0, 0, SETTING.pack(SETTING_FRAME_BYTES_MAX, 1)),
        frame(SETTINGS, 0, 0, SETTING.pack(SETTING_ENABLE_PUSH, 7)),
        goaway(0, ErrorCode.NO_ERROR),
        b"",
    ],
)
async def test_a_server_that_does_not_begin_with_settings_got_no_call(sent: bytes) -> None:
    async def babble(peer: Peer) -> None:
        peer.send(sent)
        await peer._writer.drain()
        if sent:
            await silence(peer)

    async with faking(babble, settings=None) as fake, channel_to(fake.address, connect_s_max=1.0) as channel:
        failure = await failed(call(channel))
        assert (type(failure), failure.code) == (NotSent, Code.UNAVAILABLE)


async def test_a_server_that_accepts_and_says_nothing_got_no_call() -> None:
    async with faking(silence, settings=None) as fake, channel_to(fake.address, connect_s_max=0.1) as channel:
        failure = await failed(call(channel))
        assert (type(failure), failure.code) == (NotSent, Code.UNAVAILABLE)
        assert "0.1 s" in failure.message
    async with faking(silence, settings=None) as fake, channel_to(fake.address, connect_s_max=60.0) as channel:
        failure = await failed(call(channel, timeout_s=0.05))
        assert (type(failure), failure.code) == (NotSent, Code.DEADLINE_EXCEEDED)
        waiting = asyncio.ensure_future(call(channel))
        await until(lambda: channel.stats().calls == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


# Bytes that end the connection: the outcome of the call is unknown.
BROKEN = [
    frame(DATA, 0, 0, b"x"),
    frame(HEADERS, END_HEADERS, 0, RESPONSE_BLOCK),
    answer(2),
    answer(3),
    answer(0),
    frame(DATA, 0, 99, b"x"),
    rst_stream(2, ErrorCode.CANCEL),
    rst_stream(101, ErrorCode.CANCEL),
    frame(RST_STREAM, 0, 0, bytes(4)),
    frame(RST_STREAM, 0, 1, bytes(3)),
    headers(1) + frame(DATA, PADDED, 1, b"\x09abc"),
    frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
    frame(HEADERS, END_HEADERS, 1, b"\xc8"),
    frame(CONTINUATION, END_HEADERS, 1, RESPONSE_BLOCK),
    frame(HEADERS, 0, 1, RESPONSE_BLOCK) + frame(PING, 0, 0, bytes(8)),
    frame(HEADERS, 0, 1, RESPONSE_BLOCK) + frame(CONTINUATION, 0, 1) * 100,
    frame(HEADERS, 0, 1, RESPONSE_BLOCK) + frame(CONTINUATION, 0, 1, bytes(16_384)) * 9,
    # A trailer that is far too large.
    headers(1) + data(1) + frame(HEADERS, 0, 1, OK_BLOCK) + frame(CONTINUATION, 0, 1, bytes(16_384)) * 20,
    headers(1, b"\x00\x01a\x7f\xff\x7f" + bytes(100)),
    frame(PRIORITY, 0, 0, bytes(5)),
    frame(PRIORITY, 0, 1, UINT32.pack(1) + b"\x00"),
    frame(SETTINGS, 0, 0, bytes(7)),
    frame(PUSH_PROMISE, END_HEADERS, 1, UINT32.pack(2) + RESPONSE_BLOCK),
    frame(PING, 0, 1, bytes(8)),
    frame(PING, 0, 0, bytes(9)),
    frame(GOAWAY, 0, 1, bytes(8)),
    frame(GOAWAY, 0, 0, bytes(7)),
    frame(WINDOW_UPDATE, 0, 0, bytes(4)),
    frame(WINDOW_UPDATE, 0, 0, bytes(3)),
    window_update(0, 2**31 - 1),
    window_update(99, 1),
    # Frames above the size that we accept, and garbage.
    b"\x00\x40\x01\x00\x00\x00\x00\x00\x01" + bytes(16_385),
    b"\xff\xff\xff\x01\x04\x00\x00\x00\x01",
    b"\xff" * 200,
    b"HTTP/1.1 500 Internal Server Error\r\n\r\n",
]


@pytest.mark.parametrize("sent", BROKEN)
async def test_a_broken_rule_of_the_connection_ends_its_calls_and_the_next_call_has_a_new_one(sent: bytes) -> None:
    is_broken = True

    async def misbehave(peer: Peer) -> None:
        nonlocal is_broken
        if is_broken:
            await taken(peer)
            is_broken = False
            peer.send(sent)
            await silence(peer)
        await answering(peer)

    async with faking(misbehave) as fake, channel_to(fake.address) as channel:
        failure = await failed(call(channel))
        assert (type(failure), failure.code) == (ResponseLost, Code.UNAVAILABLE)
        assert await call(channel) == b"answer"


# Bytes that end one call; the other calls of the connection continue.
BROKEN_CALLS: list[tuple[bytes, Code]] = [
    (data(1), Code.INTERNAL),
    (headers(1) + headers(1), Code.INTERNAL),
    (headers(1, literal(b"content-type", b"application/grpc")), Code.INTERNAL),
    (headers(1) + frame(DATA, END_STREAM, 1, framed(b"x")), Code.INTERNAL),
    (headers(1) + data(1) + data(1), Code.INTERNAL),
    (headers(1) + trailers(1), Code.INTERNAL),
    (headers(1) + frame(DATA, 0, 1, framed(b"xxx")[:-1]) + trailers(1), Code.INTERNAL),
    (headers(1) + frame(DATA, 0, 1, b"\x01" + framed(b"xxx")[1:]) + trailers(1), Code.INTERNAL),
    (headers(1, RESPONSE_BLOCK + literal(b"grpc-encoding", b"snappy")), Code.INTERNAL),
    (headers(1) + data(1) + trailers(1, literal(b"x", b"y")), Code.INTERNAL),
    (trailers(1, b""), Code.INTERNAL),
    (headers(1) + frame(DATA, 0, 1, b"\x00\xff\xff\xff\xff"), Code.RESOURCE_EXHAUSTED),
    (headers(1) + frame(DATA, 0, 1, bytes(16_000)) * 5, Code.INTERNAL),
    (frame(WINDOW_UPDATE, 0, 1, bytes(4)), Code.INTERNAL),
    (window_update(1, 2**31 - 1), Code.INTERNAL),
    (rst_stream(1, ErrorCode.INTERNAL_ERROR), Code.INTERNAL),
    (rst_stream(1, ErrorCode.CANCEL), Code.CANCELLED),
    (rst_stream(1, ErrorCode.ENHANCE_YOUR_CALM), Code.RESOURCE_EXHAUSTED),
    (frame(RST_STREAM, 0, 1, UINT32.pack(0xDEAD)), Code.INTERNAL),
    (headers(1) + rst_stream(1, ErrorCode.REFUSED_STREAM), Code.INTERNAL),
    (headers(1, literal(b":status", b"503")), Code.UNAVAILABLE),
    (headers(1, literal(b":status", b"401")), Code.UNAUTHENTICATED),
    (trailers(1, literal(b":status", b"404")), Code.UNIMPLEMENTED),
    (trailers(1, literal(b":status", b"302")), Code.UNKNOWN),
    (headers(1, b"\x88" + literal(b"content-type", b"text/html")), Code.UNKNOWN),
]


@pytest.mark.parametrize(("sent", "code"), BROKEN_CALLS)
async def test_a_broken_rule_of_a_stream_ends_only_its_call(sent: bytes, code: Code) -> None:
    async def misbehave(peer: Peer) -> None:
        assert await taken(peer) == 1
        peer.send(sent)
        await answering(peer)

    async with faking(misbehave) as fake, channel_to(fake.address) as channel:
        failure = await failed(call(channel))
        assert (type(failure), failure.code) == (ResponseLost, code)
        assert await call(channel) == b"answer"
        assert fake.connections == 1


async def test_a_trailer_above_the_limit_ends_the_call_but_not_the_connection() -> None:
    block = OK_BLOCK + b"".join(literal(b"x-%d" % number, b"y" * 7_000) for number in range(6))

    async def exaggerate(peer: Peer) -> None:
        stream_id = await taken(peer)
        peer.send(headers(stream_id) + data(stream_id))
        peer.send(frame(HEADERS, END_STREAM, stream_id, block[:16_000]))
        peer.send(frame(CONTINUATION, 0, stream_id, block[16_000:32_000]))
        peer.send(frame(CONTINUATION, END_HEADERS, stream_id, block[32_000:]))
        await answering(peer)

    async with faking(exaggerate) as fake, channel_to(fake.address) as channel:
        failure = await failed(call(channel))
        assert (type(failure), failure.code) == (ResponseLost, Code.RESOURCE_EXHAUSTED)
        assert await call(channel) == b"answer"
        assert fake.connections == 1


@pytest.mark.parametrize(
    ("block", "code", "message"),
    [
        (literal(b"grpc-status", b"5") + literal(b"grpc-message", b"100%25 %E2%9C%93"), Code.NOT_FOUND, "100% ✓"),
        (literal(b"grpc-status", b"99"), Code.UNKNOWN, ""),
        (literal(b"grpc-status", b"x"), Code.UNKNOWN, ""),
        (literal(b"grpc-status", b"-1") + literal(b"grpc-message", b"%zz%"), Code.UNKNOWN, "%zz%"),
        (
            literal(b"grpc-status", b"3") + literal(b"a-bin", b"!!") + literal(b"b-bin", b"AAE"),
            Code.INVALID_ARGUMENT,
            "",
        ),
    ],
)
async def test_any_status_is_read(block: bytes, code: Code, message: str) -> None:
    async def refuse(peer: Peer) -> None:
        peer.send(trailers(await taken(peer), RESPONSE_BLOCK + block))
        peer.send(headers(await taken(peer)) + data(3) + trailers(3, block))
        await silence(peer)

    async with faking(refuse) as fake, channel_to(fake.address) as channel:
        for _ in range(2):
            failure = await failed(call(channel))
            assert isinstance(failure, RemoteStatus)
            assert (failure.code, failure.message) == (code, message)
            if code is Code.INVALID_ARGUMENT:
                assert failure.trailers["b-bin"] == b"\x00\x01"
                assert "a-bin" not in failure.trailers


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, 0, 0, bytes(8)) * 5_000,
        frame(SETTINGS, 0, 0) * 5_000,
        frame(0x55, 0, 0, b"?") * 5_000,
        frame(PRIORITY, 0, 1, bytes(5)) * 5_000,
        headers(1) + frame(DATA, 0, 1) * 5_000,
        answer(1) + rst_stream(1, ErrorCode.CANCEL) * 6_000,
    ],
)
async def test_a_flood_of_frames_that_belong_to_no_call_ends_the_connection(flood: bytes) -> None:
    async def drown(peer: Peer) -> None:
        await taken(peer)
        peer.send(flood)
        await silence(peer)

    async with faking(drown) as fake, channel_to(fake.address) as channel:
        (ended,) = await asyncio.gather(call(channel), return_exceptions=True)
        assert ended == b"answer" or isinstance(ended, ResponseLost)
        await until(lambda: channel.stats().connections == 0)


async def test_answers_to_calls_that_were_given_up_are_ignored() -> None:
    go = asyncio.Event()

    async def late(peer: Peer) -> None:
        stream_id = await taken(peer)
        await go.wait()
        peer.send(answer(stream_id) + window_update(stream_id, 5) + rst_stream(stream_id, ErrorCode.NO_ERROR))
        await answering(peer)

    async with faking(late) as fake, channel_to(fake.address) as channel:
        assert (await failed(call(channel, timeout_s=0.02))).code is Code.DEADLINE_EXCEEDED
        go.set()
        assert await call(channel) == b"answer"
        assert fake.connections == 1


async def test_padding_priority_continuation_and_informational_headers_are_understood() -> None:
    async def embellish(peer: Peer) -> None:
        stream_id = await taken(peer)
        peer.send(headers(stream_id, literal(b":status", b"103")))
        peer.send(frame(HEADERS, 0, stream_id, RESPONSE_BLOCK[:5]))
        peer.send(frame(CONTINUATION, END_HEADERS, stream_id, RESPONSE_BLOCK[5:]))
        peer.send(frame(0x77, 0, stream_id, b"new"))
        peer.send(frame(DATA, PADDED, stream_id, b"\x07" + framed(b"answer") + bytes(7)))
        peer.send(frame(PRIORITY, 0, stream_id, bytes(5)))
        peer.send(trailers(stream_id))
        await silence(peer)

    async with faking(embellish) as fake, channel_to(fake.address) as channel:
        assert await call(channel) == b"answer"


async def test_a_stream_that_breaks_off_yields_the_messages_that_came_before() -> None:
    async def stream(peer: Peer) -> None:
        stream_id = await taken(peer)
        peer.send(headers(stream_id) + data(stream_id, b"1") + data(stream_id, b"2"))
        await peer._writer.drain()

    async with faking(stream) as fake, channel_to(fake.address) as channel:
        received, failure = await all_of(channel.stream(PATH, b""))
        assert (received, type(failure)) == ([b"1", b"2"], ResponseLost)


async def test_faults_leave_no_memory_behind() -> None:
    number = 0

    async def misbehave(peer: Peer) -> None:
        nonlocal number
        await taken(peer)
        number += 1
        peer.send(BROKEN[number % len(BROKEN)])
        await peer._writer.drain()

    async with faking(misbehave) as fake, channel_to(fake.address, reconnect_max_s=0.001) as channel:

        async def fail_often(times: int) -> int:
            for _ in range(times):
                await failed(call(channel, bytes(10_000)))
            fake.peers.clear()
            await until(lambda: not fake.tasks)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            begin_bytes = await fail_often(40)
            end_bytes = await fail_often(80)
        finally:
            tracemalloc.stop()
        # Connections that broke the protocol linger for seconds, each with its transport and empty buffers.
        assert end_bytes - begin_bytes < 80 * 6_000
