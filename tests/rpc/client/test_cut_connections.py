"""Hosts call each other through a network that cuts, stalls and truncates: callers get errors that fit."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from fairlead.api.codes import code_of
from fairlead.core.errors import FairleadError
from fairlead.rpc.client import ChannelLimits
from fairlead.rpc.frames import ErrorCode, goaway, rst_stream
from fairlead.rpc.hosts import grpc_peer
from fairlead.rpc.hosts.caller import CallLost, Handlers, Overloaded, Unreachable
from fairlead.rpc.hosts.grpc_caller import GrpcCaller
from fairlead.rpc.hosts.grpc_server import GrpcServer
from fairlead.rpc.hosts.wire import Errors
from tests.rpc.client.faking import Script, answering, faking, taken
from tests.rpc.hosts.test_grpc import ASK, Ask
from tests.rpc.served import Peer

CALLS = 600
IN_FLIGHT = 30


class Network:
    """Passes bytes on between callers and one host, and cuts connections at seeded moments."""

    def __init__(self, to: str, rng: random.Random) -> None:
        self._to = to
        self._rng = rng
        self._writers: set[asyncio.StreamWriter] = set()
        self.cuts = 0
        self.address = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Network"]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            host, _, port = self._to.rpartition(":")
            back_reader, back_writer = await asyncio.open_connection(host, int(port))
            self._writers |= {writer, back_writer}
            # Bytes that each direction passes on before the cut.
            await asyncio.gather(
                self._pass_on(reader, back_writer, writer, self._rng.randrange(200, 20_000)),
                self._pass_on(back_reader, writer, back_writer, self._rng.randrange(200, 20_000)),
            )

    async def _pass_on(
        self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, other: asyncio.StreamWriter, bytes_max: int
    ) -> None:
        passed = 0
        with suppress(OSError):
            while data := await reader.read(4_096):
                if passed + len(data) >= bytes_max:
                    # A part of the last bytes still arrives.
                    to.write(data[: bytes_max - passed])
                    await to.drain()
                    self.cuts += 1
                    break
                passed += len(data)
                to.write(data)
                if self._rng.random() < 0.02:
                    await asyncio.sleep(0.01)
        if self._rng.random() < 0.5:
            to.close()
            other.close()
        else:
            to.transport.abort()
            other.transport.abort()


@pytest.mark.parametrize("seed", [1, 2])
async def test_an_unreachable_call_was_never_carried_out_and_each_call_gets_its_own_answer(seed: int) -> None:
    carried_out: list[int] = []

    async def carry_out(request: Ask) -> Ask:
        carried_out.append(request.number)
        if request.number % 3 == 0:
            # Some calls are still running when the connection is cut.
            await asyncio.sleep(0.001)
        return Ask(request.data, request.number)

    handlers = Handlers()
    handlers.add(ASK, carry_out)
    server = GrpcServer(handlers, errors=Errors(), code_of=code_of)
    host = await server.start()
    outcomes: dict[int, str] = {}
    numbers = iter(range(CALLS))

    async with Network(host, random.Random(seed)).running() as network:
        caller = GrpcCaller(errors=Errors())

        async def work() -> None:
            for number in numbers:
                data = bytes(number % 700)
                try:
                    answer = await caller.call(network.address, ASK, Ask(data, number), timeout_s=20.0)
                except Unreachable:
                    outcomes[number] = "unreachable"
                    # A caller that retries waits a moment.
                    await asyncio.sleep(0.005)
                except CallLost:
                    outcomes[number] = "lost"
                else:
                    assert answer == Ask(data, number)
                    outcomes[number] = "answered"

        async with asyncio.timeout(100):
            await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        await caller.close()
    await server.stop(0)
    assert network.cuts > 3
    assert len(outcomes) == CALLS
    by_outcome = {
        kind: {number for number, each in outcomes.items() if each == kind} for kind in set(outcomes.values())
    }
    assert by_outcome["answered"] <= set(carried_out)
    assert by_outcome.get("unreachable", set()).isdisjoint(carried_out)
    assert by_outcome["lost"]
    # The transport itself never sends a request twice.
    assert len(carried_out) == len(set(carried_out))


def _goaway(peer: Peer, last_id: int) -> None:
    peer.send(goaway(last_id, ErrorCode.NO_ERROR))


async def _refuse(peer: Peer) -> None:
    peer.send(rst_stream(await taken(peer), ErrorCode.REFUSED_STREAM))
    await answering(peer)


async def _leave_before(peer: Peer) -> None:
    await taken(peer)
    _goaway(peer, 0)
    await answering(peer)


async def _leave_after(peer: Peer) -> None:
    _goaway(peer, await taken(peer))


async def _vanish(peer: Peer) -> None:
    await taken(peer)


async def _babble(peer: Peer) -> None:
    await taken(peer)
    peer.send(b"\xff" * 100)
    await answering(peer)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (_refuse, Unreachable),
        (_leave_before, Unreachable),
        (_leave_after, CallLost),
        (_vanish, CallLost),
        (_babble, CallLost),
    ],
)
async def test_faults_of_a_host_become_the_errors_that_callers_act_on(
    script: Script, kind: type[FairleadError]
) -> None:
    async with faking(script) as fake:
        caller = GrpcCaller(errors=Errors())
        with pytest.raises(kind):
            await caller.call(fake.address, ASK, Ask(), timeout_s=30.0)
        await caller.close()


async def test_a_caller_with_too_many_calls_gets_the_error_to_slow_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_peer, "LIMITS", ChannelLimits(calls_max=1))
    release = asyncio.Event()

    async def wait(request: Ask) -> Ask:
        await release.wait()
        return request

    handlers = Handlers()
    handlers.add(ASK, wait)
    server = GrpcServer(handlers, errors=Errors(), code_of=code_of)
    host = await server.start()
    caller = GrpcCaller(errors=Errors())
    first = asyncio.ensure_future(caller.call(host, ASK, Ask(), timeout_s=30.0))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await caller.call(host, ASK, Ask(), timeout_s=30.0)
    release.set()
    await first
    await caller.close()
    await server.stop(0)
