import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from structlog.testing import capture_logs

from fairlead.cluster import (
    MESSAGE_BYTES_MAX,
    CallLost,
    CannotListen,
    Errors,
    Exhausted,
    GrpcCaller,
    GrpcServer,
    Handlers,
    LocalNetwork,
    Method,
    UnknownMethod,
    Unreachable,
)
from fairlead.cluster.wire import ERROR_KEY, MessageTooLarge
from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryElsewhere, RetryLater
from fairlead.core.partitions import PartitionConfig
from fairlead.matching.engine import NotOwner
from fairlead.matching.messages import StaleConfig
from fairlead.storage.contract import LeaseLost


class Ask(msgspec.Struct, frozen=True, array_like=True):
    data: bytes = b""
    number: int = 0


ASK = Method("test.Ask", Ask, Ask)
OTHER = Method("test.Other", Ask, Ask)
ERRORS = Errors([NotOwner, StaleConfig, LeaseLost])
Handle = Callable[[Ask], Awaitable[Ask]]


async def echo(request: Ask) -> Ask:
    return request


@asynccontextmanager
async def served(
    handle: Handle, *, listen: str = "127.0.0.1:0", errors: Errors = ERRORS, calls_max: int = 10_000
) -> AsyncIterator[tuple[GrpcServer, str]]:
    handlers = Handlers()
    handlers.add(ASK, handle)
    server = GrpcServer(handlers, listen=listen, errors=errors, calls_max=calls_max)
    address = await server.start()
    try:
        yield server, address
    finally:
        await server.stop(grace_s=0)


@pytest.fixture
async def caller() -> AsyncIterator[GrpcCaller]:
    caller = GrpcCaller(errors=ERRORS)
    yield caller
    await caller.close()


async def ask(caller: GrpcCaller, address: str, request: Ask | None = None, *, timeout_s: float = 10.0) -> Ask:
    return await caller.call(address, ASK, request or Ask(), timeout_s=timeout_s)


async def test_a_request_gets_there_and_its_answer_back(caller: GrpcCaller) -> None:
    async def add_one(request: Ask) -> Ask:
        return Ask(request.data, request.number + 1)

    async with served(add_one) as (_, address):
        assert address.startswith("127.0.0.1:")
        assert not address.endswith(":0")
        assert await ask(caller, address, Ask(b"\x00\xff", 1)) == Ask(b"\x00\xff", 2)


@pytest.mark.parametrize(
    ("error", "crosses_as"),
    [
        (FixRequest("fix"), FixRequest),
        (RetryElsewhere("elsewhere"), RetryElsewhere),
        (RetryLater("later"), RetryLater),
        (GiveUp("give up"), GiveUp),
        (NotOwner("owned by 'é': ask there"), NotOwner),
        (LeaseLost("lost"), LeaseLost),
        (Exhausted("full"), Exhausted),
        (Unreachable("third host"), Unreachable),
        (CallLost("third host"), CallLost),
    ],
)
async def test_every_kind_of_error_crosses(
    caller: GrpcCaller, error: FairleadError, crosses_as: type[FairleadError]
) -> None:
    async def refuse(_: Ask) -> Ask:
        raise error

    async with served(refuse) as (_, address):
        with pytest.raises(FairleadError) as raised:
            await ask(caller, address)
    assert (type(raised.value), str(raised.value)) == (crosses_as, str(error))


async def test_a_stale_configuration_crosses_with_the_one_to_go_by(caller: GrpcCaller) -> None:
    """Seed 001: a caller with a stale configuration gets a typed error that carries the new one."""
    config = PartitionConfig(version=9, read=8, write=4)

    async def refuse(_: Ask) -> Ask:
        raise StaleConfig("partition 7 takes no tasks", config)

    async with served(refuse) as (_, address):
        with pytest.raises(StaleConfig, match="partition 7 takes no tasks") as raised:
            await ask(caller, address)
    assert raised.value.config == config


async def test_the_longest_error_crosses(caller: GrpcCaller) -> None:
    async def refuse(_: Ask) -> Ask:
        raise RetryLater("漢" * 100_000)

    async with served(refuse) as (_, address):
        with pytest.raises(RetryLater, match=r"^漢{600}"):
            await ask(caller, address)


async def test_a_fault_of_a_handler_is_logged_and_the_host_goes_on(caller: GrpcCaller) -> None:
    async def fail_at_zero(request: Ask) -> Ask:
        return Ask(number=1 // request.number)

    async with served(fail_at_zero) as (_, address):
        with capture_logs() as logs, pytest.raises(GiveUp, match=r"test\.Ask failed .* ZeroDivisionError"):
            await ask(caller, address)
        assert [(log["event"], log["method"]) for log in logs] == [("handler failed", "test.Ask")]
        assert await ask(caller, address, Ask(number=1)) == Ask(number=1)


async def test_what_a_host_does_not_offer_is_unknown(caller: GrpcCaller) -> None:
    async with served(echo) as (_, address):
        with pytest.raises(UnknownMethod, match=r"test\.Other"):
            await caller.call(address, OTHER, Ask(), timeout_s=10.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - of something that tells nobody when it changes
            await asyncio.sleep(0.001)


class Waiting:
    """A handler that waits until it is let go, and knows how it ended."""

    def __init__(self) -> None:
        self.begun = 0
        self.answered = 0
        self.cancelled = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, request: Ask) -> Ask:
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.answered += 1
        return request

    async def until_begun(self, calls: int = 1) -> None:
        await until(lambda: self.begun >= calls)


async def test_whoever_is_cancelled_has_its_request_cancelled_at_the_host(caller: GrpcCaller) -> None:
    waiting = Waiting()
    async with served(waiting) as (_, address):
        calling = asyncio.create_task(ask(caller, address))
        await waiting.until_begun()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        async with asyncio.timeout(10):
            await waiting.cancelled.wait()


async def test_a_call_that_is_not_answered_in_time_is_lost_and_its_handler_cancelled(caller: GrpcCaller) -> None:
    waiting = Waiting()
    async with served(waiting) as (_, address):
        await asyncio.gather(ask(caller, address, timeout_s=0.3), return_exceptions=True)
        with pytest.raises(CallLost, match="DEADLINE_EXCEEDED"):
            await ask(caller, address, timeout_s=0.1)
        async with asyncio.timeout(10):
            await waiting.cancelled.wait()


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
async def test_without_any_time_nothing_is_sent(caller: GrpcCaller, timeout_s: float) -> None:
    waiting = Waiting()
    async with served(waiting) as (_, address):
        with pytest.raises(CallLost, match="allow it some time"):
            await ask(caller, address, timeout_s=timeout_s)
        await asyncio.sleep(0.05)
        assert waiting.begun == 0


async def test_a_handler_that_its_own_host_cancels_is_a_lost_call(caller: GrpcCaller) -> None:
    async def cancelled(request: Ask) -> Ask:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        return request

    async with served(cancelled) as (_, address):
        with pytest.raises(CallLost, match="cancelled by its own host"):
            await ask(caller, address)


async def test_a_host_that_is_not_there_is_unreachable(caller: GrpcCaller) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        # Bound, and nobody listens: refused.
        with pytest.raises(Unreachable, match=address):
            await ask(caller, address)
    with pytest.raises(Unreachable, match=r"nowhere\.invalid"):
        await ask(caller, "nowhere.invalid:7240")


async def test_a_call_that_a_host_took_and_did_not_answer_before_it_died_is_lost(caller: GrpcCaller) -> None:
    waiting = Waiting()
    async with served(waiting) as (server, address):
        calling = asyncio.create_task(ask(caller, address))
        await waiting.until_begun()
        await server.stop(grace_s=0)
        with pytest.raises(CallLost):
            await calling
        assert waiting.cancelled.is_set()
        with pytest.raises(Unreachable):
            await ask(caller, address)


async def test_a_host_that_comes_back_on_its_port_is_found_again_soon(caller: GrpcCaller) -> None:
    async with served(echo) as (_, address):
        await ask(caller, address)
    for _ in range(5):
        with pytest.raises(Unreachable):
            await ask(caller, address)
        await asyncio.sleep(0.1)
    async with served(echo, listen=address):
        async with asyncio.timeout(2):
            while True:
                try:
                    assert await ask(caller, address, Ask(number=7)) == Ask(number=7)
                    break
                except Unreachable:
                    await asyncio.sleep(0.02)


async def test_stopping_lets_the_calls_that_were_taken_end(caller: GrpcCaller) -> None:
    """Issue 3: a host that stops does so without failed requests."""
    waiting = Waiting()
    async with served(waiting) as (server, address):
        calling = [asyncio.create_task(ask(caller, address, Ask(number=number))) for number in range(20)]
        await waiting.until_begun(20)
        stopping = asyncio.create_task(server.stop(grace_s=30))
        await asyncio.sleep(0)
        # One that comes later is told so, and knows that it was not carried out.
        with pytest.raises(Unreachable, match="is stopping"):
            await ask(caller, address)
        assert (waiting.begun, stopping.done()) == (20, False)
        waiting.go.set()
        assert [answer.number for answer in await asyncio.gather(*calling)] == list(range(20))
        async with asyncio.timeout(10):
            await stopping


async def test_no_call_is_lost_when_a_host_stops_under_load(caller: GrpcCaller) -> None:
    """Issue 3: a host that stops hands over without failed requests."""
    begun: set[int] = set()
    answered: set[int] = set()
    refused: list[int] = []

    async def work(request: Ask) -> Ask:
        begun.add(request.number)
        await asyncio.sleep(0.002)
        return request

    async def call_on_and_on(worker: int) -> None:
        for number in range(worker, 10**9, 50):
            try:
                answered.add((await ask(caller, address, Ask(number=number))).number)
            except Unreachable:
                refused.append(number)
                return

    async with served(work) as (server, address):
        calling = [asyncio.create_task(call_on_and_on(worker)) for worker in range(50)]
        await until(lambda: len(answered) > 200)
        await server.stop(grace_s=30)
        await asyncio.gather(*calling)
    assert begun == answered
    assert len(refused) == 50
    assert begun.isdisjoint(refused)


async def test_what_does_not_end_within_the_grace_is_cancelled_and_waited_for(caller: GrpcCaller) -> None:
    ended = asyncio.Event()

    async def linger(request: Ask) -> Ask:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            ended.set()
        return request

    begun = asyncio.Event()
    async with served(linger) as (server, address):
        calling = asyncio.create_task(ask(caller, address))
        await begun.wait()
        await server.stop(grace_s=0.05)
        assert ended.is_set()
        with pytest.raises(CallLost):
            await calling


async def test_a_host_may_be_stopped_before_it_was_started_and_twice() -> None:
    server = GrpcServer(Handlers(), errors=ERRORS)
    await server.stop(grace_s=0)
    server = GrpcServer(Handlers(), errors=ERRORS)
    server.bind()
    await server.stop(grace_s=0)
    async with served(echo) as (server, _):
        await server.stop(grace_s=0)


async def test_a_host_knows_its_address_before_it_answers(caller: GrpcCaller) -> None:
    handlers = Handlers()
    server = GrpcServer(handlers, errors=ERRORS)
    address = server.bind()
    handlers.add(ASK, echo)
    assert await server.start() == address
    assert await ask(caller, address) == Ask()
    await server.stop(grace_s=0)


async def test_two_hosts_can_not_have_one_address() -> None:
    async with served(echo) as (_, address):
        with pytest.raises(CannotListen, match=address):
            async with served(echo, listen=address):
                pass


async def test_an_oversize_request_is_refused_before_it_is_sent(caller: GrpcCaller) -> None:
    waiting = Waiting()
    async with served(waiting) as (_, address):
        with pytest.raises(MessageTooLarge, match=str(MESSAGE_BYTES_MAX)):
            await ask(caller, address, Ask(b"x" * MESSAGE_BYTES_MAX))
    assert waiting.begun == 0


async def test_an_oversize_answer_is_refused_with_a_clear_error(caller: GrpcCaller) -> None:
    async def inflate(_: Ask) -> Ask:
        return Ask(b"x" * MESSAGE_BYTES_MAX)

    async with served(inflate, errors=Errors([MessageTooLarge])) as (_, address):
        with pytest.raises(FixRequest, match="ask for, less"):
            await ask(caller, address)


async def test_the_largest_message_crosses_both_ways(caller: GrpcCaller) -> None:
    request = Ask(b"x" * (MESSAGE_BYTES_MAX - 20))
    async with served(echo) as (_, address):
        assert await ask(caller, address, request) == request


async def send_raw(address: str, data: bytes) -> tuple[grpc.StatusCode, str, dict[str, bytes]]:
    """As a caller that is not one of ours: the status, its text and the metadata of the failure."""
    async with grpc.aio.insecure_channel(address, options=(("grpc.max_send_message_length", -1),)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary("/fairlead/test.Ask", None, None)(data, timeout=10)
        metadata: Any = raised.value.trailing_metadata() or ()
        return raised.value.code(), raised.value.details() or "", dict(metadata)


async def test_malformed_bytes_are_refused_and_the_host_goes_on(caller: GrpcCaller) -> None:
    async with served(echo) as (_, address):
        for data in (b"", b"\xc1", b"\x92\x01\x02", b"\x93\xc4\x00\x00" + b"\x91" * 100_000):
            code, text, metadata = await send_raw(address, data)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "no request of test.Ask" in text
            assert type(ERRORS.decode(metadata[ERROR_KEY])) is FixRequest
        assert await ask(caller, address) == Ask()


async def test_a_foreign_caller_can_not_send_more_than_the_bound() -> None:
    async with served(echo) as (_, address):
        code, text, _ = await send_raw(address, b"x" * (MESSAGE_BYTES_MAX + 1))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(MESSAGE_BYTES_MAX) in text


async def test_a_thousand_calls_at_once_each_get_their_own_answer(caller: GrpcCaller) -> None:
    waiting = Waiting()
    async with served(waiting) as (_, address):
        calling = [asyncio.create_task(ask(caller, address, Ask(number=number))) for number in range(1000)]
        await waiting.until_begun(1000)
        waiting.go.set()
        assert [answer.number for answer in await asyncio.gather(*calling)] == list(range(1000))


async def test_more_calls_than_the_bound_are_refused_and_room_is_made_by_those_that_end(caller: GrpcCaller) -> None:
    waiting = Waiting()
    async with served(waiting, calls_max=2) as (_, address):
        calling = [asyncio.create_task(ask(caller, address)) for _ in range(2)]
        await waiting.until_begun(2)
        with pytest.raises(Exhausted, match="2 calls are under way"):
            await ask(caller, address)
        waiting.go.set()
        await asyncio.gather(*calling)
        for _ in range(3):
            assert await ask(caller, address) == Ask()


async def test_a_host_calls_itself_without_leaving_the_process() -> None:
    network = LocalNetwork()
    caller = GrpcCaller(errors=ERRORS, self_host="127.0.0.1:1", local=network.caller())
    handlers = Handlers()
    handlers.add(ASK, echo)
    network.register("127.0.0.1:1", handlers)
    request = Ask()
    assert await ask(caller, "127.0.0.1:1", request) is request
    async with served(echo) as (_, address):
        answer = await ask(caller, address, request)
        assert answer == request
        assert answer is not request
    await caller.close()


async def test_of_many_hosts_the_one_called_longest_ago_is_let_go_when_its_calls_have_ended() -> None:
    waiting = Waiting()
    caller = GrpcCaller(errors=ERRORS, hosts_max=2)
    async with served(waiting) as (_, oldest), served(echo) as (_, second), served(echo) as (_, third):
        calling = asyncio.create_task(ask(caller, oldest, Ask(number=5)))
        await waiting.until_begun()
        for address in (second, third, second):
            await ask(caller, address)
        assert list(caller._peers) == [third, second]
        assert len(caller._let_go) == 1
        waiting.go.set()
        assert await calling == Ask(number=5)
        await until(lambda: not caller._closing)
        assert caller._let_go == set()
        # It comes back when it is called again, in the place of the one called longest ago.
        assert await ask(caller, oldest, Ask(number=6)) == Ask(number=6)
        assert list(caller._peers) == [second, oldest]
    await caller.close()


async def test_closing_a_caller_loses_its_calls_and_takes_no_more() -> None:
    waiting = Waiting()
    caller = GrpcCaller(errors=ERRORS, hosts_max=1)
    async with served(waiting) as (_, first), served(waiting) as (_, second):
        calling = [asyncio.create_task(ask(caller, address)) for address in (first, second)]
        await waiting.until_begun(2)
        await caller.close()
        for one in calling:
            with pytest.raises(CallLost, match="closed"):
                await one
        with pytest.raises(Unreachable, match="closed"):
            await ask(caller, first)
        await caller.close()


def check(channel: grpc.aio.Channel) -> Callable[[str], Awaitable[HealthCheckResponse]]:
    send = channel.unary_unary(
        "/grpc.health.v1.Health/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
    )
    return lambda service: send(HealthCheckRequest(service=service), timeout=10)


async def test_the_health_service_says_serving_until_the_host_drains(caller: GrpcCaller) -> None:
    async with served(echo) as (server, address), grpc.aio.insecure_channel(address) as channel:
        for service in ("", "fairlead"):
            assert (await check(channel)(service)).status == HealthCheckResponse.SERVING
        server.drain()
        assert (await check(channel)("")).status == HealthCheckResponse.NOT_SERVING
        # Those who have not heard of it are served as before.
        assert await ask(caller, address) == Ask()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await check(channel)("other")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_the_health_service_says_when_the_host_is_not_able_to_serve_and_when_it_is_again() -> None:
    async with served(echo) as (server, address), grpc.aio.insecure_channel(address) as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
        )
        watching = watch(HealthCheckRequest())
        assert (await watching.read()).status == HealthCheckResponse.SERVING  # type: ignore[attr-defined]
        for is_able, status in ((False, HealthCheckResponse.NOT_SERVING), (True, HealthCheckResponse.SERVING)):
            server.set_able(is_able=is_able)
            server.set_able(is_able=is_able)
            assert (await watching.read()).status == status  # type: ignore[attr-defined]
            assert (await check(channel)("")).status == status
        server.drain()
        server.set_able(is_able=False)
        server.set_able(is_able=True)
        assert (await watching.read()).status == HealthCheckResponse.NOT_SERVING  # type: ignore[attr-defined]
        assert (await check(channel)("")).status == HealthCheckResponse.NOT_SERVING


async def test_who_watches_the_health_hears_of_the_drain_and_does_not_keep_the_host_from_stopping() -> None:
    async with served(echo) as (server, address), grpc.aio.insecure_channel(address) as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
        )
        watching, other = watch(HealthCheckRequest()), watch(HealthCheckRequest(service="other"))
        assert (await watching.read()).status == HealthCheckResponse.SERVING  # type: ignore[attr-defined]
        assert (await other.read()).status == HealthCheckResponse.SERVICE_UNKNOWN  # type: ignore[attr-defined]
        server.drain()
        assert (await watching.read()).status == HealthCheckResponse.NOT_SERVING  # type: ignore[attr-defined]
        async with asyncio.timeout(10):
            await server.stop(grace_s=60)
        assert await watching.read() is grpc.aio.EOF  # type: ignore[attr-defined]
