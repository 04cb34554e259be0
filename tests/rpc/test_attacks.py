"""Peers that are expensive rather than wrong: one connection never holds the event loop, the memory or the files."""

import asyncio
import gzip
import os
import resource
import threading
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from fairlead.rpc import Call, Code, InvalidLimits, RpcLimits
from fairlead.rpc.budget import ADDRESSES_MAX, SHARE_MIN, SpentBudgets, origin
from fairlead.rpc.frame_reader import TURN_FRAMES_MAX, WHOLE_FRAMES
from fairlead.rpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    SETTING,
    SETTING_INITIAL_WINDOW,
    SETTINGS,
    UINT32,
    ErrorCode,
    frame,
    window_update,
)
from fairlead.rpc.head_cache import HEADS_BYTES_MAX, HeadCache
from fairlead.rpc.header_block import literal
from fairlead.rpc.http2 import Http2Connection
from fairlead.rpc.message import LOOP_BYTES_MAX, Packed, framed, plain
from fairlead.rpc.responses import CANCELLED_A_TURN_MAX
from tests.rpc.served import (
    COUNT,
    DENY,
    ECHO,
    LARGE,
    TALK,
    WAIT,
    Peer,
    Serving,
    assert_alive,
    request_headers,
    serving,
    until,
)

GZIP = [("grpc-encoding", "gzip")]
MIB = 1024 * 1024


def calls(path: str, number: int, *, first: int = 0) -> bytes:
    """Whole calls on streams that follow each other, as one string of bytes."""
    block = b"".join(literal(name.encode(), value.encode()) for name, value in request_headers(path))
    return b"".join(
        frame(HEADERS, END_HEADERS, 2 * n + 1, block) + frame(DATA, END_STREAM, 2 * n + 1, framed(b""))
        for n in range(first, first + number)
    )


def packed(message: bytes) -> bytes:
    content = gzip.compress(message)
    return b"\x01" + UINT32.pack(len(content)) + content


async def largest_step(value: Callable[[], int], is_over: Callable[[], bool]) -> int:
    """The largest change of a value from one iteration of the event loop to the next."""
    largest, last = 0, value()
    async with asyncio.timeout(20):
        while not is_over():
            await asyncio.sleep(0)
            now = value()
            largest, last = max(largest, abs(now - last)), now
    return largest


# SETTINGS


async def test_a_settings_frame_with_thousands_of_entries_ends_the_connection() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        peer.send(frame(SETTINGS, 0, 0, SETTING.pack(SETTING_INITIAL_WINDOW, 70_000) * 2_700))
        assert await peer.goaway() is ErrorCode.ENHANCE_YOUR_CALM


async def test_one_settings_frame_changes_the_windows_of_open_streams_once(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[int] = []
    monkeypatch.setattr(Http2Connection, "_change_windows", lambda _, increment: walks.append(increment))
    async with serving() as served, await Peer.connect(served.address) as peer:
        values = (70_000, 80_000, 70_001) * 10
        peer.send(frame(SETTINGS, 0, 0, b"".join(SETTING.pack(SETTING_INITIAL_WINDOW, value) for value in values)))
        peer.call(1, ECHO)
        assert await peer.status(1) == Code.OK
    assert walks == [70_001 - 65_535]


async def test_settings_that_change_thousands_of_streams_count_as_many_control_frames() -> None:
    limits = RpcLimits(control_frames_burst_max=500, control_frames_per_s_max=1)
    async with serving(limits) as served, await Peer.connect(served.address) as peer:
        peer.send(calls(WAIT, 1_600))
        await until(lambda: served.handlers.begun == 1_600)
        # 1,600 streams cost 100 control frames, so that the budget lasts for five of these.
        peer.send(b"".join(frame(SETTINGS, 0, 0, SETTING.pack(SETTING_INITIAL_WINDOW, 70_000 + n)) for n in range(10)))
        assert await peer.goaway() is ErrorCode.ENHANCE_YOUR_CALM


# Work of one connection


async def test_a_connection_opens_a_bounded_number_of_calls_in_one_iteration_of_the_event_loop() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        peer.send(calls(WAIT, 2_000))
        step = await largest_step(lambda: served.handlers.begun, lambda: served.handlers.begun == 2_000)
        # uvloop runs callbacks after reading in the same iteration.
        assert step <= 2 * TURN_FRAMES_MAX // WHOLE_FRAMES


async def test_calls_of_a_lost_connection_are_cancelled_a_bounded_number_at_a_time() -> None:
    async with serving() as served:
        async with await Peer.connect(served.address) as peer:
            peer.send(calls(WAIT, 2_000))
            await until(lambda: served.handlers.begun == 2_000)
        step = await largest_step(lambda: served.handlers.cancelled, lambda: served.handlers.cancelled == 2_000)
        assert step <= CANCELLED_A_TURN_MAX
        await served.until_idle()


async def test_frames_that_wait_for_their_turn_are_handled_in_order_and_none_is_lost() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        messages = [b"%d" % number for number in range(3_000)]
        peer.send(peer.headers(1, request_headers(TALK)))
        peer.send(b"".join(frame(DATA, 0, 1, framed(message)) for message in messages))
        peer.send(frame(DATA, END_STREAM, 1))
        heard = bytearray()
        while not (read := await peer.read_until(DATA, HEADERS)).flags & END_STREAM:
            heard += read.payload if read.kind == DATA else b""
        assert bytes(heard) == b"".join(framed(b"heard " + message) for message in messages)


@pytest.mark.parametrize("stream_id", [1, 3])
async def test_a_flood_of_tiny_data_frames_ends_the_connection(stream_id: int) -> None:
    """Frames on a stream that has ended count, too."""
    async with serving() as served:
        async with await Peer.connect(served.address) as peer:
            peer.call(1, ECHO)
            assert await peer.status(1) == Code.OK
            peer.send(peer.headers(3, request_headers(ECHO)) + frame(DATA, 0, 3, b"\x00" + UINT32.pack(60_000)))
            peer.send(frame(DATA, 0, stream_id, b"x") * 60_000)
            assert await peer.goaway() is ErrorCode.ENHANCE_YOUR_CALM
        await assert_alive(served.address)


async def test_small_messages_of_a_stream_do_not_count_as_tiny_frames() -> None:
    limits = RpcLimits(control_frames_burst_max=50, control_frames_per_s_max=1)
    async with serving(limits) as served, await Peer.connect(served.address) as peer:
        peer.send(peer.headers(1, request_headers(TALK)))
        peer.send(frame(DATA, 0, 1, framed(b"x")) * 1_000 + frame(DATA, END_STREAM, 1))
        assert await peer.status(1) == Code.OK


@pytest.mark.parametrize("path", ["/no.Service/Method", ECHO])
async def test_a_flood_of_calls_that_must_be_refused_ends_the_connection(path: str) -> None:
    """100,000 unknown methods, or calls that are no gRPC: each is answered until the budget is spent."""
    headers = request_headers(path) if path != ECHO else [*request_headers(ECHO)[:-1], ("content-type", "text/html")]
    block = b"".join(literal(name.encode(), value.encode()) for name, value in headers)
    async with serving() as served:
        async with await Peer.connect(served.address) as peer:
            peer.send(b"".join(frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, block) for n in range(20_000)))
            assert await peer.goaway() is ErrorCode.ENHANCE_YOUR_CALM
        await assert_alive(served.address)


async def test_a_flood_of_calls_whose_caller_is_refused_ends_the_connection() -> None:
    limits = RpcLimits(resets_burst_max=100, resets_per_s_max=1)
    async with serving(limits) as served:
        async with await Peer.connect(served.address) as peer:
            peer.send(calls(DENY, 90))
            for n in range(90):
                assert await peer.status(2 * n + 1) == Code.PERMISSION_DENIED
            # Other calls continue within the budget, and cost nothing.
            peer.send(calls(ECHO, 200, first=90))
            assert await peer.status(2 * 289 + 1) == Code.OK
            peer.send(calls(DENY, 30, first=290))
            assert await peer.goaway() is ErrorCode.ENHANCE_YOUR_CALM
        await assert_alive(served.address)


# Reconnecting


async def test_a_peer_that_reconnects_does_not_get_a_new_budget_of_resets() -> None:
    limits = RpcLimits(resets_burst_max=1_000, resets_per_s_max=1)
    async with serving(limits) as served:
        async with await Peer.connect(served.address) as peer:
            _reset(peer, 990)
            peer.call(3_001, ECHO)
            assert await peer.status(3_001) == Code.OK
        await until(lambda: served.server.stats().connections == 0)
        async with await Peer.connect(served.address) as peer:
            # Another user of the same address still has a small budget.
            _reset(peer, 10)
            peer.call(3_001, ECHO)
            assert await peer.status(3_001) == Code.OK
            _reset(peer, 980, first=2_000)
            assert await peer.goaway() is ErrorCode.ENHANCE_YOUR_CALM


def _reset(peer: Peer, number: int, *, first: int = 0) -> None:
    for n in range(first, first + number):
        peer.send(peer.headers(2 * n + 1, request_headers(WAIT)))
        peer.send(frame(RST_STREAM, 0, 2 * n + 1, UINT32.pack(ErrorCode.CANCEL)))


def test_an_address_recovers_in_ten_seconds_from_the_budgets_of_its_closed_connections() -> None:
    spent = SpentBudgets()
    assert spent.share_left("a", 0.0) == 1.0
    spent.add("a", 0.6, 0.0)
    assert spent.share_left("a", 1.0) == pytest.approx(0.5)
    spent.add("a", 0.9, 1.0)
    assert spent.share_left("a", 1.0) == SHARE_MIN
    assert spent.share_left("a", 6.0) == pytest.approx(0.5)
    assert spent.share_left("a", 11.0) == 1.0
    assert spent.share_left("b", 1.0) == 1.0


def test_spent_budgets_are_remembered_for_a_bounded_number_of_addresses() -> None:
    spent = SpentBudgets()
    for number in range(ADDRESSES_MAX + 10):
        spent.add(f"a{number}", 1.0, 0.0)
    assert len(spent._spent) == ADDRESSES_MAX


def test_addresses_of_one_ipv6_network_share_a_budget() -> None:
    assert origin(("2001:db8::1", 5, 0, 0)) == origin(("2001:db8::ffff:1", 6, 0, 0)) != origin(("2001:db9::1", 5, 0, 0))
    assert origin(("127.0.0.1", 5)) == "127.0.0.1"
    assert origin(None) == ""


# Compressed messages


def test_a_large_compressed_message_is_not_decompressed_in_the_event_loop() -> None:
    small, large = bytes(LOOP_BYTES_MAX), bytes(LOOP_BYTES_MAX + 1)
    assert plain(1, gzip.compress(small), encoding="gzip", bytes_max=MIB) == small
    kept = plain(1, gzip.compress(large), encoding="gzip", bytes_max=MIB)
    assert isinstance(kept, Packed)
    assert kept.unpacked() == large


@pytest.mark.parametrize("path", [ECHO, COUNT, TALK])
async def test_large_compressed_requests_are_decompressed_in_a_thread(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    unpack = Packed.unpacked

    def noted(message: Packed) -> bytes:
        threads.append(threading.current_thread())
        return unpack(message)

    monkeypatch.setattr(Packed, "unpacked", noted)
    request = b"1 7" + b" " * 500_000 if path == COUNT else bytes(500_000)
    async with serving() as served, await Peer.connect(served.address) as peer:
        peer.send(peer.headers(1, request_headers(path, GZIP)) + frame(DATA, END_STREAM, 1, packed(request)))
        answer = await peer.read_until(DATA, stream_id=1)
        assert UINT32.unpack_from(answer.payload, 1)[0] == {ECHO: 500_000, COUNT: 7, TALK: 500_006}[path]
    assert threads
    assert threading.main_thread() not in threads


async def test_a_compressed_message_that_hides_its_size_is_refused() -> None:
    content = gzip.compress(bytes(MIB))
    lying = content[:-4] + (100).to_bytes(4, "little")
    async with serving() as served, await Peer.connect(served.address) as peer:
        message = b"\x01" + UINT32.pack(len(lying)) + lying
        peer.send(peer.headers(1, request_headers(ECHO, GZIP)) + frame(DATA, END_STREAM, 1, message))
        assert await peer.status(1) == Code.INVALID_ARGUMENT


# Memory


def used_bytes(served: Serving) -> int:
    assert served.server._host is not None
    return served.server._host.memory.used_bytes


async def test_compressed_messages_of_one_connection_fill_no_more_than_the_servers_memory() -> None:
    limits = RpcLimits(message_bytes_max=MIB, memory_bytes_max=8 * MIB)
    async with serving(limits) as served:

        async def wait(request: bytes, call: Call) -> bytes:
            await served.handlers.wait(request, call)
            return b""

        served.server.add("/x/Y", wait)
        async with await Peer.connect(served.address) as peer:
            bomb = packed(bytes(MIB))
            for n in range(100):
                peer.send(peer.headers(2 * n + 1, request_headers("/x/Y", GZIP)))
                peer.send(frame(DATA, END_STREAM, 2 * n + 1, bomb))
            await until(lambda: used_bytes(served) > 8 * MIB)
            # The other requests wait, or are refused, and a bystander is served.
            await assert_alive(served.address)
            assert used_bytes(served) <= 10 * MIB
            assert served.handlers.begun <= 9
            served.handlers.release.set()
            await served.until_idle()
        await until(lambda: served.server.stats().connections == 0)
        assert used_bytes(served) == 0


async def test_a_server_that_stays_short_of_memory_cuts_the_connection_that_holds_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.rpc.server.SHORT_S_MAX", 0.2)
    limits = RpcLimits(message_bytes_max=MIB, send_bytes_max=64 * MIB, memory_bytes_max=4 * MIB, preface_s_max=0.4)
    async with serving(limits) as served:
        async with await Peer.connect(served.address) as small, await Peer.connect(served.address) as large:
            small.call(1, LARGE, b"300000")
            for n in range(8):
                # The responses wait: the peer gives no window for them.
                large.call(2 * n + 1, LARGE, b"900000")
            assert await large.goaway() is ErrorCode.ENHANCE_YOUR_CALM
            small.send(window_update(0, MIB) + window_update(1, MIB))
            assert await small.status(1) == Code.OK
            await until(lambda: used_bytes(served) < MIB)
        await until(lambda: served.server.stats().connections == 0)
        assert used_bytes(served) == 0


async def test_bytes_far_above_the_budget_cut_the_connection_that_holds_most_at_once() -> None:
    limits = RpcLimits(message_bytes_max=MIB, memory_bytes_max=MIB)
    async with serving(limits) as served, await Peer.connect(served.address) as peer:
        block = b"".join(literal(name.encode(), value.encode()) for name, value in request_headers(WAIT))
        for n in range(200):
            peer.send(frame(HEADERS, END_HEADERS, 2 * n + 1, block))
            peer.send(frame(DATA, END_STREAM, 2 * n + 1, framed(bytes(16_000))))
            await asyncio.sleep(0)
        # Above one mebibyte, calls of this connection are refused, so that it stays well below two.
        assert await peer.status(399) == Code.RESOURCE_EXHAUSTED
        assert used_bytes(served) <= 2 * MIB


def test_cached_headers_are_bounded_by_their_decoded_bytes() -> None:
    cache = HeadCache(list_bytes_max=32 * 1024, decoded_bytes_max=128 * 1024)
    # A table entry of 3 kB, and blocks of a few bytes that each refer to it seven times.
    fields = [(name.encode(), value.encode()) for name, value in request_headers(ECHO)]
    front = b"".join(literal(*field) for field in fields)
    entry = b"\x40\x01a\x7f\xb9\x16" + b"x" * 3_000
    decoded, is_stable = cache.decode(front + entry)
    assert not is_stable
    for number in range(200):
        block = front + b"\xbe" * 7 + literal(b"n", b"%d" % number)
        decoded, is_stable = cache.decode(block)
        cache.head(block, decoded, is_stable=is_stable)
        assert sum(head.list_bytes for head in cache._heads.values()) <= HEADS_BYTES_MAX
        assert cache._account.held_bytes == cache._bytes <= HEADS_BYTES_MAX


# Requests that never end


@pytest.mark.parametrize(
    "part", [b"", b"\x00\x00", framed(bytes(1_000))[:500], b"\x00" + UINT32.pack(900_000) + bytes(9)]
)
async def test_a_request_that_is_not_complete_in_time_ends_its_call(part: bytes) -> None:
    async with serving(RpcLimits(request_s_max=0.1)) as served, await Peer.connect(served.address) as peer:
        peer.send(peer.headers(1, request_headers(ECHO)))
        if part:
            peer.send(frame(DATA, 0, 1, part))
        assert await peer.status(1) == Code.DEADLINE_EXCEEDED
        assert await peer.reset(1) is ErrorCode.NO_ERROR
        await served.until_idle()
        peer.call(3, ECHO)
        assert await peer.status(3) == Code.OK


async def test_a_stream_may_be_silent_between_messages_but_not_within_one() -> None:
    async with serving(RpcLimits(request_s_max=0.1)) as served, await Peer.connect(served.address) as peer:
        peer.send(peer.headers(1, request_headers(TALK)) + frame(DATA, 0, 1, framed(b"one")))
        await peer.read_until(DATA, stream_id=1)
        peer.send(peer.headers(3, request_headers(ECHO)))
        # The other call, which began later, is ended for its silence; this one continues.
        assert await peer.status(3) == Code.DEADLINE_EXCEEDED
        peer.send(frame(DATA, 0, 1, framed(b"two")[:-1]))
        assert await peer.status(1) == Code.DEADLINE_EXCEEDED


async def test_a_handler_that_takes_long_is_not_ended_by_the_limit_on_requests() -> None:
    async with serving(RpcLimits(request_s_max=0.1)) as served, await Peer.connect(served.address) as peer:
        peer.send(peer.headers(1, request_headers(WAIT)) + frame(DATA, 0, 1, framed(b"")[:3]))
        peer.send(frame(DATA, END_STREAM, 1, framed(b"")[3:]))
        peer.send(peer.headers(3, request_headers(ECHO)))
        assert await peer.status(3) == Code.DEADLINE_EXCEEDED
        served.handlers.release.set()
        assert await peer.status(1) == Code.OK


# File descriptors


async def test_the_last_file_descriptors_are_not_given_to_connections_and_a_warning_says_so() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open(os.devnull, os.O_RDONLY)
    os.close(probe)
    with capture_logs() as logs:
        async with serving(RpcLimits(preface_s_max=0.2)) as served:
            resource.setrlimit(resource.RLIMIT_NOFILE, (probe + 100, hard))
            try:
                peers = [await Peer.connect(served.address) for _ in range(45)]
                await until(lambda: any("file descriptors" in log["event"] for log in logs))
                assert served.server.stats().connections < 45
                assert any([await peer.read() is None for peer in peers])
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for peer in peers:
                    peer.close()
            await until(lambda: served.server.stats().connections == 0)
            await assert_alive(served.address)
    assert next(log for log in logs if "file descriptors" in log["event"])["limit"] == probe + 100


async def test_a_server_without_any_file_descriptor_says_so() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with capture_logs() as logs:
        async with serving(RpcLimits(preface_s_max=0.2)) as served:
            # Not 0: the threads of libraries in this process, such as Spark's, could not call poll for a file any more.
            resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
            try:
                await until(lambda: any("no file descriptor is left" in log["event"] for log in logs))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await assert_alive(served.address)


def test_memory_below_one_message_is_refused() -> None:
    with pytest.raises(InvalidLimits, match="memory_bytes_max"):
        RpcLimits(memory_bytes_max=1_000)
