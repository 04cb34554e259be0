"""Measures what the console's viewers cost: CPU of live pages, their effect on starts, and CPU of a page.

    python -m benchmarks.console
    python -m benchmarks.console --quick

A development server has 200 waiting workflows. Viewers are connections of another process that read the live stream of
one page each. The latency of starts is the median of rounds that alternate between no viewer and 100 viewers, so that
the load of the machine counts for both. CPU is that of the server's process.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from rich.console import Console
from rich.table import Table
from temporalio.client import Client

from benchmarks.aims import Aim, show_aims
from benchmarks.startup import cpu_clock
from benchmarks.workflows_servers import free_port

WORKFLOWS = 200
VIEWERS = 100
PAGES = ("home", "workflows", "workflow?id=w-1", "stuck?id=w-1")
# Aims: maximum percent of a core for one viewer, and for all viewers; maximum latency of starts, as a multiple of that
# without viewers; maximum CPU milliseconds of a page with 50 rows.
VIEWER_PERCENT = 1.0
START_RATIO = 1.05
PAGE_MS = 50.0


async def view(port: int, page: str, viewers: int) -> None:
    """Read the streams of a page until the process is ended."""

    async def read() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /console/live/{page} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode())
        while await reader.read(1 << 16):
            pass

    async with asyncio.TaskGroup() as group:
        for _ in range(viewers):
            group.create_task(read())
        print("ready", flush=True)


@contextmanager
def viewing(port: int, page: str, viewers: int) -> Iterator[None]:
    options = ("--view", page, "--port", str(port), "--viewers", str(viewers))
    with subprocess.Popen(  # noqa: S603 - ours
        [sys.executable, "-m", "benchmarks.console", *options], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            (process.stdout or sys.stdin).readline()
            yield
        finally:
            process.kill()


def cpu_percent(server: int, seconds: float) -> float:
    """Percent of a core that the server used."""
    clock = cpu_clock(server)
    began, cpu = time.monotonic(), time.clock_gettime(clock)
    time.sleep(seconds)
    return (time.clock_gettime(clock) - cpu) / (time.monotonic() - began) * 100


async def start_ms(client: Client, starts: int) -> list[float]:
    taken = []
    for _ in range(starts):
        began_s = time.perf_counter()
        await client.start_workflow("Nobody", id=f"s-{time.monotonic_ns()}", task_queue="console")
        taken.append((time.perf_counter() - began_s) * 1e3)
    return taken


async def get(port: int, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /console/{path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n".encode())
    body = await reader.read(-1)
    writer.close()
    if b" 200 OK" not in body[:20]:
        sys.exit(f"{path} is not served: {body[:200]!r}")


async def measure(server: int, address: str, port: int, *, is_quick: bool) -> list[Aim]:
    client = await Client.connect(address)
    for number in range(WORKFLOWS):
        await client.start_workflow("Nobody", id=f"w-{number}", task_queue="console")
    table = Table("page", "CPU of a page, ms", "1 viewer, % of a core", f"{VIEWERS} viewers, % of a core")
    seconds = 6.0 if is_quick else 20.0
    ones: list[float] = []
    manies: list[float] = []
    pages: list[float] = []
    for page in PAGES:
        path = "" if page == "home" else page
        await get(port, path)
        clock, repeats = cpu_clock(server), 20
        began_s = time.clock_gettime(clock)
        for _ in range(repeats):
            await get(port, path)
        pages.append((time.clock_gettime(clock) - began_s) / repeats * 1e3)
        for viewers, found in ((1, ones), (VIEWERS, manies)):
            with viewing(port, page, viewers):
                await asyncio.sleep(4)
                found.append(await asyncio.to_thread(cpu_percent, server, seconds))
        table.add_row(page, f"{pages[-1]:.1f}", f"{ones[-1]:.2f}", f"{manies[-1]:.2f}")
    Console(width=120).print(table)
    without: list[float] = []
    with_viewers: list[float] = []
    for _ in range(2 if is_quick else 8):
        without += await start_ms(client, 1_000)
        with viewing(port, quote("home"), VIEWERS):
            await asyncio.sleep(1)
            with_viewers += await start_ms(client, 1_000)
    ratio = statistics.median(with_viewers) / statistics.median(without)
    return [
        Aim("one viewer, percent of a core", max(ones), VIEWER_PERCENT, "less"),
        Aim(f"{VIEWERS} viewers of a page, percent of a core", max(manies), VIEWER_PERCENT, "less"),
        Aim(f"p50 of starts with {VIEWERS} viewers, times that without", ratio, START_RATIO, "less", 0.9),
        Aim("CPU of a page, ms", max(pages), PAGE_MS, "less"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--view", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--viewers", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.view:
        asyncio.run(view(given.port, given.view, given.viewers))
        return
    port, ui_port = free_port(), free_port()
    command = [sys.executable, "-m", "fairlead", "server", "start-dev", "--port", str(port), "--ui-port", str(ui_port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603 - ours
        try:
            while "Ready" not in (server.stdout or sys.stdin).readline():
                pass
            missed = show_aims(asyncio.run(measure(server.pid, f"127.0.0.1:{port}", ui_port, is_quick=given.quick)))
        finally:
            server.terminate()
    if missed:
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
