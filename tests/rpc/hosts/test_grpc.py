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

from fairlead.api.codes import code_of
from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryElsewhere, RetryLater
from fairlead.core.partitions import PartitionConfig
from fairlead.matching.engine import NotOwner
from fairlead.matching.messages import StaleConfig
from fairlead.rpc.hosts.caller import CallLost, Handlers, Method, Overloaded, UnknownMethod, Unreachable
from fairlead.rpc.hosts.grpc_caller import GrpcCaller
from fairlead.rpc.hosts.grpc_server import GrpcServer
from fairlead.rpc.hosts.local import LocalNetwork
from fairlead.rpc.hosts.wire import ERROR_KEY, MESSAGE_BYTES_MAX, Errors, MessageTooLarge
from fairlead.storage.tasks import LeaseLost
from fairlead.telemetry import CannotListen


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
    server = GrpcServer(handlers, listen=listen, errors=errors, code_of=code_of, calls_max=calls_max)
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


async def test_a_request_and_its_response_are_transferred(caller: GrpcCaller) -> None:
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
        (Overloaded("full"), Overloaded),
        (Unreachable("third host"), Unreachable),
        (CallLost("third host"), CallLost),
    ],
)
async def test_every_kind_of_error_is_transferred(
    caller: GrpcCaller, error: FairleadError, crosses_as: type[FairleadError]
) -> None:
    async def refuse(_: Ask) -> Ask:
        raise error

    async with served(refuse) as (_, address):
        with pytest.raises(FairleadError) as raised:
            await ask(caller, address)
    assert (type(raised.value), str(raised.value)) == (crosses_as, str(error))


async def test_the_error_about_a_stale_configuration_brings_the_new_one(caller: GrpcCaller) -> None:
    """FL-21: the error carries the new configuration."""
    config = PartitionConfig(version=9, read=8, write=4)

    async def refuse(_: Ask) -> Ask:
        raise StaleConfig("partition 7 takes no tasks", config)

    async with served(refuse) as (_, address):
        with pytest.raises(StaleConfig, match="partition 7 takes no tasks") as raised:
            await ask(caller, address)
    assert raised.value.config == config


async def test_the_longest_error_is_transferred(caller: GrpcCaller) -> None:
    async def refuse(_: Ask) -> Ask:
        raise RetryLater("漢" * 100_000)

    async with served(refuse) as (_, address):
        with pytest.raises(RetryLater, match=r"^漢{600}"):
            await ask(caller, address)


async def test_an_unexpected_exception_of_a_handler_is_logged_and_the_host_keeps_serving(caller: GrpcCaller) -> None:
    async def fail_at_zero(request: Ask) -> Ask:
        return Ask(number=1 // request.number)

    async with served(fail_at_zero) as (_, address):
        with capture_logs() as logs, pytest.raises(GiveUp, match=r"test\.Ask failed .* ZeroDivisionError"):
            await ask(caller, address)
        assert [(log["event"], log["method"]) for log in logs] == [("handler failed", "test.Ask")]
        assert await ask(caller, address, Ask(number=1)) == Ask(number=1)


async def test_a_method_that_a_host_does_not_have_is_unknown(caller: GrpcCaller) -> None:
    async with served(echo) as (_, address):
        with pytest.raises(UnknownMethod, match=r"test\.Other"):
            await caller.call(address, OTHER, Ask(), timeout_s=10.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.001)


class Waiting:
    """A handler that waits until the test releases it, and records how it ended."""

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


async def test_cancelling_a_caller_cancels_its_request_at_the_host(caller: GrpcCaller) -> None:
    waiting = Waiting()
    async with served(waiting) as (_, address):
        calling = asyncio.create_task(ask(caller, address))
        await waiting.until_begun()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        async with asyncio.timeout(10):
            await waiting.cancelled.wait()


async def test_a_call_that_times_out_is_lost_and_its_handler_is_cancelled(caller: GrpcCaller) -> None:
    waiting = Waiting()
    async with served(waiting) as (_, address):
        await asyncio.gather(ask(caller, address, timeout_s=0.3), return_exceptions=True)
        with pytest.raises(CallLost, match="DEADLINE_EXCEEDED"):
            await ask(caller, address, timeout_s=0.1)
        async with asyncio.timeout(10):
            await waiting.cancelled.wait()


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
async def test_a_call_with_no_time_left_is_not_sent(caller: GrpcCaller, timeout_s: float) -> None:
    waiting = Waiting()
    async with served(waiting) as (_, address):
        with pytest.raises(CallLost, match="give more than 0"):
            await ask(caller, address, timeout_s=timeout_s)
        # A later call on the same connection shows that nothing was sent before it.
        later = asyncio.create_task(ask(caller, address, timeout_s=5.0))
        await waiting.until_begun()
        assert waiting.begun == 1
        waiting.go.set()
        await later


async def test_a_call_whose_handler_is_cancelled_by_its_own_host_is_lost(caller: GrpcCaller) -> None:
    async def cancelled(request: Ask) -> Ask:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        return request

    async with served(cancelled) as (_, address):
        with pytest.raises(CallLost, match="cancelled by its host"):
            await ask(caller, address)


async def test_a_host_that_does_not_run_is_unreachable(caller: GrpcCaller) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        # Bound but not listening: connections are refused.
        with pytest.raises(Unreachable, match=address):
            await ask(caller, address)
    with pytest.raises(Unreachable, match=r"nowhere\.invalid"):
        await ask(caller, "nowhere.invalid:7240")


async def test_a_call_that_a_host_accepted_before_it_died_is_lost(caller: GrpcCaller) -> None:
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


async def test_a_host_that_restarts_on_its_port_is_reached_again_soon(caller: GrpcCaller) -> None:
    async with served(echo) as (_, address):
        await ask(caller, address)
    for _ in range(5):
        with pytest.raises(Unreachable):
            await ask(caller, address)
        # Retries that are spread over a while: the pause between connection attempts must not grow.
        await asyncio.sleep(0.1)
    async with served(echo, listen=address):
        async with asyncio.timeout(2):
            while True:
                try:
                    assert await ask(caller, address, Ask(number=7)) == Ask(number=7)
                    break
                except Unreachable:
                    await asyncio.sleep(0.02)


async def test_stopping_a_host_finishes_its_accepted_calls(caller: GrpcCaller) -> None:
    """FL-17: a stopping host finishes the calls that it has taken."""
    waiting = Waiting()
    async with served(waiting) as (server, address):
        calling = [asyncio.create_task(ask(caller, address, Ask(number=number))) for number in range(20)]
        await waiting.until_begun(20)
        stopping = asyncio.create_task(server.stop(grace_s=30))
        await asyncio.sleep(0)
        # A later call gets an error that says it was not carried out.
        with pytest.raises(Unreachable, match="is stopping"):
            await ask(caller, address)
        assert (waiting.begun, stopping.done()) == (20, False)
        waiting.go.set()
        assert [answer.number for answer in await asyncio.gather(*calling)] == list(range(20))
        async with asyncio.timeout(10):
            await stopping


async def test_no_call_is_lost_when_a_host_stops_under_load(caller: GrpcCaller) -> None:
    """FL-17: no request fails."""
    begun: set[int] = set()
    answered: set[int] = set()
    refused: list[int] = []

    async def work(request: Ask) -> Ask:
        begun.add(request.number)
        # Some calls are running at any moment.
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


async def test_a_call_that_outlasts_the_grace_period_is_cancelled_and_awaited(caller: GrpcCaller) -> None:
    ended = asyncio.Event()

    async def linger(request: Ask) -> Ask:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            # The end of the handler takes a while, and must be awaited.
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


async def test_a_host_can_be_stopped_before_its_start_and_twice() -> None:
    server = GrpcServer(Handlers(), errors=ERRORS, code_of=code_of)
    await server.stop(grace_s=0)
    server = GrpcServer(Handlers(), errors=ERRORS, code_of=code_of)
    server.bind()
    await server.stop(grace_s=0)
    async with served(echo) as (server, _):
        await server.stop(grace_s=0)


async def test_a_host_knows_its_address_before_it_serves(caller: GrpcCaller) -> None:
    handlers = Handlers()
    server = GrpcServer(handlers, errors=ERRORS, code_of=code_of)
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


async def test_an_oversize_response_is_refused_with_a_clear_error(caller: GrpcCaller) -> None:
    async def inflate(_: Ask) -> Ask:
        return Ask(b"x" * MESSAGE_BYTES_MAX)

    async with served(inflate, errors=Errors([MessageTooLarge])) as (_, address):
        with pytest.raises(FixRequest, match="ask for, less"):
            await ask(caller, address)


async def test_the_largest_message_is_transferred_in_both_directions(caller: GrpcCaller) -> None:
    request = Ask(b"x" * (MESSAGE_BYTES_MAX - 20))
    async with served(echo) as (_, address):
        assert await ask(caller, address, request) == request


async def send_raw(address: str, data: bytes) -> tuple[grpc.StatusCode, str, dict[str, bytes]]:
    """Call the host as a foreign client does; returns the failure's status, message and metadata."""
    async with grpc.aio.insecure_channel(address, options=(("grpc.max_send_message_length", -1),)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary("/fairlead/test.Ask", None, None)(data, timeout=10)
        metadata: Any = raised.value.trailing_metadata() or ()
        return raised.value.code(), raised.value.details() or "", dict(metadata)


async def test_malformed_bytes_are_refused_and_the_host_keeps_serving(caller: GrpcCaller) -> None:
    async with served(echo) as (_, address):
        for data in (b"", b"\xc1", b"\x92\x01\x02", b"\x93\xc4\x00\x00" + b"\x91" * 100_000):
            code, text, metadata = await send_raw(address, data)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "not a request of test.Ask" in text
            assert type(ERRORS.decode(metadata[ERROR_KEY])) is FixRequest
        assert await ask(caller, address) == Ask()


async def test_a_foreign_client_can_not_send_more_than_the_size_limit() -> None:
    async with served(echo) as (_, address):
        code, text, _ = await send_raw(address, b"x" * (MESSAGE_BYTES_MAX + 1))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(MESSAGE_BYTES_MAX) in text


async def test_each_of_a_thousand_concurrent_calls_gets_its_own_response(caller: GrpcCaller) -> None:
    waiting = Waiting()
    async with served(waiting) as (_, address):
        calling = [asyncio.create_task(ask(caller, address, Ask(number=number))) for number in range(1000)]
        await waiting.until_begun(1000)
        waiting.go.set()
        assert [answer.number for answer in await asyncio.gather(*calling)] == list(range(1000))


async def test_thousands_of_calls_given_up_at_once_do_not_cost_the_connection(caller: GrpcCaller) -> None:
    waiting = Waiting()
    async with served(waiting) as (_, address):
        kept = asyncio.create_task(ask(caller, address, Ask(number=1)))
        calling = [asyncio.create_task(ask(caller, address)) for _ in range(7_000)]
        await waiting.until_begun(7_001)
        for one in calling:
            one.cancel()
        await asyncio.gather(*calling, return_exceptions=True)
        waiting.go.set()
        assert await kept == Ask(number=1)


async def test_calls_above_the_limit_are_refused_until_others_end(caller: GrpcCaller) -> None:
    waiting = Waiting()
    async with served(waiting, calls_max=2) as (_, address):
        calling = [asyncio.create_task(ask(caller, address)) for _ in range(2)]
        await waiting.until_begun(2)
        with pytest.raises(Overloaded, match="2 calls are under way"):
            await ask(caller, address)
        waiting.go.set()
        await asyncio.gather(*calling)
        for _ in range(3):
            assert await ask(caller, address) == Ask()


async def test_a_host_calls_itself_without_the_network() -> None:
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


async def test_the_connection_to_the_least_recently_called_host_is_closed_when_its_calls_have_ended() -> None:
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
        # A new call to that host opens its connection again, and closes the least recently used one.
        assert await ask(caller, oldest, Ask(number=6)) == Ask(number=6)
        assert list(caller._peers) == [second, oldest]
    await caller.close()


async def test_closing_a_caller_fails_its_calls_and_refuses_new_ones() -> None:
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


async def test_the_health_service_reports_serving_until_the_host_drains(caller: GrpcCaller) -> None:
    async with served(echo) as (server, address), grpc.aio.insecure_channel(address) as channel:
        for service in ("", "fairlead"):
            assert (await check(channel)(service)).status == HealthCheckResponse.SERVING
        server.drain()
        assert (await check(channel)("")).status == HealthCheckResponse.NOT_SERVING
        # Callers that don't check the health are served as before.
        assert await ask(caller, address) == Ask()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await check(channel)("other")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_the_health_service_reports_when_the_host_can_not_serve_and_when_it_can_again() -> None:
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


async def test_a_health_watch_reports_the_drain_and_does_not_keep_the_host_from_stopping() -> None:
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
