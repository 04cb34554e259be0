"""Durable tasks by the public client on one SQLite server, and the memory of idle task queues and parked polls.

`fairlead.client` adds 20,000 tasks, 200 at the same time, and then polls for all of them. The server is started by
`fairlead server start` with a file on disk; each task is synced before its add returns. The baseline is bare SQLite
from Python, 100 rows per commit, in the same run. Memory is the growth of the server's resident memory.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.aims import Aim, show_aims
from benchmarks.storage import bare
from benchmarks.workflows_servers import COMMANDS, OURS, READY_S_MAX, ServerProcess, await_port, free_port, killed
from fairlead.client import RetryLater, TaskQueueClient, connect

TASKS = 20_000
IN_FLIGHT = 200
PAYLOAD = bytes(100)
QUEUES = 1_000
QUEUES_AT_ONCE = 50
# Seconds for the server to finish work that it does after a response.
SETTLE_S = 2.0

Figures = dict[str, float]
# By figure: its title, the aim, and whether a higher figure is better.
AIMS: dict[str, tuple[str, float, bool]] = {
    "added_per_s": (f"durable tasks added per second, {IN_FLIGHT} in flight", 10_000, True),
    "dispatched_per_s": (f"dispatched per second, {IN_FLIGHT} polls in flight", 10_000, True),
    "queue_kb": ("kB of a loaded idle task queue", 10, False),
    "poll_kb": ("kB of a parked poll on its own task queue", 10, False),
}
OTHERS = {
    "add_cpu_us": "server CPU us per add",
    "client_add_cpu_us": "client CPU us per add",
    "dispatch_cpu_us": "server CPU us per dispatch",
    "client_dispatch_cpu_us": "client CPU us per dispatch",
    "bare_rows_per_s": "rows per second of bare SQLite, 100 per commit",
    "added_of_bare": "added, as a share of bare SQLite",
}


@contextlib.contextmanager
def server_of_tasks(folder: Path) -> Iterator[ServerProcess]:
    """Run a server with a file in the folder, as a user starts one."""
    port = free_port()
    config = {"listen": f"127.0.0.1:{port}", "roles": ["matching"], "store": {"sqlite": {"file": "tasks.db"}}}
    # JSON is YAML.
    (folder / "fairlead.yaml").write_text(json.dumps(config))
    command = [*COMMANDS[OURS], "server", "start", "--config", str(folder / "fairlead.yaml"), "--log-level", "error"]
    with (folder / "server.log").open("wb") as log, killed(command, log) as process:
        await_port(port, process, folder / "server.log")
        yield ServerProcess(f"127.0.0.1:{port}", process.pid)


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
    cpu_s, client_cpu_s = server.cpu_s(), time.process_time()
    added_s = await at_once(count, IN_FLIGHT, lambda _: client.add("orders", PAYLOAD))
    add_cpu_s, client_add_cpu_s = server.cpu_s() - cpu_s, time.process_time() - client_cpu_s

    async def poll(_: int) -> None:
        if await client.poll("orders", timeout_s=30) is None:
            raise AssertionError("a poll came back empty before all tasks were dispatched")

    cpu_s, client_cpu_s = server.cpu_s(), time.process_time()
    dispatched_s = await at_once(count, IN_FLIGHT, poll)
    client_dispatch_cpu_s = time.process_time() - client_cpu_s
    # Wait: the server still deletes the tasks.
    await asyncio.sleep(SETTLE_S)
    return {
        "added_per_s": count / added_s,
        "dispatched_per_s": count / dispatched_s,
        "add_cpu_us": add_cpu_s / count * 1e6,
        "client_add_cpu_us": client_add_cpu_s / count * 1e6,
        "client_dispatch_cpu_us": client_dispatch_cpu_s / count * 1e6,
        "dispatch_cpu_us": (server.cpu_s() - cpu_s) / count * 1e6,
    }


async def memory(client: TaskQueueClient, server: ServerProcess, queues: int) -> Figures:
    """Load task queues that are then idle, and park polls at others."""

    async def use(number: int) -> None:
        await client.add(f"idle-{number}", PAYLOAD)
        await client.poll(f"idle-{number}", timeout_s=5)

    # The first task queues also load what all task queues share.
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


async def ready(address: str) -> None:
    """Wait until the server is in its ring: it listens slightly earlier."""
    async with asyncio.timeout(READY_S_MAX):
        while True:
            with contextlib.suppress(RetryLater):
                async with connect(address):
                    return
            await asyncio.sleep(0.05)


async def measure(server: ServerProcess, *, is_quick: bool) -> Figures:
    await ready(server.address)
    async with connect(server.address) as client:
        figures = await memory(client, server, QUEUES // 4 if is_quick else QUEUES)
    async with connect(server.address) as client:
        return figures | await tasks(client, server, TASKS // 4 if is_quick else TASKS)


def run(*, is_quick: bool) -> Figures:
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        bare_rows_per_s = bare(Path(name), rows_a_commit=100).rows_per_s
        with server_of_tasks(Path(name)) as server:
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
        return
    table = Table("", "measured")
    for name, title in OTHERS.items():
        table.add_row(title, f"{figures[name]:,.2f}")
    Console(width=110).print(table)
    aims = [
        Aim(title, figures[name], aim, "more" if is_more_better else "less")
        for name, (title, aim, is_more_better) in AIMS.items()
    ]
    if missed := show_aims(aims):
        sys.exit("missed by more than noise: " + "; ".join(missed))


if __name__ == "__main__":
    main()
