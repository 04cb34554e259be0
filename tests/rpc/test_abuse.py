"""Peers that break the rules: each gets the error that RFC 9113 names, and the server keeps serving."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from hpack import Encoder

from fairlead.rpc import Call, Code, RpcLimits, RpcStats
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
    PREFACE,
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
    WITH_PRIORITY,
    ErrorCode,
    frame,
    window_update,
)
from fairlead.rpc.header_block import literal
from fairlead.rpc.intake import STREAM_WINDOW_BYTES
from fairlead.rpc.message import framed
from tests.patience import PATIENCE_S
from tests.rpc.served import ECHO, LARGE, WAIT, Peer, assert_alive, request_headers, serving, until

BLOCK = Encoder().encode(request_headers(WAIT))
OPEN = frame(HEADERS, END_HEADERS, 1, BLOCK)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(DATA, 0, 5, b"x"), ErrorCode.PROTOCOL_ERROR),
        (OPEN + frame(DATA, PADDED, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
        (OPEN + frame(DATA, PADDED, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + BLOCK), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 0, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 2, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"\x00"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, UINT32.pack(1) + b"\x00" + BLOCK), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\xc8"), ErrorCode.COMPRESSION_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\x00\x05ab"), ErrorCode.COMPRESSION_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, BLOCK) + frame(PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, END_HEADERS, 3), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 1) * 100, ErrorCode.ENHANCE_YOUR_CALM),
        (frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 1, bytes(16_384)) * 9, ErrorCode.ENHANCE_YOUR_CALM),
        (
            OPEN + frame(HEADERS, END_HEADERS, 3, BLOCK) + frame(RST_STREAM, 0, 1, UINT32.pack(8)) + OPEN,
            ErrorCode.PROTOCOL_ERROR,
        ),
        (frame(PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
        (frame(PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(RST_STREAM, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (OPEN + frame(RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(SETTINGS, ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 0, SETTING.pack(SETTING_ENABLE_PUSH, 2)), ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, SETTING.pack(SETTING_FRAME_BYTES_MAX, 100)), ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, SETTING.pack(SETTING_INITIAL_WINDOW, 2**31)), ErrorCode.FLOW_CONTROL_ERROR),
        (
            OPEN
            + window_update(1, 2**31 - 70_000)
            + frame(SETTINGS, 0, 0, SETTING.pack(SETTING_INITIAL_WINDOW, 2**31 - 1)),
            ErrorCode.FLOW_CONTROL_ERROR,
        ),
        (frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(WINDOW_UPDATE, 0, 7, UINT32.pack(1)), ErrorCode.PROTOCOL_ERROR),
        (window_update(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
        (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", ErrorCode.FRAME_SIZE_ERROR),
        (b"\xff\xff\xff\x04\x00\x00\x00\x00\x00", ErrorCode.FRAME_SIZE_ERROR),
    ],
)
async def test_a_connection_error_ends_the_connection_with_its_code(sent: bytes, code: ErrorCode) -> None:
    async with serving() as served:
        async with await Peer.connect(served.address) as peer:
            peer.send(sent)
            assert await peer.goaway() is code
        await served.until_idle()
        await assert_alive(served.address)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", bytes(50)])
async def test_a_bad_preface_ends_the_connection(sent: bytes) -> None:
    async with serving() as served:
        async with await Peer.connect(served.address, settings=None) as peer:
            peer.send(sent)
            assert await peer.goaway() is ErrorCode.PROTOCOL_ERROR
        await assert_alive(served.address)


@pytest.mark.parametrize("first", [frame(PING, 0, 0, bytes(8)), frame(SETTINGS, ACK, 0), OPEN])
async def test_a_connection_whose_first_frame_is_not_settings_is_ended(first: bytes) -> None:
    async with serving() as served, await Peer.connect(served.address, settings=None) as peer:
        peer.send(PREFACE + first)
        assert await peer.goaway() is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "sent", [b"", PREFACE[:10], PREFACE, PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, BLOCK)]
)
async def test_a_peer_that_sends_no_complete_request_in_time_is_disconnected(sent: bytes) -> None:
    async with (
        serving(RpcLimits(preface_s_max=0.1)) as served,
        await Peer.connect(served.address, settings=None) as peer,
    ):
        peer.send(sent)
        assert await peer.goaway() is ErrorCode.SETTINGS_TIMEOUT


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (OPEN + window_update(1, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
        (OPEN + frame(WINDOW_UPDATE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (OPEN + frame(HEADERS, END_HEADERS, 1, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (OPEN + frame(DATA, END_STREAM, 1, framed(b"")) + frame(DATA, 0, 1, b"x"), ErrorCode.STREAM_CLOSED),
        (frame(HEADERS, END_HEADERS, 1, b""), ErrorCode.PROTOCOL_ERROR),
    ],
)
async def test_a_stream_error_ends_only_the_stream(sent: bytes, code: ErrorCode) -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        peer.send(sent)
        assert await peer.reset(1) is code
        await served.until_idle()
        # Literals do not depend on the header table.
        block = b"".join(literal(name.encode(), value.encode()) for name, value in request_headers(ECHO))
        peer.send(frame(HEADERS, END_HEADERS, 5, block) + frame(DATA, END_STREAM, 5, framed(b"")))
        assert await peer.status(5) == Code.OK


async def test_large_messages_are_received_in_turn_and_flow_control_blocks_the_others() -> None:
    limits = RpcLimits(message_bytes_max=1_000_000, receive_bytes_max=1_000_000)
    begin = b"\x00" + UINT32.pack(900_000) + bytes(16_000)
    async with serving(limits) as served, await Peer.connect(served.address) as peer:
        for stream_id in (1, 3, 5, 7):
            peer.send(peer.headers(stream_id, request_headers(ECHO)) + frame(DATA, 0, stream_id, begin))
        widened = await peer.read_until(WINDOW_UPDATE, stream_id=1)
        assert UINT32.unpack(widened.payload)[0] == 5 + 900_000 - 64 * 1024
        # Five frames exceed the initial window of the second stream, which got no window update.
        peer.send(frame(DATA, 0, 3, bytes(16_000)) * 4)
        assert await peer.reset(3) is ErrorCode.FLOW_CONTROL_ERROR
        # The third message may be sent when the first is complete, not one frame earlier.
        peer.send(frame(DATA, 0, 1, bytes(13_000)) * 67 + frame(PING, 0, 0, bytes(8)))
        assert (await peer.read_until(PING, WINDOW_UPDATE)).kind == PING
        peer.send(frame(DATA, 0, 1, bytes(13_000)))
        await peer.read_until(WINDOW_UPDATE, stream_id=5)
        # The fourth may be sent when the third is cancelled.
        peer.send(frame(RST_STREAM, 0, 5, UINT32.pack(ErrorCode.CANCEL)))
        await peer.read_until(WINDOW_UPDATE, stream_id=7)
    await served.until_idle()


@pytest.mark.parametrize(
    "headers",
    [
        [("Upper", "case")],
        [("connection", "close")],
        [("te", "gzip")],
        [("name", "line\nbreak")],
        [(":path", "/twice")],
        [(":unknown", "x")],
    ],
)
async def test_headers_that_are_invalid_in_http2_reset_the_stream(headers: list[tuple[str, str]]) -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        peer.send(peer.headers(1, request_headers(ECHO, headers)))
        assert await peer.reset(1) is ErrorCode.PROTOCOL_ERROR
        peer.call(3, ECHO)
        assert await peer.status(3) == Code.OK


@pytest.mark.parametrize(("change", "status"), [((":method", "GET"), "405"), (("content-type", "text/html"), "415")])
async def test_a_request_that_is_not_a_grpc_call_gets_an_http_status(change: tuple[str, str], status: str) -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        headers = dict(request_headers(ECHO)) | dict([change])
        peer.send(peer.headers(1, headers.items(), flags=END_HEADERS | END_STREAM))
        answer = await peer.read_until(HEADERS)
        assert peer.fields(answer)[":status"] == status
        assert answer.flags & END_STREAM


async def test_padding_priority_continuation_trailers_and_unknown_frames_are_handled() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        block = peer.encoder.encode(request_headers(ECHO))
        peer.send(frame(0x42, 0xFF, 1, b"unknown") + frame(PRIORITY, 0, 9, bytes(5)))
        padded = b"\x03" + bytes(4) + b"\x10" + block[:4] + bytes(3)
        peer.send(frame(HEADERS, PADDED | WITH_PRIORITY, 1, padded))
        peer.send(frame(CONTINUATION, 0, 1, block[4:9]) + frame(CONTINUATION, END_HEADERS, 1, block[9:]))
        message = framed(b"padded")
        peer.send(frame(DATA, PADDED, 1, b"\x04" + message[:3] + bytes(4)) + frame(DATA, 0, 1, message[3:]))
        peer.send(peer.headers(1, [("checksum", "1")], flags=END_HEADERS | END_STREAM))
        data = await peer.read_until(DATA)
        assert data.payload == framed(b"padded")
        assert await peer.status(1) == Code.OK


async def test_cached_header_blocks_are_decoded_again_after_trailers_change_the_header_table() -> None:
    """A cached block is invalid once the header table has changed, whichever frame changed it."""
    async with serving() as served, await Peer.connect(served.address) as peer:
        first = peer.encoder.encode(request_headers(ECHO, [("a", "1")]))
        block = peer.encoder.encode(request_headers(ECHO, [("a", "1")]))
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, first))
        peer.send(frame(HEADERS, END_HEADERS, 3, block) + frame(HEADERS, END_HEADERS, 5, block))
        # Another entry shifts the others: the same bytes now mean other fields, including the path.
        peer.send(peer.headers(3, [("b", "2")], flags=END_HEADERS | END_STREAM))
        peer.send(frame(HEADERS, END_HEADERS, 7, block))
        assert await peer.reset(7) is ErrorCode.PROTOCOL_ERROR


async def test_rapid_resets_end_the_connection() -> None:
    limits = RpcLimits(resets_burst_max=100, resets_per_s_max=1)
    async with serving(limits) as served:
        async with await Peer.connect(served.address) as peer:
            for number in range(150):
                peer.call(2 * number + 1, WAIT)
                peer.send(frame(RST_STREAM, 0, 2 * number + 1, UINT32.pack(ErrorCode.CANCEL)))
            assert await peer.goaway() is ErrorCode.ENHANCE_YOUR_CALM
        await served.until_idle()
        # All frames arrive in one iteration of the loop, so no handler has begun.
        assert served.handlers.begun < 100
        await assert_alive(served.address)


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(SETTINGS, 0, 0),
        frame(PRIORITY, 0, 1, bytes(5)),
        frame(0x77, 0, 0),
        OPEN + frame(DATA, 0, 1) * 2000,
    ],
)
async def test_a_flood_of_frames_outside_of_calls_ends_the_connection(flood: bytes) -> None:
    async with serving(RpcLimits(control_frames_burst_max=500, control_frames_per_s_max=1)) as served:
        async with await Peer.connect(served.address) as peer:
            peer.send(flood * (600 if len(flood) < 100 else 1))
            assert await peer.goaway() is ErrorCode.ENHANCE_YOUR_CALM
        await assert_alive(served.address)


async def test_pings_between_calls_do_not_count_as_a_flood() -> None:
    """FL-75: SDKs ping every 30 s, also between calls."""
    async with (
        serving(RpcLimits(control_frames_burst_max=10, control_frames_per_s_max=1)) as served,
        await Peer.connect(served.address) as peer,
    ):
        for number in range(200):
            peer.send(frame(PING, 0, 0, bytes(8)))
            peer.call(2 * number + 1, ECHO)
            assert (await peer.read_until(PING)).flags & ACK
            assert await peer.status(2 * number + 1) == Code.OK


async def test_a_peer_that_does_not_read_its_ping_responses_is_disconnected() -> None:
    async with serving(RpcLimits(control_frames_burst_max=10**9)) as served:
        async with await Peer.connect(served.address) as peer:
            peer._writer.transport.pause_reading()  # type: ignore[attr-defined]
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(_ping_forever(peer), PATIENCE_S)
            await until(lambda: served.server.stats().connections == 0)
        await assert_alive(served.address)


async def _ping_forever(peer: Peer) -> None:
    while True:
        peer.send(frame(PING, 0, 0, bytes(8)) * 5_000)
        await peer._writer.drain()


async def test_streams_above_the_limit_are_refused_and_can_be_retried() -> None:
    async with serving(RpcLimits(streams_max=3)) as served, await Peer.connect(served.address) as peer:
        for stream_id in (1, 3, 5, 7):
            peer.call(stream_id, WAIT)
        assert await peer.reset(7) is ErrorCode.REFUSED_STREAM
        served.handlers.release.set()
        assert await peer.status(1) == Code.OK
        peer.call(9, WAIT)
        assert await peer.status(9) == Code.OK


async def test_calls_above_the_limit_of_all_connections_get_an_error() -> None:
    async with serving(RpcLimits(calls_max=2)) as served, await Peer.connect(served.address) as peer:
        for stream_id in (1, 3, 5):
            peer.call(stream_id, WAIT)
            # The server takes each call before the next one comes.
            await asyncio.sleep(0.01)
        assert await peer.status(5) == Code.RESOURCE_EXHAUSTED


async def test_connections_above_the_limit_are_closed() -> None:
    async with serving(RpcLimits(connections_max=1)) as served, await Peer.connect(served.address) as first:
        first.call(1, ECHO)
        assert await first.status(1) == Code.OK
        async with await Peer.connect(served.address) as second:
            assert await second.read() is None
        first.call(3, ECHO)
        assert await first.status(3) == Code.OK


async def test_headers_that_are_too_long_end_the_call_and_much_longer_ones_the_connection() -> None:
    async with serving(RpcLimits(header_list_bytes_max=1_000)) as served, await Peer.connect(served.address) as peer:
        peer.call(1, ECHO, extra=[("long", "x" * 1_000)])
        assert await peer.status(1) == Code.RESOURCE_EXHAUSTED
        peer.call(3, ECHO)
        assert await peer.status(3) == Code.OK
        peer.call(5, ECHO, extra=[("long", "x" * 3_900)])
        assert await peer.goaway() is ErrorCode.ENHANCE_YOUR_CALM


async def test_a_small_header_block_that_decodes_to_a_large_list_is_refused() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        entry = b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4_000
        peer.send(frame(HEADERS, END_HEADERS, 1, entry + b"\xbe" * 10_000))
        assert await peer.goaway() is ErrorCode.ENHANCE_YOUR_CALM


async def test_data_on_closed_streams_is_dropped_and_returned_to_the_connection_window() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        peer.call(1, ECHO)
        assert await peer.status(1) == Code.OK
        peer.send(frame(DATA, 0, 1, bytes(16_384)) * 1_000)
        assert (await peer.read_until(WINDOW_UPDATE)).stream_id == 0
        peer.call(3, ECHO)
        assert await peer.status(3) == Code.OK


async def test_a_silent_peer_is_pinged_and_disconnected_if_it_does_not_respond() -> None:
    async with (
        serving(RpcLimits(keepalive_s=0.2, keepalive_timeout_s=0.3)) as served,
        await Peer.connect(served.address) as peer,
    ):
        for _ in range(3):
            ping = await peer.read_until(PING)
            peer.send(frame(PING, ACK, 0, ping.payload))
        await peer.read_until(PING)
        assert await peer.read() is None


async def test_a_large_response_waits_for_the_peers_flow_control_windows() -> None:
    settings = SETTING.pack(SETTING_INITIAL_WINDOW, 10)
    async with serving() as served, await Peer.connect(served.address, settings=settings) as peer:
        peer.call(1, LARGE, b"100")
        assert len((await peer.read_until(DATA)).payload) == 10
        # Lowering the window size can make a window negative; nothing is sent until it is positive again.
        peer.send(frame(SETTINGS, 0, 0, SETTING.pack(SETTING_INITIAL_WINDOW, 0)) + window_update(1, 10))
        peer.send(frame(PING, 0, 0, bytes(8)))
        assert (await peer.read_until(PING, DATA)).kind == PING
        peer.send(window_update(1, 20))
        assert len((await peer.read_until(DATA)).payload) == 20
        peer.send(frame(SETTINGS, 0, 0, SETTING.pack(SETTING_INITIAL_WINDOW, 1_000)))
        assert len((await peer.read_until(DATA)).payload) == 75
        assert await peer.status(1) == Code.OK


async def test_small_responses_are_not_blocked_by_a_stream_that_is_not_read() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        peer.send(window_update(0, 10**6))
        peer.call(1, LARGE, b"1000000")
        await peer.read_until(DATA)
        peer.call(3, ECHO, b"small")
        assert (await peer.read_until(DATA, stream_id=3)).payload == framed(b"small")


async def test_the_size_of_unread_responses_is_bounded() -> None:
    limits = RpcLimits(message_bytes_max=100_000, send_bytes_max=300_000)
    async with serving(limits) as served, await Peer.connect(served.address) as peer:
        for number in range(20):
            peer.call(2 * number + 1, WAIT if number < 10 else LARGE, b"90000")
            # The server takes each call before the next one comes.
            await asyncio.sleep(0.005)
        # The connection window has less than one response left. Four responses wait; further calls are refused.
        assert await peer.reset(39) is ErrorCode.REFUSED_STREAM
        assert served.server.stats().streams <= 10 + 5


async def test_responses_of_calls_under_way_are_bounded_too_and_small_ones_are_still_sent() -> None:
    limits = RpcLimits(message_bytes_max=100_000, send_bytes_max=300_000)
    async with serving(limits) as served:

        async def handler(request: bytes, call: Call) -> bytes:
            await served.handlers.release.wait()
            return bytes(90_000)

        served.server.add("/x/Y", handler)
        async with await Peer.connect(served.address) as peer:
            for number in range(10):
                peer.call(2 * number + 1, "/x/Y")
            await until(lambda: served.server.stats().handlers == 10)
            served.handlers.release.set()
            # Seven responses are the first number above twice the bound.
            assert await peer.status(19) == Code.RESOURCE_EXHAUSTED
            await until(lambda: served.server.stats().handlers == 0)
            assert served.server.stats().streams == 7


async def test_peers_that_disconnect_during_responses_leave_no_stream() -> None:
    async with serving() as served:
        for number in range(30):
            async with await Peer.connect(served.address) as peer:
                for stream_id in range(1, 200, 2):
                    peer.call(stream_id, LARGE if number % 2 else ECHO, b"5000")
                await peer.read_until(HEADERS)
        await served.until_idle()
        await until(lambda: served.server.stats().connections == 0)


async def test_responses_of_cancelled_calls_no_longer_count() -> None:
    limits = RpcLimits(message_bytes_max=100_000, send_bytes_max=100_000)
    async with serving(limits) as served, await Peer.connect(served.address) as peer:
        for number in range(10):
            peer.call(2 * number + 1, LARGE, b"90000")
            await served.until_streams(1)
            peer.send(frame(RST_STREAM, 0, 2 * number + 1, UINT32.pack(ErrorCode.CANCEL)))
            await served.until_streams(0)


async def test_a_response_on_a_connection_that_was_just_lost_is_dropped_without_an_error() -> None:
    async with serving() as served:

        async def handler(request: bytes, call: Call) -> bytes:
            assert served.server._host is not None
            for connection in served.server._host.connections:
                connection._transport.abort()
            return b"too late"

        served.server.add("/x/Y", handler)
        async with await Peer.connect(served.address) as peer:
            peer.call(1, "/x/Y")
            await until(lambda: served.server.stats() == RpcStats(connections=0, streams=0, handlers=0))


async def test_padding_does_not_count_towards_the_message_size() -> None:
    async with serving() as served, await Peer.connect(served.address) as peer:
        message = framed(bytes(200_000))
        peer.send(peer.headers(1, request_headers(ECHO)) + window_update(0, 10**6) + window_update(1, 10**6))
        for start in range(0, len(message), 5_000):
            if start == 20_000:
                # The window now has exactly the size of the message.
                await peer.read_until(WINDOW_UPDATE, stream_id=1)
            piece = message[start : start + 5_000]
            is_padded = start < 190_000
            padded = b"\xff" + piece + bytes(255) if is_padded else piece
            peer.send(frame(DATA, PADDED if is_padded else 0, 1, padded))
        peer.send(frame(DATA, END_STREAM, 1))
        assert await peer.status(1) == Code.OK


async def test_a_peer_whose_call_ended_early_gets_a_reset_without_error() -> None:
    async with serving(RpcLimits(message_bytes_max=1_000)) as served, await Peer.connect(served.address) as peer:
        peer.send(peer.headers(1, request_headers(ECHO)) + frame(DATA, 0, 1, b"\x00\x00\x0f\x00\x00"))
        assert await peer.status(1) == Code.RESOURCE_EXHAUSTED
        assert await peer.reset(1) is ErrorCode.NO_ERROR
        peer.send(peer.headers(3, request_headers("/none")))
        assert await peer.status(3) == Code.UNIMPLEMENTED
        assert await peer.reset(3) is ErrorCode.NO_ERROR


async def test_a_message_whose_length_prefix_is_split_across_windows_is_received() -> None:
    go_on = asyncio.Event()

    async def handler(requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        await go_on.wait()
        async for request in requests:
            yield b"%d" % len(request)

    async with serving() as served:
        served.server.add_duplex("/x/Y", handler)
        async with await Peer.connect(served.address) as peer:
            first, second = framed(bytes(STREAM_WINDOW_BYTES - 5 - 3)), framed(bytes(200_000))
            data = first + second
            peer.send(peer.headers(1, request_headers("/x/Y")))
            room, sent = STREAM_WINDOW_BYTES, 0
            while True:
                while room and sent < len(data):
                    size = min(room, 16_384, len(data) - sent)
                    peer.send(frame(DATA, 0, 1, data[sent : sent + size]))
                    sent, room = sent + size, room - size
                go_on.set()
                if sent == len(data):
                    break
                widened = await peer.read_until(WINDOW_UPDATE, stream_id=1)
                room += UINT32.unpack(widened.payload)[0]
            peer.send(frame(DATA, END_STREAM, 1))
            assert await peer.status(1) == Code.OK


async def test_seeded_random_frames_never_stop_the_server_or_leak_a_stream() -> None:
    seed = 20_240
    rng = random.Random(seed)
    async with serving(
        RpcLimits(message_bytes_max=50_000, receive_bytes_max=100_000, send_bytes_max=100_000)
    ) as served:
        for number in range(150):
            async with await Peer.connect(served.address) as peer:
                peer.send(b"".join(_random_frames(rng, peer)))
                # The server has read a part of the frames, or all, when the peer goes away.
                await asyncio.sleep(0.001 if number % 10 else 0.05)
        await served.until_idle()
        await until(lambda: served.server.stats().connections == 0)
        await assert_alive(served.address)


def _random_frames(rng: random.Random, peer: Peer) -> list[bytes]:
    frames = []
    stream_id = 1
    for _ in range(rng.randrange(1, 40)):
        shape = rng.random()
        if shape < 0.4:
            path = rng.choice([ECHO, WAIT, LARGE, "/test.Service/Talk", "/test.Service/Count", "/none"])
            extra = [("grpc-timeout", rng.choice(["1m", "0n", "9H", "x"]))] if rng.random() < 0.3 else []
            flags = END_HEADERS | (END_STREAM if rng.random() < 0.1 else 0)
            frames.append(peer.headers(stream_id, request_headers(path, extra), flags=flags))
            body = framed(rng.choice([b"", b"7 1", b"40000", b"2 30000"]))
            frames.append(
                frame(DATA, rng.choice([0, END_STREAM, END_STREAM]), stream_id, body[: rng.choice([3, 99, 99])])
            )
            stream_id += 2
        elif shape < 0.9:
            kind, flags = rng.randrange(11), rng.choice([0, 1, 4, 5, rng.randrange(256)])
            payload = rng.randbytes(rng.choice([0, 4, 4, 5, 6, 8, rng.randrange(200)]))
            frames.append(frame(kind, flags, rng.choice([0, 1, max(1, stream_id - 2), rng.randrange(20)]), payload))
        else:
            frames.append(rng.randbytes(rng.randrange(30)))
    return frames
