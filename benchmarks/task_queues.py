"""Durable tasks by the public client on one SQLite server, and the memory of idle task queues and parked polls.

`fairlead.client` adds 20,000 tasks, 200 at the same time, and then polls for all of them. The server is a process of
its own with a file on disk; each task is synced before its add returns. The baseline is bare SQLite from Python, 100
rows a commit, in the same run. Memory is the growth of the server's resident memory.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.storage import bare
from benchmarks.workflows_servers import ServerProcess, killed
from fairlead.client import TaskQueueClient, connect
from fairlead.server import Server
from fairlead.settings.static.config import Address, Role, SqliteConfig, StaticConfig

TASKS = 20_000
IN_FLIGHT = 200
PAYLOAD = bytes(100)
QUEUES = 1_000
QUEUES_AT_ONCE = 50
# Seconds for the server to finish what it does after a response.
SETTLE_S = 2.0
# Share of an aim below which it is missed: the rest is noise.
REACHED_MIN = 0.8

Figures = dict[str, float]
# By figure: its title, what is aimed at, and whether more is better.
AIMS: dict[str, tuple[str, float, bool]] = {
    "added_per_s": (f"durable tasks added a second, {IN_FLIGHT} in flight", 10_000, True),
    "dispatched_per_s": (f"dispatched a second, {IN_FLIGHT} polls in flight", 10_000, True),
    "queue_kb": ("kB of a loaded idle task queue", 10, False),
    "poll_kb": ("kB of a parked poll on its own task queue", 10, False),
}
OTHERS = {
    "add_cpu_us": "server CPU us an add",
    "dispatch_cpu_us": "server CPU us a dispatch",
    "bare_rows_per_s": "rows a second of bare SQLite, 100 a commit",
    "added_of_bare": "added, of bare SQLite",
}


async def serve(folder: Path) -> None:
    """Run a server with a file in the folder, and print its address."""
    config = StaticConfig(
        listen=Address("127.0.0.1", 0), roles=frozenset({Role.MATCHING}), store=SqliteConfig(folder / "tasks.db")
    )
    server = Server(config)
    await server.start()
    print(server.address, flush=True)
    await asyncio.Event().wait()


async def at_once(calls: int, in_flight: int, call: Callable[[int], Awaitable[object]]) -> float:
    """Make calls, `in_flight` at the same time; return the seconds that they took."""
    numbers = iter(range(calls))

    async def caller() -> None:
        for number in numbers:
            await call(number)

    began_s = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return time.perf_counter() - began_s


async def tasks(client: TaskQueueClient, server: ServerProcess, count: int) -> Figures:
    """Add tasks, then poll for all of them."""
    await at_once(count // 20, IN_FLIGHT, lambda _: client.add("warm-up", PAYLOAD))
    cpu_s = server.cpu_s()
    added_s = await at_once(count, IN_FLIGHT, lambda _: client.add("orders", PAYLOAD))
    add_cpu_s = server.cpu_s() - cpu_s

    async def poll(_: int) -> None:
        if await client.poll("orders", timeout_s=30) is None:
            raise AssertionError("a poll came back empty before all tasks were dispatched")

    cpu_s = server.cpu_s()
    dispatched_s = await at_once(count, IN_FLIGHT, poll)
    await asyncio.sleep(SETTLE_S)
    return {
        "added_per_s": count / added_s,
        "dispatched_per_s": count / dispatched_s,
        "add_cpu_us": add_cpu_s / count * 1e6,
        "dispatch_cpu_us": (server.cpu_s() - cpu_s) / count * 1e6,
    }


async def memory(client: TaskQueueClient, server: ServerProcess, queues: int) -> Figures:
    """Load task queues that are then idle, and park polls at others."""

    async def use(number: int) -> None:
        await client.add(f"idle-{number}", PAYLOAD)
        await client.poll(f"idle-{number}", timeout_s=5)

    # The first ones also load what all of them share.
    await at_once(QUEUES_AT_ONCE, QUEUES_AT_ONCE, lambda number: use(-number))
    await asyncio.sleep(SETTLE_S)
    before_mb = server.resident_mb()
    await at_once(queues, QUEUES_AT_ONCE, use)
    await asyncio.sleep(SETTLE_S)
    between_mb = server.resident_mb()
    polls = [asyncio.create_task(client.poll(f"parked-{number}", timeout_s=60)) for number in range(queues)]
    await asyncio.sleep(3 * SETTLE_S)
    after_mb = server.resident_mb()
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    return {"queue_kb": (between_mb - before_mb) * 1e3 / queues, "poll_kb": (after_mb - between_mb) * 1e3 / queues}


async def measure(server: ServerProcess, *, is_quick: bool) -> Figures:
    async with connect(server.address) as client:
        figures = await memory(client, server, QUEUES // 4 if is_quick else QUEUES)
    async with connect(server.address) as client:
        return figures | await tasks(client, server, TASKS // 4 if is_quick else TASKS)


def run(*, is_quick: bool) -> Figures:
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        bare_rows_per_s = bare(Path(name), rows_a_commit=100).rows_per_s
        command = [sys.executable, "-m", "benchmarks.task_queues", "serve", name]
        with killed(command, subprocess.PIPE) as process:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            server = ServerProcess(process.stdout.readline().decode().strip(), process.pid)
            figures = uvloop.run(measure(server, is_quick=is_quick))
    return figures | {
        "bare_rows_per_s": bare_rows_per_s,
        "added_of_bare": figures["added_per_s"] / bare_rows_per_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.task_queues", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the tasks and task queues")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args()
    figures = run(is_quick=options.quick)
    if options.json:
        print(json.dumps(figures, indent=2))
    table = Table("", "measured", "aimed at", "times the aim", "")
    missed = []
    for name, (title, aim, is_more_better) in AIMS.items():
        share = figures[name] / aim if is_more_better else aim / figures[name]
        if share < REACHED_MIN:
            missed.append(title)
        bound = f"{'at least' if is_more_better else 'at most'} {aim:,g}"
        table.add_row(title, f"{figures[name]:,.1f}", bound, f"{share:.2f}", "MISSED" if share < REACHED_MIN else "met")
    for name, title in OTHERS.items():
        table.add_row(title, f"{figures[name]:,.2f}", "", "", "")
    if not options.json:
        Console(width=110).print(table)
    if missed:
        sys.exit(f"missed by more than {1 - REACHED_MIN:.0%}: {', '.join(missed)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(Path(sys.argv[2])))
    else:
        main()
