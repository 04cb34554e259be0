import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from msgspec import Struct

from fairlead.core.errors import GiveUp
from fairlead.core.partitions import PartitionConfig
from fairlead.matching.messages import StaleConfig
from fairlead.rpc.hosts.caller import CallLost, Handlers, Method, UnknownMethod, Unreachable
from fairlead.rpc.hosts.wire import Errors
from fairlead.simulations.virtual_loop import Process, run
from tests.simulators.matching.network import SimNetwork, Weather, running_loop
from tests.simulators.matching.transcript import Transcript


class Echo(Struct):
    text: str


ECHO = Method("test.Echo", Echo, Echo)
OTHER = Method("test.Other", Echo, Echo)


class Net:
    """Two hosts, a and b; b handles calls."""

    def __init__(self, seed: int = 0) -> None:
        self.transcript = Transcript(running_loop().time)
        self.network = SimNetwork(Random(seed), self.transcript, Errors([StaleConfig]))
        self.a, self.b = Process("a"), Process("b")
        self.received: list[str] = []
        self.finished: list[str] = []
        self.wait_s = 0.0
        self.raises: Exception | None = None
        handlers = Handlers()
        handlers.add(ECHO, self.echo)
        self.network.attach(self.b, handlers)

    async def echo(self, request: Echo) -> Echo:
        self.received.append(request.text)
        try:
            await asyncio.sleep(self.wait_s)
            if self.raises is not None:
                raise self.raises
        finally:
            self.finished.append(request.text)
        return Echo(request.text.upper())

    async def ask(self, text: str, timeout_s: float = 1.0, method: Method[Echo, Echo] = ECHO) -> str:
        """Call b from a."""
        call = self.network.caller(self.a).call("b", method, Echo(text), timeout_s=timeout_s)
        return (await running_loop().spawn(self.a, call, "ask")).text


def on_net(test: Callable[[Net], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Net())

    _, loop = run(main(), order=Random(0))
    assert loop.failures == []


def test_a_call_gets_its_response_after_a_delay() -> None:
    async def test(net: Net) -> None:
        assert await net.ask("x") == "X"
        assert 0.001 <= running_loop().time() <= 0.02

    on_net(test)


def test_a_request_is_encoded_when_it_is_sent() -> None:
    async def test(net: Net) -> None:
        request = Echo("before")
        call = asyncio.create_task(net.network.caller(net.a).call("b", ECHO, request, timeout_s=1.0))
        await asyncio.sleep(0)
        request.text = "after"
        assert (await call).text == "BEFORE"

    on_net(test)


def test_a_call_is_executed_if_only_its_response_is_lost() -> None:
    async def test(net: Net) -> None:
        net.network.weather = Weather(request_lost=1.0)
        with pytest.raises(CallLost):
            await net.ask("request")
        assert (running_loop().time(), net.received) == (1.0, [])
        net.network.weather = Weather(answer_lost=1.0)
        with pytest.raises(CallLost):
            await net.ask("answer")
        assert net.finished == ["answer"]

    on_net(test)


def test_a_repeated_request_is_executed_twice_and_gets_one_response() -> None:
    async def test(net: Net) -> None:
        net.network.weather = Weather(repeated=1.0)
        assert await net.ask("x", timeout_s=5.0) == "X"
        await asyncio.sleep(5)
        assert net.received in (["x"], ["x", "x"])
        net.wait_s = 0.5
        await net.ask("y", timeout_s=5.0)
        assert net.received.count("y") == 2

    on_net(test)


def test_slow_messages_overtake_each_other() -> None:
    async def test(net: Net) -> None:
        net.network.weather = Weather(slow=0.5)
        await asyncio.gather(*(net.ask(str(number), timeout_s=60.0) for number in range(20)))
        assert sorted(net.received, key=int) != net.received

    on_net(test)


def test_a_call_over_a_cut_connection_is_lost_until_it_is_repaired() -> None:
    async def test(net: Net) -> None:
        net.network.cut("b", "a")
        with pytest.raises(CallLost):
            await net.ask("x")
        assert net.received == []
        net.network.mend("a", "b")
        assert await net.ask("x") == "X"

    on_net(test)


def test_a_detached_host_is_unreachable() -> None:
    async def test(net: Net) -> None:
        net.network.detach(net.b)
        with pytest.raises(Unreachable):
            await net.ask("x")
        assert running_loop().time() < 0.1

    on_net(test)


def test_a_host_that_dies_during_a_call_runs_no_cleanup_and_its_caller_gets_an_error() -> None:
    async def test(net: Net) -> None:
        net.wait_s = 10.0
        call = asyncio.create_task(net.ask("x", timeout_s=60.0))
        await asyncio.sleep(1)
        net.b.is_killed = True
        net.network.detach(net.b)
        with pytest.raises(CallLost, match="reset"):
            await call
        assert running_loop().time() < 1.1
        await asyncio.sleep(60)
        assert (net.received, net.finished) == (["x"], [])

    on_net(test)


def test_a_cancelled_call_is_cancelled_at_the_called_host() -> None:
    async def test(net: Net) -> None:
        net.wait_s = 1000.0
        call = asyncio.create_task(net.network.caller(net.a).call("b", ECHO, Echo("x"), timeout_s=5000.0))
        await asyncio.sleep(1)
        call.cancel()
        await asyncio.sleep(1)
        assert net.finished == ["x"]

    on_net(test)


def test_the_calls_of_a_dead_caller_are_cancelled_at_the_called_host() -> None:
    async def test(net: Net) -> None:
        net.wait_s = 1000.0
        call = asyncio.create_task(net.ask("x", timeout_s=5000.0))
        await asyncio.sleep(1)
        net.a.is_killed = True
        net.network.detach(net.a)
        await asyncio.sleep(1)
        assert net.finished == ["x"]
        assert not call.done()

    on_net(test)


def test_the_called_host_stops_at_the_deadline_even_if_it_is_cut_off() -> None:
    async def test(net: Net) -> None:
        net.wait_s = 1000.0
        call = asyncio.create_task(net.ask("x", timeout_s=10.0))
        await asyncio.sleep(1)
        net.network.cut("a", "b")
        with pytest.raises(CallLost):
            await call
        await asyncio.sleep(1)
        assert net.finished == ["x"]

    on_net(test)


def test_errors_keep_their_type() -> None:
    async def test(net: Net) -> None:
        config = PartitionConfig(version=3, read=2, write=1)
        net.raises = StaleConfig("old", config)
        with pytest.raises(StaleConfig) as raised:
            await net.ask("x")
        assert raised.value.config == config
        with pytest.raises(UnknownMethod):
            await net.ask("x", method=OTHER)

    on_net(test)


def test_an_unexpected_exception_is_a_violation() -> None:
    async def test(net: Net) -> None:
        net.raises = KeyError("a bug")
        with pytest.raises(GiveUp):
            await net.ask("x")
        assert "a bug" in net.transcript.violations[0]

    on_net(test)
