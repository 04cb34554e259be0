"""Cost of the journal: the matching service with and without it, in alternating rounds of one run.

Rounds alternate, so that other load on the machine disturbs both alike; the ratio of the medians is the cost of the
journal. It is shown twice: for tasks per second, and for CPU time per task, which a busy machine disturbs
less. `workflows` is the cost that users see: servers that run workflows, with a journal of tasks and histories, without
and with payloads. `calls` is the cost for callers of matching alone, over gRPC. The other two measure only the service
itself, which takes a few microseconds per task, so that the journal's share is largest.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.journal_workflows import JOURNAL, PAYLOADS, PLAIN, workflows
from benchmarks.matching import ORDERS, POLLS, ROOT, in_parallel, task
from fairlead.journal import Journal, read_segment
from fairlead.matching.client import MatchingClient
from fairlead.matching.connection import connect
from fairlead.matching.messages import AddRequest, PollRequest
from fairlead.server import LocalCluster, Server
from fairlead.settings import DynamicSettings
from fairlead.settings.static.config import Address, JournalConfig, MemoryConfig, Role, StaticConfig
from fairlead.storage.sqlite import SqliteStore
from fairlead.telemetry import Metrics

ROUNDS = 11
MATCHES_A_ROUND = 20_000
STORED_A_ROUND = 10_000
CALLS_A_ROUND = 5_000
CALLS_AT_ONCE = 50
COST_MAX = 0.05
KEYS = 100
TASKS = [task(f"tenant-{number}") for number in range(KEYS)]


class Round(NamedTuple):
    """Wall time and CPU time of one round, per task."""

    seconds: float
    cpu_s: float


class Cost(NamedTuple):
    """Tasks per second without and with the journal, and the journal's shares of wall time and CPU time."""

    plain_per_s: float
    journal_per_s: float
    of_time: float
    of_cpu: float


Work = Callable[[], Awaitable[Round]]


async def by_turns(plain: Work, journaled: Work) -> Cost:
    """Run both in alternating rounds; each comes first in half of the rounds."""
    rounds: tuple[list[Round], list[Round]] = ([], [])
    for number in range(ROUNDS + 1):
        for which in (number % 2, 1 - number % 2):
            took = await (plain, journaled)[which]()
            # The first round warms up.
            if number:
                rounds[which].append(took)
    (plain_s, plain_cpu_s), (journal_s, journal_cpu_s) = (
        (median(one.seconds for one in each), median(one.cpu_s for one in each)) for each in rounds
    )
    return Cost(1 / plain_s, 1 / journal_s, 1 - plain_s / journal_s, 1 - plain_cpu_s / journal_cpu_s)


@asynccontextmanager
async def journal_in(folder: Path) -> AsyncIterator[Journal]:
    journal = await Journal.open(folder, cluster="c", host="bench", settings=DynamicSettings(), metrics=Metrics())
    try:
        yield journal
    finally:
        await journal.close()


async def matched(client: MatchingClient, tasks: int, at_once: int) -> float:
    """Tasks per second that match a waiting poll."""

    async def poll() -> None:
        while True:
            await client.poll(ORDERS, "worker", timeout_s=60)

    polls = [asyncio.create_task(poll()) for _ in range(POLLS)]
    await asyncio.sleep(0.1)
    per_s = await in_parallel(tasks, at_once, lambda number: client.add(ORDERS, TASKS[number % KEYS]))
    for one in polls:
        one.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    return per_s


async def matches(folder: Path) -> Cost:
    """Tasks that match a waiting poll, in one process."""
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(journal_in(folder))
        plain = await stack.enter_async_context(LocalCluster())
        journaled = await stack.enter_async_context(LocalCluster(journal=journal.tasks()))

        def work(client: MatchingClient) -> Work:
            async def once() -> Round:
                cpu_s = time.process_time()
                per_s = await matched(client, MATCHES_A_ROUND, CALLS_AT_ONCE)
                return Round(1 / per_s, (time.process_time() - cpu_s) / MATCHES_A_ROUND)

            return once

        cost = await by_turns(work(plain.client()), work(journaled.client()))
    check_complete(folder, 2 * (ROUNDS + 1) * MATCHES_A_ROUND)
    return cost


async def stored(folder: Path) -> Cost:
    """Tasks that are stored in SQLite and then polled from the backlog, in one process."""
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(journal_in(folder))

        async def work(name: str, journal: Journal | None) -> Work:
            store = await SqliteStore.open(folder / name)
            stack.push_async_callback(store.close)
            tasks = None if journal is None else journal.tasks()
            cluster = await stack.enter_async_context(LocalCluster(store=store, journal=tasks))
            service = next(iter(cluster.hosts.values())).matching
            adds = [AddRequest(ROOT, one) for one in TASKS]
            poll = PollRequest(ROOT, "worker", "", 5.0)

            async def once() -> Round:
                cpu_s = time.process_time()
                add_per_s = await in_parallel(STORED_A_ROUND, 1000, lambda number: service.add(adds[number % KEYS]))
                poll_per_s = await in_parallel(STORED_A_ROUND, POLLS, lambda _: service.poll(poll))
                return Round(1 / add_per_s + 1 / poll_per_s, (time.process_time() - cpu_s) / STORED_A_ROUND)

            return once

        cost = await by_turns(await work("plain.db", None), await work("journaled.db", journal))
    check_complete(folder, 3 * (ROUNDS + 1) * STORED_A_ROUND)
    return cost


async def calls(folder: Path) -> Cost:
    """Tasks that match a waiting poll, over gRPC between two processes."""
    async with AsyncExitStack() as stack:

        async def work(arguments: list[str]) -> Work:
            server = subprocess.Popen(  # noqa: S603, ASYNC220 - our own module
                [sys.executable, "-m", "benchmarks.journal", "serve", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert server.stdout is not None  # noqa: S101 - it was asked for
            assert server.stdin is not None  # noqa: S101
            stack.callback(server.wait)
            stack.callback(server.stdin.close)
            address = (await asyncio.to_thread(server.stdout.readline)).strip()
            client = await stack.enter_async_context(connect(address))

            async def once() -> Round:
                cpu_s = cpu_of(server.pid)
                per_s = await matched(client, CALLS_A_ROUND, CALLS_AT_ONCE)
                return Round(1 / per_s, (cpu_of(server.pid) - cpu_s) / CALLS_A_ROUND)

            return once

        cost = await by_turns(await work([]), await work([str(folder)]))
    check_complete(folder, 2 * (ROUNDS + 1) * CALLS_A_ROUND)
    return cost


async def serve(folder: str = "") -> None:
    """Run a server until its standard input ends."""
    config = StaticConfig(
        listen=Address("127.0.0.1", 0),
        roles=frozenset({Role.MATCHING}),
        store=MemoryConfig(),
        journal=JournalConfig(Path(folder)) if folder else None,
    )
    server = Server(config)
    await server.start()
    print(server.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()


def cpu_of(process_id: int) -> float:
    """Seconds of CPU time that all threads of a process have used."""
    used = Path(f"/proc/{process_id}/schedstat")
    if not used.exists():
        return time.process_time()
    return sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{process_id}/task").glob("*/schedstat")) / 1e9


def check_complete(folder: Path, records_min: int) -> None:
    """Fail if the journal lacks records: then it was cheap only because it did not write."""
    records = sum(1 for path in folder.glob("*/*.zst") for _ in read_segment(path))
    assert records >= records_min, (records, records_min)  # noqa: S101


async def of_workflows(folder: Path) -> dict[str, Cost]:
    """Cost for a server that runs workflows, without and with payloads in the journal."""
    found = await workflows(folder)
    plain_per_s, plain_cpu_ms = found[PLAIN]
    return {
        kind: Cost(plain_per_s, per_s, 1 - per_s / plain_per_s, 1 - plain_cpu_ms / cpu_ms)
        for kind, (per_s, cpu_ms) in found.items()
        if kind != PLAIN
    }


async def main() -> int:
    costs: dict[str, Cost] = {}
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        by_kind = await of_workflows(Path(folder))
    costs["workflows: Workflows with an activity, on SQLite."] = by_kind[JOURNAL]
    costs["workflows: The same, with payloads."] = by_kind[PAYLOADS]
    for part in (calls, matches, stored):
        with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
            costs[f"{part.__name__}: {part.__doc__}"] = await part(Path(folder))
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    table = Table(title=f"The journal's cost; {os.cpu_count()} cores, load average {load}")
    for heading in ("", "plain/s", "with journal/s", "of time", "of processor time"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, cost in costs.items():
        table.add_row(
            name,
            f"{cost.plain_per_s:,.0f}",
            f"{cost.journal_per_s:,.0f}",
            f"{cost.of_time:.1%}",
            f"{cost.of_cpu:.1%}",
        )
    Console().print(table)
    return int(by_kind[JOURNAL].of_cpu > COST_MAX)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(*sys.argv[2:]))
    else:
        sys.exit(uvloop.run(main()))
