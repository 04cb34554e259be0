"""Our client and our server, together."""

import asyncio
import socket
from contextlib import aclosing

import pytest

from fairlead.rpc import Code, RpcLimits, RpcServer, RpcStatus
from fairlead.rpc.client import Channel, ChannelLimits, InvalidMetadata, NotSent, RemoteStatus, ResponseLost
from fairlead.rpc.limits import MESSAGE_BYTES_DEFAULT
from tests.rpc.client.faking import all_of, channel_to, failed
from tests.rpc.served import ABOUT, COUNT, ECHO, FAIL, LARGE, WAIT, serving, until


async def test_a_call_is_answered_and_its_connection_is_kept() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        for number in range(20):
            assert await channel.unary(ECHO, b"%d" % number, timeout_s=30) == b"%d" % number
        assert await channel.unary(ECHO, b"") == b""
        assert served.server.stats().connections == 1
        await served.until_idle()


async def test_a_status_carries_its_code_message_details_and_trailers() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        failure = await failed(channel.unary(FAIL, b""))
        assert isinstance(failure, RemoteStatus)
        assert (failure.code, failure.message) == (Code.FAILED_PRECONDITION, "100 % naïve\n")
        assert failure.details == b"\x08\x09\x12\x03why"
        assert failure.trailers["reason"] == "asked"
        failure = await failed(channel.unary("/test.Service/Nothing", b""))
        assert (type(failure), failure.code) == (RemoteStatus, Code.UNIMPLEMENTED)


async def test_a_handler_gets_metadata_and_the_exact_time_that_is_left() -> None:
    metadata = (("a", "1"), ("b", "é \xff"), ("c-bin", b"\x00\xff\xfe"))
    async with serving() as served, channel_to(served.address) as channel:
        for timeout_s in (0.09, 0.5, 20.0, 3_000.0, 200_000.0):
            _, peer, plain, binary, remaining_s = eval(  # noqa: S307 - it is what the test's own server prints
                await channel.unary(ABOUT, b"", timeout_s=timeout_s, metadata=metadata)
            )
            assert peer.startswith("127.0.0.1:")
            assert (plain["a"], plain["b"], binary) == ("1", "é \xff", {"c-bin": b"\x00\xff\xfe"})
            assert plain["user-agent"].startswith("fairlead/")
            # The clocks of both sides are sums of floats.
            assert 0 < remaining_s <= timeout_s + 1e-6
            assert remaining_s > timeout_s * 0.5
        assert eval(await channel.unary(ABOUT, b""))[-1] is None  # noqa: S307


@pytest.mark.parametrize(
    "metadata",
    [("A", "x"), ("", "x"), ("grpc-x", "x"), ("te", "x"), (":path", "x"), ("a", "\n"), ("a", b"x"), ("a-bin", "x")],
)
async def test_metadata_that_can_not_be_sent_is_refused(metadata: tuple[str, str | bytes]) -> None:
    async with serving() as served, channel_to(served.address) as channel:
        with pytest.raises(InvalidMetadata):
            await channel.unary(ECHO, b"", metadata=(metadata,))


async def test_a_passed_deadline_ends_the_call_and_cancels_its_handler() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        failure = await failed(channel.unary(WAIT, b"", timeout_s=0.05))
        assert failure.code is Code.DEADLINE_EXCEEDED
        assert not isinstance(failure, NotSent)
        await until(lambda: served.handlers.cancelled == served.handlers.begun)
        await served.until_idle()


async def test_a_cancelled_call_cancels_its_handler_and_no_other() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        calls = [asyncio.ensure_future(channel.unary(WAIT, b"%d" % number)) for number in range(10)]
        await until(lambda: served.handlers.begun == 10)
        calls[3].cancel()
        await until(lambda: served.handlers.cancelled == 1)
        with pytest.raises(asyncio.CancelledError):
            await calls[3]
        served.handlers.release.set()
        assert await asyncio.gather(*calls[:3], *calls[4:]) == [b"%d" % number for number in range(10) if number != 3]


async def test_a_thousand_calls_at_once_leave_in_few_writes_and_get_their_own_answers() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        await channel.unary(ECHO, b"")
        connection = next(iter(channel._connections))
        writes = connection._outbox.writes
        calls = [channel.unary(ECHO, b"%d" % number, timeout_s=60) for number in range(1000)]
        assert await asyncio.gather(*calls) == [b"%d" % number for number in range(1000)]
        # The last ones may wait for window.
        assert connection._outbox.writes - writes <= 10


async def test_large_messages_go_both_ways_many_at_once() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        messages = [bytes([number]) * 3_000_000 for number in range(12)]
        assert await asyncio.gather(*(channel.unary(ECHO, message) for message in messages)) == messages
        assert len(await channel.unary(LARGE, b"%d" % MESSAGE_BYTES_DEFAULT)) == MESSAGE_BYTES_DEFAULT


async def test_messages_above_the_limit_are_refused_in_both_directions() -> None:
    async with serving() as served, channel_to(served.address, message_bytes_max=100_000) as channel:
        failure = await failed(channel.unary(ECHO, bytes(100_001)))
        assert (type(failure), failure.code) == (NotSent, Code.RESOURCE_EXHAUSTED)
        failure = await failed(channel.unary(LARGE, b"100001"))
        assert (type(failure), failure.code) == (ResponseLost, Code.RESOURCE_EXHAUSTED)
        assert len(await channel.unary(LARGE, b"100000")) == 100_000
        await served.until_idle()


async def test_responses_of_a_stream_arrive_in_order_and_may_end_by_a_status() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        sizes = [len(message) async for message in channel.stream(COUNT, b"30 100000", timeout_s=60)]
        assert sizes == [100_000] * 30
        received, failure = await all_of(channel.stream(COUNT, b"7 1"))
        assert (len(received), type(failure), str(failure)) == (7, RemoteStatus, "after all")
        assert [_ async for _ in channel.stream(COUNT, b"0 0")] == []


async def test_a_stream_that_is_left_cancels_its_handler() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        async with aclosing(channel.stream(COUNT, b"100000 10000")) as received:
            async for _ in received:
                break
        await until(lambda: served.handlers.cancelled == 1)
        await served.until_idle()


async def test_a_slow_reader_makes_the_server_wait_instead_of_filling_memory() -> None:
    async with (
        serving() as served,
        channel_to(served.address) as channel,
        aclosing(channel.stream(COUNT, b"10000 10000")) as received,
    ):
        await anext(received)
        await until(lambda: served.handlers.sent > 5)
        before = -1
        while before != served.handlers.sent:
            before = served.handlers.sent
            await asyncio.sleep(0.05)
        # Windows on both sides, and the buffers of the sockets.
        assert before < 1_000
        for _ in range(2_000):
            await anext(received)


async def test_calls_above_the_servers_limit_of_streams_wait_for_their_turn() -> None:
    async with serving(RpcLimits(streams_max=3)) as served, channel_to(served.address) as channel:
        calls = [asyncio.ensure_future(channel.unary(WAIT, b"%d" % number, timeout_s=60)) for number in range(10)]
        await until(lambda: served.handlers.begun == 3)
        calls[9].cancel()
        failure = await failed(channel.unary(WAIT, b"", timeout_s=0.02))
        assert (type(failure), failure.code) == (NotSent, Code.DEADLINE_EXCEEDED)
        assert (served.handlers.begun, channel.stats().calls) == (3, 9)
        served.handlers.release.set()
        assert await asyncio.gather(*calls[:9]) == [b"%d" % number for number in range(9)]


async def test_calls_above_the_channels_own_limit_are_refused() -> None:
    async with serving() as served, channel_to(served.address, calls_max=2) as channel:
        calls = [asyncio.ensure_future(channel.unary(WAIT, b"")) for _ in range(2)]
        await until(lambda: served.handlers.begun == 2)
        failure = await failed(channel.unary(WAIT, b""))
        assert (type(failure), failure.code) == (NotSent, Code.RESOURCE_EXHAUSTED)
        served.handlers.release.set()
        await asyncio.gather(*calls)


async def test_headers_above_the_servers_limit_are_not_sent() -> None:
    async with serving(RpcLimits(header_list_bytes_max=2_000)) as served, channel_to(served.address) as channel:
        failure = await failed(channel.unary(ECHO, b"", metadata=(("a", "x" * 2_000),)))
        assert (type(failure), failure.code) == (NotSent, Code.RESOURCE_EXHAUSTED)
        assert await channel.unary(ECHO, b"", metadata=(("a", "x" * 500),)) == b""


async def test_large_headers_are_sent_in_several_frames() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        seen = await channel.unary(ABOUT, b"", metadata=(("a", "x" * 30_000),))
        assert b"x" * 30_000 in seen


async def test_a_call_to_a_server_that_is_down_fails_as_not_sent() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        async with channel_to(f"127.0.0.1:{free.getsockname()[1]}") as channel:
            for _ in range(3):
                failure = await failed(channel.unary(ECHO, b""))
                assert isinstance(failure, NotSent)
                assert "Connection refused" in failure.message
        async with channel_to(f"localhost:{free.getsockname()[1]}") as channel:
            assert "Connection refused" in (await failed(channel.unary(ECHO, b""))).message
    for address in ("nowhere.invalid:1", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:x"):
        async with channel_to(address) as channel:
            failure = await failed(channel.unary(ECHO, b""))
            assert isinstance(failure, NotSent)
            assert address in failure.message


async def test_attempts_to_connect_are_spaced_and_calls_between_them_fail_at_once() -> None:
    attempts = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.transport.abort()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, channel_to(address, reconnect_first_s=20.0, reconnect_max_s=40.0) as channel:
        for _ in range(20):
            assert isinstance(await failed(channel.unary(ECHO, b"")), NotSent)
        assert attempts == 1
        channel._retry_at_s = 0.0
        assert isinstance(await failed(channel.unary(ECHO, b"")), NotSent)
        assert attempts == 2
        loop_s = asyncio.get_running_loop().time()
        assert 20.0 - 1.0 < channel._retry_at_s - loop_s <= 40.0


async def test_calls_made_at_once_share_one_connection() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        await asyncio.gather(*(channel.unary(ECHO, b"") for _ in range(50)))
        assert served.server.stats().connections == 1


async def test_a_drained_server_finishes_its_calls_and_gets_no_more() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        call = asyncio.ensure_future(channel.unary(WAIT, b"poll"))
        await until(lambda: served.handlers.begun == 1)
        served.server.drain()
        await until(lambda: channel._current is None)
        assert isinstance(await failed(channel.unary(ECHO, b"")), NotSent)
        served.handlers.release.set()
        assert await call == b"poll"
        await until(lambda: channel.stats().connections == 0)


async def test_calls_that_outlast_the_grace_period_have_an_unknown_outcome() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        calls = [asyncio.ensure_future(channel.unary(WAIT, b"")) for _ in range(5)]
        await until(lambda: served.handlers.begun == 5)
        await served.server.stop(0)
        for call in calls:
            failure = await failed(call)
            assert (failure.code, isinstance(failure, NotSent)) == (Code.UNAVAILABLE, False)


async def test_a_server_that_came_back_is_found_again() -> None:
    async with serving() as served:
        address = served.address
        async with channel_to(address, reconnect_max_s=0.05) as channel:
            assert await channel.unary(ECHO, b"") == b""
            await served.server.stop(0)
            assert isinstance(await failed(channel.unary(ECHO, b"")), NotSent)
            server = RpcServer(address)

            async def echo(request: bytes, _: object) -> bytes:
                return request

            server.add(ECHO, echo)
            await server.start()
            async with asyncio.timeout(30):
                while True:
                    try:
                        assert await channel.unary(ECHO, b"back") == b"back"
                        break
                    except NotSent:
                        await asyncio.sleep(0.01)
            await server.stop(0)


async def test_a_channel_reconnects_on_request_and_open_calls_continue() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        call = asyncio.ensure_future(channel.unary(WAIT, b"poll"))
        await until(lambda: served.handlers.begun == 1)
        for _ in range(3):
            channel.reconnect()
        assert await channel.unary(ECHO, b"") == b""
        assert served.server.stats().connections == 2
        served.handlers.release.set()
        assert await call == b"poll"
        await until(lambda: served.server.stats().connections == 1)
        channel.reconnect()
        await until(lambda: served.server.stats().connections == 0)


async def test_a_closed_channel_ends_its_calls_and_refuses_new_ones() -> None:
    async with serving() as served:
        channel = Channel(served.address)
        calls = [asyncio.ensure_future(channel.unary(WAIT, b"")) for _ in range(3)]
        await until(lambda: served.handlers.begun == 3)
        await channel.close()
        for call in calls:
            assert isinstance(await failed(call), ResponseLost)
        failure = await failed(channel.unary(ECHO, b""))
        assert isinstance(failure, NotSent)
        assert "closed" in failure.message
        await channel.close()
        await served.until_idle()


async def test_a_connection_without_stream_ids_left_is_replaced() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        await channel.unary(ECHO, b"")
        first = next(iter(channel._connections))
        first.calls.last_id = 2**31 - 3
        call = asyncio.ensure_future(channel.unary(WAIT, b"last"))
        await until(lambda: served.handlers.begun == 1)
        assert not first.is_ready
        assert await channel.unary(ECHO, b"next") == b"next"
        assert channel.stats().connections == 2
        served.handlers.release.set()
        assert await call == b"last"
        await until(lambda: channel.stats().connections == 1)


async def test_an_error_in_a_stream_that_is_never_read_leaks_nothing() -> None:
    async with serving() as served, channel_to(served.address) as channel:

        async def refuse(_: bytes, __: object) -> bytes:
            raise RpcStatus(Code.ABORTED, "no")

        served.server.add("/test.Service/Refuse", refuse)
        calls = [asyncio.ensure_future(channel.unary("/test.Service/Refuse", b"")) for _ in range(10)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await served.until_idle()


@pytest.mark.parametrize("limits", [{"message_bytes_max": 0}, {"send_bytes_max": 1}])
def test_limits_that_contradict_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(Exception, match=next(iter(limits))):
        ChannelLimits(**limits)
