"""Run the command as a user does while the test continues, and servers as separate processes."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.patience import PATIENCE_S

FAIRLEAD = Path(sys.executable).with_name("fairlead")
ANSWER_S_MAX = PATIENCE_S
# Environment variable that marks a started process, and all processes that it starts.
MARK = "FAIRLEAD_TEST_MARK"


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a command."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The command's one-line error message."""
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("fairlead: ").rstrip()


async def run(*arguments: str, environment: Mapping[str, str] | None = None, folder: Path | None = None) -> Done:
    """Run `fairlead` until it ends."""
    process = await asyncio.create_subprocess_exec(
        FAIRLEAD, *arguments, stdout=PIPE, stderr=PIPE, env={**os.environ, **(environment or {})}, cwd=folder
    )
    async with asyncio.timeout(ANSWER_S_MAX):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


@dataclass(slots=True)
class RunningServer:
    """A server in its own process."""

    process: Process
    ready: str

    @property
    def address(self) -> str:
        """The address from the server's output."""
        return self.ready.split(" ready at ")[1].split(": ")[0]

    async def ended(self) -> Done:
        """Wait until the server has stopped."""
        async with asyncio.timeout(ANSWER_S_MAX):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return Done(self.process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def server(
    *arguments: str, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> AsyncIterator[RunningServer]:
    """Run `fairlead server start` until the test ends."""
    process = await asyncio.create_subprocess_exec(
        *(str(FAIRLEAD), "server", "start", *arguments),
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, **(environment or {})},
        cwd=folder,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(ANSWER_S_MAX):
            ready = (await process.stdout.readline()).decode()
        if not ready:
            _, err = await process.communicate()
            raise AssertionError(err.decode())
        yield RunningServer(process, ready)
    finally:
        if process.returncode is None:
            process.kill()
        # Read to the end, also of a process that the test killed: else its pipes stay open until they are collected.
        async with asyncio.timeout(ANSWER_S_MAX):
            await process.communicate()


def left_behind(mark: str) -> list[str]:
    """Names of the running processes that have this value of `MARK` in their environment."""
    return list(running(mark).values())


def running(mark: str) -> dict[int, str]:
    """By process id: the command lines of the running processes that have this value of `MARK` in their environment."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # The process has ended, or belongs to another user.
            continue
    return found
