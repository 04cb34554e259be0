"""Three hosts as a user starts them, on one PostgreSQL database; each can be killed, stopped and started again."""

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.patience import PATIENCE_S

HOSTS = 3
READY_S_MAX = PATIENCE_S
STOP_S_MAX = PATIENCE_S
HAND_OVER = "1s"


class Host:
    """One process with all roles, at addresses that stay the same."""

    def __init__(self, number: int, dsn: str, folder: Path, *, more: str = "") -> None:
        """`more` are additional lines of the host's configuration."""
        self.number = number
        self.address, self.internal_address = (f"127.0.0.1:{port}" for port in _free_ports(2))
        self._config = folder / f"host-{number}.yaml"
        self._log = folder / f"host-{number}.log"
        self._config.write_text(
            f"frontend: {{listen: '{self.address}'}}\n"
            f"listen: {self.internal_address}\n"
            f"store: {{postgres: {{dsn: '{dsn}'}}}}\n"
            "log: {level: info, format: console}\n"
            f"stop: {{handOver: {HAND_OVER}, grace: 10s}}\n{more}"
        )
        self._process: Process | None = None

    async def start(self) -> None:
        """Start the host and wait until it is ready."""
        with self._log.open("ab") as log:
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "fairlead", "server", "start", "--config", str(self._config)),
                stdout=PIPE,
                stderr=log,
            )
        assert process.stdout is not None
        async with asyncio.timeout(READY_S_MAX):
            ready = await process.stdout.readline()
        assert b"ready" in ready, self.log()

    async def kill(self) -> None:
        """Kill the host with SIGKILL."""
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()
            await process.communicate()

    async def stop(self) -> int:
        """Stop the host as an operator does; returns its exit code."""
        process = self._process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_S_MAX):
            await process.communicate()
        assert process.returncode is not None
        return process.returncode

    def log(self) -> str:
        """The log of all the host's processes so far."""
        return self._log.read_text()


@asynccontextmanager
async def three_hosts(dsn: str, folder: Path) -> AsyncIterator[list[Host]]:
    """Start three hosts, ready when the block begins and stopped when it ends."""
    hosts = [Host(number, dsn, folder) for number in range(1, HOSTS + 1)]
    try:
        # If one host fails to start, the group stops waiting for the others.
        async with asyncio.TaskGroup() as starting:
            for host in hosts:
                starting.create_task(host.start())
        yield hosts
    finally:
        await asyncio.gather(*(host.kill() for host in hosts))


def _free_ports(count: int) -> list[int]:
    taken = [socket.socket() for _ in range(count)]
    try:
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in taken]
    finally:
        for each in taken:
            each.close()
