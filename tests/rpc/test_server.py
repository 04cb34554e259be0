"""The server with grpcio's asynchronous and synchronous clients."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from fairlead.rpc import (
    AlreadyAdded,
    Call,
    CannotListen,
    InvalidLimits,
    InvalidTrailer,
    RpcLimits,
    RpcServer,
    RpcStats,
    RpcStatus,
    connection,
)
from fairlead.rpc.calls import Calls
from fairlead.rpc.frames import DATA, END_HEADERS, END_STREAM, GOAWAY, PING, STREAM_ID_MAX, UINT32, ErrorCode, frame
from fairlead.rpc.message import framed
from fairlead.rpc.status import Code
from tests.patience import PATIENCE_S
from tests.rpc.served import (
    ABOUT,
    COUNT,
    CRASH,
    ECHO,
    EOF,
    FAIL,
    LARGE,
    TALK,
    WAIT,
    Peer,
    channel,
    request_headers,
    serving,
    until,
)

# Seconds by which a timer may fire early: libuv, the clock of uvloop, counts whole milliseconds.
LOOP_CLOCK_S = 0.001
LARGE_MESSAGES = ("grpc.max_receive_message_length", 64 * 1024 * 1024)


async def failure(call: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


async def test_a_unary_call_gets_its_response() -> None:
    async with serving() as served, channel(served.address, LARGE_MESSAGES) as client:
        assert await client.unary_unary(ECHO)(b"hello") == b"hello"
        assert await client.unary_unary(ECHO)(b"") == b""


async def test_the_synchronous_client_gets_its_response() -> None:
    async with serving() as served:

        def calls() -> list[bytes]:
            client: Any
            with grpc.insecure_channel(served.address) as client:
                return [client.unary_unary(ECHO)(b"%d" % number, timeout=10) for number in range(20)]

        assert await asyncio.to_thread(calls) == [b"%d" % number for number in range(20)]


async def test_a_status_carries_its_code_message_details_and_trailers() -> None:
    async with serving() as served, channel(served.address, LARGE_MESSAGES) as client:
        error = await failure(client.unary_unary(FAIL)(b""))
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert error.details() == "100 % naïve\n"
        assert dict(error.trailing_metadata()) == {
            "reason": "asked",
            "grpc-status-details-bin": b"\x08\x09\x12\x03why",
        }


async def test_status_details_above_the_peers_header_limit_are_dropped_and_the_rest_is_sent() -> None:
    async def handler(request: bytes, call: Call) -> bytes:
        raise RpcStatus(Code.NOT_FOUND, "gone", bytes(int(request)))

    server = RpcServer("127.0.0.1:0")
    server.add("/x/Y", handler)
    address = await server.start()
    try:
        async with channel(address) as client:
            error = await failure(client.unary_unary("/x/Y")(b"100000"))
            assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "gone")
            assert "grpc-status-details-bin" not in dict(error.trailing_metadata())
        # A peer without a header limit gets all of it, in several frames if one is too small.
        async with await Peer.connect(address) as peer:
            peer.call(1, "/x/Y", b"30000")
            first = await peer.read_until(1)
            assert not first.flags & END_HEADERS
            assert (await peer.read_until(9)).flags & END_HEADERS == 0
            assert (await peer.read_until(9)).flags & END_HEADERS
    finally:
        await server.stop(0)


async def test_an_unexpected_exception_of_a_handler_becomes_internal_without_its_message() -> None:
    async with serving() as served, channel(served.address, LARGE_MESSAGES) as client:
        error = await failure(client.unary_unary(CRASH)(b""))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(error.details())
        assert "ZeroDivisionError" in str(error.details())
        assert await client.unary_unary(ECHO)(b"on") == b"on"


async def test_an_unknown_method_returns_unimplemented_with_its_name() -> None:
    async with serving() as served, channel(served.address, LARGE_MESSAGES) as client:
        error = await failure(client.unary_unary("/test.Service/Nothing")(bytes(100_000)))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "/test.Service/Nothing" in str(error.details())
        assert await client.unary_unary(ECHO)(b"on") == b"on"


async def test_a_handler_gets_metadata_path_peer_and_timeout_and_can_send_trailers() -> None:
    async with serving() as served, channel(served.address, LARGE_MESSAGES) as client:
        metadata = (("name", "a"), ("name", "b"), ("data-bin", b"\x00\x01\xff"))
        call = client.unary_unary(ABOUT)(b"", metadata=metadata, timeout=100)
        path, peer, seen, seen_binary, remaining_s = eval(await call)  # noqa: S307 - the handler's own repr
        assert path == ABOUT
        assert peer.startswith("127.0.0.1:")
        assert seen["name"] in {"a,b", "a, b"}
        assert seen_binary == {"data-bin": b"\x00\x01\xff"}
        assert "te" not in seen
        assert "grpc-timeout" not in seen
        # C-core rounds timeouts up to three digits.
        assert 50 < remaining_s <= 101
        assert dict(await call.trailing_metadata()) == {"seen": "yes", "seen-bin": b"\x00\xff"}
        assert eval(await client.unary_unary(ABOUT)(b""))[-1] is None  # noqa: S307 - the handler's own repr


async def test_a_passed_deadline_ends_the_call_and_cancels_the_handler() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        started_s = time.monotonic()
        peer.call(1, WAIT, extra=[("grpc-timeout", "100m")])
        assert await peer.status(1) == Code.DEADLINE_EXCEEDED
        assert time.monotonic() - started_s >= 0.1 - LOOP_CLOCK_S
        await served.until_idle()
        assert served.handlers.cancelled == 1
        async with channel(served.address, LARGE_MESSAGES) as client:
            error = await failure(client.unary_unary(WAIT)(b"", timeout=0.1))
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await served.until_idle()
            assert served.handlers.cancelled == 2


async def test_an_invalid_timeout_is_refused() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        peer.call(1, ECHO, extra=[("grpc-timeout", "soon")])
        assert await peer.status(1) == Code.INVALID_ARGUMENT


async def test_a_cancelled_call_cancels_its_own_handler_only() -> None:
    async with serving() as served, channel(served.address, LARGE_MESSAGES) as client:
        first, second = (client.unary_unary(WAIT)(b"%d" % number) for number in range(2))
        await until(lambda: served.handlers.begun == 2)
        first.cancel()
        await until(lambda: served.handlers.cancelled == 1)
        served.handlers.release.set()
        assert await second == b"1"
        assert served.handlers.cancelled == 1
        await served.until_idle()


async def test_a_lost_connection_cancels_its_handlers() -> None:
    async with serving() as served:
        async with await Peer.connect(served.address) as peer:
            for stream_id in (1, 3, 5):
                peer.call(stream_id, WAIT)
            await until(lambda: served.handlers.begun == 3)
        await served.until_idle()
        assert served.handlers.cancelled == 3
        await until(lambda: served.server.stats() == RpcStats(connections=0, streams=0, handlers=0))


async def test_a_thousand_calls_can_wait_on_one_connection() -> None:
    async with serving() as served, channel(served.address, LARGE_MESSAGES) as client:
        wait = client.unary_unary(WAIT)
        calls = [asyncio.ensure_future(_awaited(wait(b"%d" % number))) for number in range(1_000)]
        await until(lambda: served.handlers.begun == 1_000)
        assert served.server.stats() == RpcStats(connections=1, streams=1_000, handlers=1_000)
        served.handlers.release.set()
        assert await asyncio.gather(*calls) == [b"%d" % number for number in range(1_000)]
        await served.until_idle()


async def _awaited(call: Any) -> bytes:
    answer: bytes = await call
    return answer


async def test_many_messages_of_three_megabytes_are_transferred_concurrently_in_both_directions() -> None:
    async with serving() as served, channel(served.address, LARGE_MESSAGES) as client:
        messages = [bytes([number]) * 3_000_000 for number in range(8)]
        assert await asyncio.gather(*(_awaited(client.unary_unary(ECHO)(message)) for message in messages)) == messages


async def test_large_messages_that_exceed_the_memory_limit_together_are_received_in_turn() -> None:
    limits = RpcLimits(message_bytes_max=1_000_000, receive_bytes_max=1_500_000)
    async with serving(limits) as served, channel(served.address, LARGE_MESSAGES) as client:
        messages = [bytes([number]) * 700_000 for number in range(20)]
        assert await asyncio.gather(*(_awaited(client.unary_unary(ECHO)(message)) for message in messages)) == messages


async def test_a_message_of_the_largest_size_is_accepted_and_one_byte_more_is_refused() -> None:
    limits = RpcLimits(message_bytes_max=500_000)
    async with serving(limits) as served, channel(served.address, LARGE_MESSAGES) as client:
        assert len(await client.unary_unary(ECHO)(bytes(500_000))) == 500_000
        error = await failure(client.unary_unary(ECHO)(bytes(500_001)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "500001" in str(error.details())
        error = await failure(client.unary_unary(LARGE)(b"500001"))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await client.unary_unary(ECHO)(b"on") == b"on"


async def test_compressed_requests_are_inflated() -> None:
    async with serving() as served:
        algorithm = "grpc.default_compression_algorithm"
        async with channel(served.address, (algorithm, grpc.Compression.Gzip.value)) as client:
            assert await client.unary_unary(ECHO)(bytes(1_000_000)) == bytes(1_000_000)
        async with channel(served.address, (algorithm, grpc.Compression.Deflate.value)) as client:
            error = await failure(client.unary_unary(ECHO)(bytes(1_000)))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def _compressed(data: bytes, *, flag: int = 1) -> bytes:
    return bytes([flag]) + UINT32.pack(len(data)) + data


# Encodings and bodies of requests, and their status.
REQUESTS = [
    ("gzip", _compressed(gzip.compress(b"yes", mtime=0)), Code.OK),
    ("gzip", framed(b"plain"), Code.OK),
    ("gzip", _compressed(b"not gzip"), Code.INVALID_ARGUMENT),
    ("gzip", _compressed(gzip.compress(b"yes", mtime=0)[:-3]), Code.INVALID_ARGUMENT),
    ("gzip", _compressed(gzip.compress(bytes(10_001), mtime=0)), Code.RESOURCE_EXHAUSTED),
    ("gzip", _compressed(b"", flag=2), Code.INTERNAL),
    ("identity", _compressed(gzip.compress(b"yes", mtime=0)), Code.INTERNAL),
    ("zstd", framed(b""), Code.UNIMPLEMENTED),
    ("identity", b"", Code.UNIMPLEMENTED),
    ("identity", framed(b"one") + framed(b"two"), Code.UNIMPLEMENTED),
    ("identity", framed(b"one") + b"\x00", Code.UNIMPLEMENTED),
    ("identity", framed(b"one")[:-1], Code.INVALID_ARGUMENT),
    ("identity", framed(b"one")[:3], Code.INVALID_ARGUMENT),
    ("identity", b"\x00\xff\xff\xff\xff", Code.RESOURCE_EXHAUSTED),
]


@pytest.mark.parametrize(("encoding", "body", "code"), REQUESTS)
@pytest.mark.parametrize("piece_bytes", [1, 4, 16_384])
async def test_a_request_that_is_not_exactly_one_message_is_refused(
    encoding: str, body: bytes, code: Code, piece_bytes: int
) -> None:
    async with serving(RpcLimits(message_bytes_max=10_000)) as served, await Peer.connect(served.address) as peer:
        peer.send(peer.headers(1, request_headers(ECHO, [("grpc-encoding", encoding)])))
        for start in range(0, len(body), piece_bytes):
            peer.send(frame(DATA, 0, 1, body[start : start + piece_bytes]))
        peer.send(frame(DATA, END_STREAM, 1))
        assert await peer.status(1) == code
        await served.until_idle()
        peer.call(3, ECHO)
        assert await peer.status(3) == Code.OK


@pytest.mark.parametrize(("encoding", "body", "code"), REQUESTS)
async def test_a_repeated_request_that_arrives_in_one_piece_gets_the_same_status(
    encoding: str, body: bytes, code: Code
) -> None:
    async with serving(RpcLimits(message_bytes_max=10_000)) as served, await Peer.connect(served.address) as peer:
        for stream_id in (1, 3, 5, 7):
            head = peer.headers(stream_id, request_headers(ECHO, [("grpc-encoding", encoding)]))
            peer.send(head + frame(DATA, 0, stream_id, body) + frame(DATA, END_STREAM, stream_id))
            assert await peer.status(stream_id) == code
        await served.until_idle()


@pytest.mark.parametrize("ends_apart", [False, True])
async def test_repeated_requests_of_clients_are_taken_in_one_step(
    monkeypatch: pytest.MonkeyPatch, ends_apart: bool
) -> None:
    parts: list[int] = []
    take = Calls.data

    def data(self: Calls, stream_id: int, *args: Any, **kwargs: Any) -> bool:
        parts.append(stream_id)
        return take(self, stream_id, *args, **kwargs)

    monkeypatch.setattr(Calls, "data", data)
    body = _compressed(gzip.compress(b"yes", mtime=0))
    async with serving() as served, await Peer.connect(served.address) as peer:
        for stream_id in (1, 3, 5, 7):
            head = peer.headers(stream_id, request_headers(ECHO, [("grpc-encoding", "gzip")]))
            ends = [frame(DATA, 0, stream_id, body), frame(DATA, END_STREAM, stream_id)]
            peer.send(head + (b"".join(ends) if ends_apart else frame(DATA, END_STREAM, stream_id, body)))
            assert (await peer.read_until(DATA, stream_id=stream_id)).payload == framed(b"yes")
            assert await peer.status(stream_id) == Code.OK
    # The first two heads are not cached: the first one fills the header table of its client.
    assert set(parts) <= {1, 3}


async def test_repeated_requests_of_a_bidirectional_stream_reach_its_handler() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        for stream_id in (1, 3, 5, 7):
            peer.call(stream_id, TALK, b"you")
            assert (await peer.read_until(DATA, stream_id=stream_id)).payload == framed(b"heard you")
            assert await peer.status(stream_id) == Code.OK


async def test_streamed_responses_arrive_in_order_and_may_end_with_a_status() -> None:
    async with serving() as served, channel(served.address, LARGE_MESSAGES) as client:
        count = client.unary_stream(COUNT)
        assert [len(message) async for message in count(b"5 100000")] == [100_000] * 5
        assert [message async for message in count(b"0 7")] == []
        call = count(b"3 1")
        assert [await call.read() for _ in range(3)] == [b"\x00"] * 3
        assert (await failure(call.read())).code() is grpc.StatusCode.ABORTED


async def test_a_slow_reader_blocks_the_handler_instead_of_filling_memory() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        peer.call(1, COUNT, b"1000 50000")
        await peer.read_until(DATA)
        # Only time can show that the handler stays blocked.
        await asyncio.sleep(0.1)
        # The window of 64 KiB is used up, and slightly more than 64 KiB waits to be sent.
        assert served.handlers.sent <= 5
        async with channel(served.address, LARGE_MESSAGES) as client:
            call = client.unary_stream(COUNT)(b"1000 50000")
            assert len(await call.read()) == 50_000
            # Only time can show that the handler stays blocked.
            await asyncio.sleep(0.1)
            assert served.handlers.sent < 500
            call.cancel()
        peer.close()
        await served.until_idle()
        assert served.handlers.cancelled == 2


async def test_a_bidirectional_stream_transfers_messages_in_both_directions() -> None:
    async with serving() as served, channel(served.address, LARGE_MESSAGES) as client:
        call = client.stream_stream(TALK)()
        for size in (1, 100, 200_000, 3, 3_000_000):
            await call.write(bytes(size))
            assert len(await call.read()) == size + 6
        await call.done_writing()
        assert await call.read() is EOF

        async def requests() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield bytes(10_000)

        answers = [len(message) async for message in client.stream_stream(TALK)(requests())]
        assert answers == [10_006] * 100


async def test_a_bidirectional_stream_that_is_not_read_blocks_its_sender() -> None:
    """A peer may send no more than a window to a handler that does not read."""
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handler(requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        started.set()
        await go_on.wait()
        number = 0
        async for _ in requests:
            number += 1
        yield b"%d" % number

    server = RpcServer("127.0.0.1:0")
    server.add_duplex("/x/Y", handler)
    address = await server.start()
    try:
        async with channel(address) as client:
            call = client.stream_stream("/x/Y")()
            written = 0

            async def write() -> None:
                nonlocal written
                for _ in range(300):
                    await call.write(bytes(100_000))
                    written += 1
                await call.done_writing()

            writing = asyncio.ensure_future(write())
            await started.wait()
            # Only time can show that the sender stays blocked.
            await asyncio.sleep(0.1)
            # A message larger than the window was allowed; the next one was not.
            assert written < 10
            go_on.set()
            await writing
            assert await call.read() == b"300"
    finally:
        await server.stop(0)


async def test_draining_finishes_open_calls_and_calls_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GOAWAY frames: after the first the peer opens no more streams; those opened before the second are served."""
    monkeypatch.setattr(connection, "DRAIN_NOTICE_S", PATIENCE_S)
    async with serving() as served, await Peer.connect(served.address) as peer:
        peer.call(1, WAIT, b"long poll")
        await until(lambda: served.handlers.begun == 1)
        served.server.drain()
        drained_s = time.monotonic()
        first = await peer.read_until(GOAWAY)
        assert UINT32.unpack_from(first.payload)[0] == STREAM_ID_MAX
        assert first.code is ErrorCode.NO_ERROR
        peer.call(3, ECHO, b"crossed the word")
        ping = await peer.read_until(PING)
        assert await peer.status(3) == Code.OK
        peer.send(frame(PING, 1, 0, ping.payload))
        last = await peer.read_until(GOAWAY)
        assert UINT32.unpack_from(last.payload)[0] == 3
        # The drain ended because the peer acknowledged it, not because of a timeout.
        assert time.monotonic() - drained_s < PATIENCE_S
        peer.call(5, ECHO, b"too late: to be sent elsewhere")
        served.handlers.release.set()
        assert (await peer.read_until(DATA)).payload == framed(b"long poll")
        assert await peer.status(1) == Code.OK
        assert await peer.read() is None
        with pytest.raises(ConnectionRefusedError):
            await Peer.connect(served.address)


async def test_a_connection_is_replaced_at_its_maximum_age_and_its_open_calls_may_end() -> None:
    ages_s = [0.1, 60.0]
    limits = RpcLimits(preface_s_max=0.2)
    async with serving(limits, ages_s=lambda: (ages_s[0], ages_s[1])) as served:
        async with await Peer.connect(served.address) as peer:
            peer.call(1, WAIT)
            assert (await peer.read_until(GOAWAY)).code is ErrorCode.NO_ERROR
            assert served.server.stats().streams == 1
            served.handlers.release.set()
            assert await peer.status(1) == Code.OK
        served.handlers.release.clear()
        async with await Peer.connect(served.address) as peer:
            peer.call(1, WAIT)
            await until(lambda: served.handlers.begun == 2)
            # Open calls have this long; then the connection is closed.
            ages_s[1] = 0.2
            await until(lambda: served.server.stats() == RpcStats(connections=0, streams=0, handlers=0))


async def test_a_connection_has_no_maximum_age_by_default() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        peer.call(1, ECHO)
        assert await peer.status(1) == Code.OK
        [connection] = served.server._host.connections  # type: ignore[union-attr]
        connection._made_s -= 1e6
        connection.check(connection._clock())
        assert not connection.is_draining


async def test_a_peer_that_does_not_acknowledge_a_drain_is_drained_after_a_timeout() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        peer.call(1, ECHO)
        assert await peer.status(1) == Code.OK
        served.server.drain()
        words = [UINT32.unpack_from((await peer.read_until(GOAWAY)).payload)[0] for _ in range(2)]
        assert words == [STREAM_ID_MAX, 1]
        assert await peer.read() is None


async def test_a_client_gets_the_response_of_a_long_poll_from_a_stopping_server() -> None:
    async with serving() as served, channel(served.address, LARGE_MESSAGES) as client:
        calls = [asyncio.ensure_future(_awaited(client.unary_unary(WAIT)(b"%d" % number))) for number in range(50)]
        await until(lambda: served.handlers.begun == 50)
        stopping = asyncio.ensure_future(served.server.stop(10))
        # Only time can show that the server waits for the calls.
        await asyncio.sleep(0.1)
        assert not stopping.done()
        served.handlers.release.set()
        assert await asyncio.gather(*calls) == [b"%d" % number for number in range(50)]
        await stopping
        assert served.server.stats() == RpcStats(connections=0, streams=0, handlers=0)


async def test_calls_that_outlast_the_grace_period_fail_with_a_retryable_error() -> None:
    async with serving() as served, channel(served.address, LARGE_MESSAGES) as client:
        call = asyncio.ensure_future(failure(client.unary_unary(WAIT)(b"")))
        await until(lambda: served.handlers.begun == 1)
        await served.server.stop(0.1)
        assert (await call).code() is grpc.StatusCode.UNAVAILABLE
        assert served.handlers.cancelled == 1


async def test_a_client_reconnects_to_a_restarted_server() -> None:
    async with serving() as served, channel(served.address, LARGE_MESSAGES) as client:
        assert await client.unary_unary(ECHO)(b"first") == b"first"
        await served.server.stop(5)
        again = RpcServer(served.address)
        again.add(ECHO, served.handlers.echo)
        await again.start()
        try:
            assert await client.unary_unary(ECHO)(b"again", wait_for_ready=True, timeout=20) == b"again"
        finally:
            await again.stop(0)


async def test_an_invalid_address_or_one_in_use_is_refused() -> None:
    async with serving() as served:
        for address in (served.address, "127.0.0.1:x", "127.0.0.1:99999", "nowhere.invalid:1"):
            with pytest.raises(CannotListen, match="can't listen on"):
                RpcServer(address).bind()


async def test_the_address_is_known_before_the_start_and_may_be_an_ipv6_address() -> None:
    for listen, begin in (("127.0.0.1:0", "127.0.0.1:"), ("[::1]:0", "[::1]:")):
        server = RpcServer(listen)
        address = server.bind()
        assert address.startswith(begin)
        assert await server.start() == address
        await server.stop(0)
    await RpcServer("127.0.0.1:0").stop(0)


def test_a_second_handler_for_a_path_is_refused() -> None:
    async def handler(request: bytes, call: Call) -> bytes:
        return b""

    server = RpcServer("127.0.0.1:0")
    server.add("/a.B/C", handler)
    with pytest.raises(AlreadyAdded, match=r"/a\.B/C"):
        server.add("/a.B/C", handler)
    assert server.services == ("a.B",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Upper", "x"),
        ("grpc-status", "0"),
        ("a b", "x"),
        ("x-bin", "text"),
        ("x", b"bytes"),
        ("x", "line\nbreak"),
        ("x", "é"),
    ],
)
async def test_an_invalid_trailer_is_refused(name: str, value: str | bytes) -> None:
    async with serving() as served:
        refused = []

        async def handler(request: bytes, call: Call) -> bytes:
            with pytest.raises(InvalidTrailer) as raised:
                call.set_trailer(name, value)
            refused.append(raised.value)
            return b""

        served.server.add("/x/Y", handler)
        async with channel(served.address, LARGE_MESSAGES) as client:
            await client.unary_unary("/x/Y")(b"")
        assert len(refused) == 1


@pytest.mark.parametrize(
    "limits",
    [{"message_bytes_max": 0}, {"message_bytes_max": 2**27}, {"send_bytes_max": 10}, {"receive_bytes_max": 10}],
)
def test_contradictory_limits_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidLimits):
        RpcLimits(**limits)
