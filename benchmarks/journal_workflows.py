"""Cost of the journal for a server that runs workflows: tasks and histories, without and with payloads.

Three servers run at the same time, each with its own SQLite file and worker, and get the load in turn, so that other
load on the machine disturbs all alike. Each workflow has one activity: five tasks and eleven events, in four or five
batches.
"""

import asyncio
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import uvloop
from temporalio.client import Client

from benchmarks.workflows import measured
from benchmarks.workflows_load import at_once, connect, run_one
from benchmarks.workflows_servers import ServerProcess, await_port, free_port, killed
from fairlead.cli.dev_server import parse_namespaces
from fairlead.journal import read_segment
from fairlead.server import Server
from fairlead.settings.static.config import Address, JournalConfig, JournalPayloads, SqliteConfig, StaticConfig

ROUNDS = 9
LOAD_S = 3.0
WARM_UP_S = 3.0
PLAIN, JOURNAL, PAYLOADS = "plain", "journal", "payloads"
KINDS = (PLAIN, JOURNAL, PAYLOADS)


@dataclass
class Load:
    """A server under load, and the results of each round: workflows per second, and CPU milliseconds per workflow."""

    server: ServerProcess
    client: Client
    per_s: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    workflows: int = 0

    async def once(self) -> None:
        per_s, cpu_ms = await measured(self.server, self._run_one, duration_s=LOAD_S)
        self.per_s.append(per_s)
        self.cpu_ms.append(cpu_ms)

    async def _run_one(self) -> None:
        await run_one(self.client)
        self.workflows += 1


async def workflows(folder: Path) -> dict[str, tuple[float, float]]:
    """Medians of each kind of server: workflows per second, and CPU milliseconds per workflow."""
    with ExitStack() as stack:
        for kind in KINDS:
            (folder / kind).mkdir()
        loads = {kind: await _start(stack, kind, folder / kind) for kind in KINDS}
        for load in loads.values():
            await at_once(lambda load=load: run_one(load.client), duration_s=WARM_UP_S)  # type: ignore[misc]
        for number in range(ROUNDS):
            # The order rotates, so that each kind has each position equally often.
            for place in range(len(KINDS)):
                await loads[KINDS[(number + place) % len(KINDS)]].once()
    for kind in (JOURNAL, PAYLOADS):
        _check_complete(folder / kind / "journal", loads[kind].workflows, has_payloads=kind == PAYLOADS)
    return {kind: (median(load.per_s), median(load.cpu_ms)) for kind, load in loads.items()}


async def _start(stack: ExitStack, kind: str, folder: Path) -> Load:
    port = free_port()
    log = stack.enter_context((folder / "log").open("wb"))
    command = [sys.executable, "-m", "benchmarks.journal_workflows", kind, str(port), str(folder)]
    server = stack.enter_context(killed(command, log))
    await asyncio.to_thread(await_port, port, server, folder / "log")
    address = f"127.0.0.1:{port}"
    client = await connect(address)
    stack.enter_context(killed([sys.executable, "-m", "benchmarks.workflows_load", address], log))
    return Load(ServerProcess(address, server.pid), client)


def _check_complete(folder: Path, workflows_min: int, *, has_payloads: bool) -> None:
    """Fail if the journal lacks records: then it was cheap only because it did not write."""
    tasks = histories = 0
    for path in folder.glob("*/*.zst"):
        for record in read_segment(path):
            is_history = "run_id" in record
            tasks += not is_history
            histories += is_history
            assert not is_history or ("payload" in record) == has_payloads, record  # noqa: S101
    assert tasks >= 2 * workflows_min, (tasks, workflows_min)  # noqa: S101
    assert histories >= 3 * workflows_min, (histories, workflows_min)  # noqa: S101


async def serve(kind: str, port: str, folder: str) -> None:
    """Run a server as `fairlead server start-dev` does, until a signal stops it."""
    payloads = JournalPayloads.WHOLE if kind == PAYLOADS else JournalPayloads.NONE
    journal = None if kind == PLAIN else JournalConfig(Path(folder) / "journal", payloads)
    config = StaticConfig(
        frontend_listen=Address("127.0.0.1", int(port)),
        listen=Address("127.0.0.1", 0),
        store=SqliteConfig(Path(folder) / "server.db"),
        namespaces=parse_namespaces((), ()),
        journal=journal,
    )
    server = Server(config)
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(15, stopped.set)
    await stopped.wait()
    await server.stop()


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        for kind, (per_s, cpu_ms) in (await workflows(Path(folder))).items():
            print(f"{kind}: {per_s:.0f} workflows/s, {cpu_ms:.2f} ms of CPU each")


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]) if len(sys.argv) > 1 else main())
