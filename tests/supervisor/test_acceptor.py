"""Connections to one port, handed to several processes."""

import asyncio
import os
import socket

import pytest

from fairlead.settings.static.config import Address
from fairlead.supervisor.acceptor import Acceptor, Taker
from fairlead.supervisor.process_channel import Gone, ProcessChannel, Ready, SupervisorChannel
from fairlead.telemetry import CannotListen
from tests.patience import PATIENCE_S


class Process:
    """Takes connections unless it is full."""

    def __init__(self, *, is_full: bool = False) -> None:
        self.taken: list[socket.socket] = []
        self.is_full = is_full

    @property
    def connections(self) -> int:
        return len(self.taken)

    def take(self, accepted: socket.socket) -> bool:
        if not self.is_full:
            self.taken.append(accepted.dup())
        return not self.is_full


@pytest.fixture
def takers() -> list[Taker]:
    """The processes that serve; the acceptor listens to this list."""
    return []


async def connect(acceptor: Acceptor, connections: int) -> list[asyncio.StreamWriter]:
    host, _, port = acceptor.address.rpartition(":")
    return [(await asyncio.open_connection(host, int(port)))[1] for _ in range(connections)]


async def until_taken(processes: list[Process], connections: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while sum(process.connections for process in processes) < connections:  # noqa: ASYNC110 - a fake has no event
            await asyncio.sleep(0.005)


async def test_each_connection_goes_to_the_process_with_the_fewest(takers: list[Taker]) -> None:
    processes = [Process(), Process(), Process()]
    takers += processes
    acceptor = Acceptor(Address("127.0.0.1", 0), lambda: takers, key="frontend.listen")
    acceptor.resume()
    writers = await connect(acceptor, 9)
    await until_taken(processes, 9)
    assert [process.connections for process in processes] == [3, 3, 3]
    acceptor.close()
    close(processes, writers)


async def test_connections_wait_until_a_process_serves_and_avoid_one_that_is_full(takers: list[Taker]) -> None:
    acceptor = Acceptor(Address("127.0.0.1", 0), lambda: takers, key="frontend.listen")
    acceptor.resume()
    writers = await connect(acceptor, 3)
    full, empty = Process(is_full=True), Process()
    takers += [full, empty]
    acceptor.resume()
    await until_taken([empty], 3)
    assert full.taken == []
    acceptor.close()
    close([empty], writers)


async def test_a_port_that_is_taken_is_refused_with_the_setting() -> None:
    acceptor = Acceptor(Address("127.0.0.1", 0), list, key="frontend.listen")
    port = int(acceptor.address.rpartition(":")[2])
    with pytest.raises(CannotListen, match=r"can't listen at 127\.0\.0\.1:\d+: .*`frontend\.listen`"):
        Acceptor(Address("127.0.0.1", port), list, key="frontend.listen")
    acceptor.close()


class Frontend:
    """Counts what it adopts and releases."""

    def __init__(self) -> None:
        self.adopted: list[socket.socket] = []
        self.released = 0

    @property
    def lasting_connections(self) -> int:
        return len(self.adopted) - self.released

    async def adopt(self, accepted: socket.socket) -> None:
        self.adopted.append(accepted)

    def release(self) -> None:
        self.released += 1


async def test_a_process_adopts_all_connections_that_came_before_the_order_to_stop() -> None:
    supervisor = SupervisorChannel()
    stopped = asyncio.Event()
    process = ProcessChannel(os.dup(supervisor.process_fd), stop=stopped.set)
    supervisor.started()
    frontend = Frontend()
    process.serve(frontend, Ready("127.0.0.1:7240", None))
    assert await supervisor.receive() == Ready("127.0.0.1:7240", None)
    pairs = [socket.socketpair() for _ in range(5)]
    for ours, _ in pairs:
        assert supervisor.hand_over(ours)
    supervisor.release()
    supervisor.release()
    async with asyncio.timeout(PATIENCE_S):
        assert await supervisor.receive() == Gone(2)
    supervisor.stop()
    async with asyncio.timeout(PATIENCE_S):
        await stopped.wait()
    await process.close()
    assert len(frontend.adopted) == 5
    assert frontend.adopted[0].send(b"x") == 1
    assert pairs[0][1].recv(1) == b"x"
    supervisor.close()
    for one in (*frontend.adopted, *(end for pair in pairs for end in pair)):
        one.close()


async def test_the_end_of_the_supervisor_is_an_order_to_stop() -> None:
    supervisor = SupervisorChannel()
    stopped = asyncio.Event()
    process = ProcessChannel(os.dup(supervisor.process_fd), stop=stopped.set)
    supervisor.started()
    supervisor.close()
    async with asyncio.timeout(PATIENCE_S):
        await stopped.wait()
    await process.close()


def close(processes: list[Process], writers: list[asyncio.StreamWriter]) -> None:
    for process in processes:
        for taken in process.taken:
            taken.close()
    for writer in writers:
        writer.close()
