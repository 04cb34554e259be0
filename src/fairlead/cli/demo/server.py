"""The server of the demonstration: a separate process, which ends with the process that started it."""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fairlead.core.errors import RetryLater
from fairlead.settings import Plain

READY_S_MAX = 30.0
STOPPED_S_MAX = 20.0


class NoServer(RetryLater):
    """The server did not become ready."""


@dataclass(frozen=True, slots=True)
class Running:
    """Addresses for SDKs, for `fairlead admin` and of the console; empty if there is no console."""

    address: str
    admin_address: str
    console: str = ""


@asynccontextmanager
async def server(
    journal: Path, settings: Mapping[str, Plain], *, store: Path | None = None, lake: Path | None = None
) -> AsyncIterator[Running]:
    """Run a server that journals with payloads until the block ends; then its journal is sealed.

    It keeps its data in the SQLite file `store`, or in memory. Its console shows the report of `lake`.
    """
    arguments = ["--port", "0", "--stop-with-input", "--log-level", "error", "--journal", str(journal)]
    arguments += [] if store is None else ["--db-filename", str(store)]
    arguments += [] if lake is None else ["--ui-lake", str(lake)]
    for key, value in settings.items():
        arguments += ["--dynamic-config-value", f"{key}={json.dumps(value)}"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fairlead", "server", "start-dev", "--journal-payloads", *arguments),
        # The server stops when this pipe closes, so it also ends if this process is killed.
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        # Ctrl-C must reach only this process, which then stops the server cleanly.
        start_new_session=True,
    )
    try:
        yield await _ready(process)
    finally:
        await asyncio.shield(stop(process))


async def _ready(process: Process) -> Running:
    assert process.stdout is not None  # noqa: S101 - stdout is a pipe
    printed: dict[str, str] = {}
    try:
        async with asyncio.timeout(READY_S_MAX):
            while line := (await process.stdout.readline()).decode():
                name, _, value = line.partition(":")
                printed[name] = value.strip()
                if line.startswith("Ready"):
                    return Running(printed["Server"], printed["Admin"].split()[3], printed["Console"])
    except TimeoutError:
        raise NoServer(f"the server was not ready within {READY_S_MAX:g} s: is the machine very busy?") from None
    raise NoServer("the server ended before it was ready: `fairlead server start-dev` says why")


async def stop(process: Process) -> None:
    """Stop a server cleanly; kill it after a timeout."""
    assert process.stdin is not None  # noqa: S101 - stdin is a pipe
    process.stdin.close()
    try:
        async with asyncio.timeout(STOPPED_S_MAX):
            await process.communicate()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
