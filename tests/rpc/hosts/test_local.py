import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import pytest
from structlog.testing import capture_logs

from fairlead.core.errors import GiveUp
from fairlead.matching.engine import NotOwner
from fairlead.rpc.hosts.caller import CallLost, Handlers, Method, UnknownMethod, Unreachable
from fairlead.rpc.hosts.local import LocalNetwork
from tests.virtual_time import on_virtual_time


class Ask(msgspec.Struct, frozen=True):
    text: str


class AskWithin(msgspec.Struct, frozen=True):
    timeout_s: float


ASK = Method("test.Ask", Ask, Ask)
ASK_WITHIN = Method("test.AskWithin", AskWithin, Ask)
Handle = Callable[[Ask], Awaitable[Ask]]


def network_of(handle: Handle) -> LocalNetwork:
    network = LocalNetwork()
    handlers = Handlers()
    handlers.add(ASK, handle)
    network.register("host", handlers)
    return network


async def ask(handle: Handle, *, timeout_s: float = 10.0) -> Ask:
    return await network_of(handle).caller().call("host", ASK, Ask("?"), timeout_s=timeout_s)


async def at_once(request: Ask) -> Ask:
    return request


async def after_a_while(request: Ask) -> Ask:
    for _ in range(3):
        # The handler responds late, not at once.
        await asyncio.sleep(0.001)
    return request


async def never(request: Ask) -> Ask:
    await asyncio.Event().wait()
    return request


async def test_the_handler_gets_the_same_request_object() -> None:
    request = Ask("?")
    for handle in (at_once, after_a_while):
        answer = await network_of(handle).caller().call("host", ASK, request, timeout_s=10.0)
        assert answer is request


async def test_a_handler_may_return_any_awaitable() -> None:
    def give(request: Ask) -> Awaitable[Ask]:
        return asyncio.ensure_future(after_a_while(request))

    assert await ask(give) == Ask("?")


async def test_a_host_that_is_not_registered_is_unreachable() -> None:
    network = network_of(at_once)
    caller = network.caller()
    with pytest.raises(Unreachable, match="'elsewhere'"):
        await caller.call("elsewhere", ASK, Ask("?"), timeout_s=1.0)
    network.unregister("host")
    with pytest.raises(Unreachable, match="'host'"):
        await caller.call("host", ASK, Ask("?"), timeout_s=1.0)


async def test_a_host_that_registers_later_is_reached() -> None:
    network = LocalNetwork()
    caller = network.caller()
    handlers = Handlers()
    handlers.add(ASK, at_once)
    network.register("late", handlers)
    assert await caller.call("late", ASK, Ask("?"), timeout_s=1.0) == Ask("?")


async def test_a_method_that_a_host_does_not_have_is_unknown() -> None:
    with pytest.raises(UnknownMethod, match=r"test\.AskWithin"):
        await network_of(at_once).caller().call("host", ASK_WITHIN, AskWithin(1.0), timeout_s=1.0)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_fairlead_error_is_raised_unchanged(waits: bool) -> None:
    error = NotOwner("ask there")

    async def refuse(_: Ask) -> Ask:
        if waits:
            await asyncio.sleep(0)
        raise error

    with pytest.raises(NotOwner) as raised:
        await ask(refuse)
    assert raised.value is error


@pytest.mark.parametrize("waits", [False, True])
async def test_an_unexpected_exception_of_a_handler_is_logged_and_raised_as_give_up(waits: bool) -> None:
    async def fail(_: Ask) -> Ask:
        if waits:
            await asyncio.sleep(0)
        raise ZeroDivisionError("by zero")

    with capture_logs() as logs, pytest.raises(GiveUp, match=r"test\.Ask failed .* ZeroDivisionError: by zero"):
        await ask(fail)
    assert [(log["event"], log["method"], type(log["exc_info"])) for log in logs] == [
        ("handler failed", "test.Ask", ZeroDivisionError)
    ]


async def test_a_call_that_times_out_is_lost_and_its_handler_is_cancelled() -> None:
    ended: list[str] = []

    async def wait(request: Ask) -> Ask:
        try:
            return await never(request)
        finally:
            ended.append("handler")

    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(CallLost, match=r"within 0\.01 s"):
        await ask(wait, timeout_s=0.01)
    assert ended == ["handler"]
    assert task.cancelling() == 0


async def test_a_response_or_error_that_a_handler_produces_on_its_cancellation_is_used() -> None:
    """A poll that gets its task at that moment returns it, and an error is raised unchanged."""

    async def answer_late(request: Ask) -> Ask:
        with suppress(asyncio.CancelledError):
            await never(request)
        # The handler responds late, not at once.
        await asyncio.sleep(0.001)
        return Ask("late")

    async def fail_late(request: Ask) -> Ask:
        with suppress(asyncio.CancelledError):
            await never(request)
        raise NotOwner("late")

    task = asyncio.current_task()
    assert task is not None
    assert await ask(answer_late, timeout_s=0.01) == Ask("late")
    with pytest.raises(NotOwner):
        await ask(fail_late, timeout_s=0.01)
    assert task.cancelling() == 0


@on_virtual_time
async def test_a_finished_call_is_not_cancelled_at_its_timeout() -> None:
    assert await ask(after_a_while, timeout_s=0.05) == Ask("?")
    await asyncio.sleep(0.1)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
async def test_a_call_with_no_time_left_does_not_reach_the_handler(timeout_s: float) -> None:
    asked: list[Ask] = []

    async def note(request: Ask) -> Ask:
        asked.append(request)
        return request

    with pytest.raises(CallLost, match="give more than 0"):
        await ask(note, timeout_s=timeout_s)
    assert asked == []


async def test_cancelling_a_caller_cancels_its_request() -> None:
    is_cancelled = asyncio.Event()

    async def wait(request: Ask) -> Ask:
        try:
            return await never(request)
        except asyncio.CancelledError:
            is_cancelled.set()
            raise

    calling = asyncio.create_task(ask(wait))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert is_cancelled.is_set()


async def test_a_caller_cancelled_at_the_moment_of_its_timeout_is_cancelled() -> None:
    async def wait(request: Ask) -> Ask:
        try:
            return await never(request)
        except asyncio.CancelledError:
            calling.cancel()
            # The timeout has passed. Before the handler ends, the caller is cancelled as well.
            await asyncio.sleep(1)
            raise

    calling = asyncio.create_task(ask(wait, timeout_s=0.01))
    with pytest.raises(asyncio.CancelledError):
        await calling


@pytest.mark.parametrize("waits", [False, True])
async def test_a_call_whose_handler_is_cancelled_by_its_own_host_is_lost(waits: bool) -> None:
    """Otherwise the caller would take it for its own cancellation."""
    future = asyncio.get_running_loop().create_future()

    async def wait(request: Ask) -> Ask:
        if not waits:
            future.cancel()
        await future
        return request

    asyncio.get_running_loop().call_later(0.01, future.cancel)
    with pytest.raises(CallLost, match="cancelled by its host"):
        await ask(wait)


async def test_a_request_with_its_own_timeout_has_no_second_timer() -> None:
    network = LocalNetwork()
    handlers = Handlers()

    async def within(request: AskWithin) -> Ask:
        # The handler takes as long as the request allows.
        await asyncio.sleep(request.timeout_s)
        return Ask("done")

    handlers.add(ASK_WITHIN, within)
    network.register("host", handlers)
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    call_later = loop.call_later

    def count(delay: float, *arguments: object, **options: object) -> asyncio.TimerHandle:
        timers.append(delay)
        return call_later(delay, *arguments, **options)  # type: ignore[arg-type]

    loop.call_later = count  # type: ignore[method-assign]
    caller = network.caller()
    assert await caller.call("host", ASK_WITHIN, AskWithin(0.01), timeout_s=0.02) == Ask("done")
    assert timers == [0.01]
    # A request whose own timeout is longer than its caller's gets a timer.
    with pytest.raises(CallLost):
        await caller.call("host", ASK_WITHIN, AskWithin(10.0), timeout_s=0.02)
    assert timers == [0.01, 10.0, 0.02]


async def test_nested_calls_have_their_own_timeouts() -> None:
    network = network_of(never)
    caller = network.caller()
    handlers = Handlers()

    async def forward(request: Ask) -> Ask:
        with pytest.raises(CallLost):
            await caller.call("host", ASK, request, timeout_s=0.01)
        return Ask("gave up on the other")

    handlers.add(ASK, forward)
    network.register("first", handlers)
    assert await caller.call("first", ASK, Ask("?"), timeout_s=10.0) == Ask("gave up on the other")
