"""Latency of the stream: from an event in a server to its rows in the tables of traffic and fairness.

A server with a journal and `fairlead pipeline stream` run as processes of their own, with their default settings unless
`--segment` gives another age at which segments are sealed. Each probe starts a workflow on a task queue of its own, and
waits until both tables have a row of that task queue.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
from temporalio.client import Client

LATENCY_S_MAX = 90.0
PROBES = 8
# Seconds between two probes: they fall on different moments of a segment.
SPACING_S = 11.0
WAIT_S_MAX = 600.0
TABLES = ("traffic_lists", "fairness_keys")


@contextmanager
def running(command: list[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a command of fairlead during the block."""
    with log.open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", "fairlead", *command], stdout=out, stderr=out)  # noqa: S603 - our own program
    try:
        yield process
    finally:
        process.terminate()
        process.wait(120)


def is_in_tables(lake: Path, queue: str) -> bool:
    """Whether all tables have a row of the task queue."""
    for table in TABLES:
        files = [str(file) for file in (lake / table).resolve().glob("*.parquet")]
        if not files:
            return False
        try:
            with duckdb.connect() as database:
                rows = database.read_parquet(files, union_by_name=True).filter(f"task_list = '{queue}'")
                if not rows.limit(1).fetchall():
                    return False
        except duckdb.IOException:
            # The stream has just replaced the files.
            return False
    return True


async def probe(client: Client, lake: Path, number: int) -> float:
    """Return the seconds from the start of a workflow to its rows in the tables."""
    queue = f"probe-{number}"
    began_s = time.monotonic()
    await client.start_workflow("Probe", id=queue, task_queue=queue)
    while not await asyncio.to_thread(is_in_tables, lake, queue):
        if time.monotonic() - began_s > WAIT_S_MAX:
            raise TimeoutError(f"no row of {queue} within {WAIT_S_MAX:.0f} s")
        await asyncio.sleep(0.5)
    return time.monotonic() - began_s


async def connected(address: str) -> Client:
    """Return a client of the server as soon as it listens."""
    while True:
        try:
            return await Client.connect(address)
        except RuntimeError:
            await asyncio.sleep(0.5)


async def measure(folder: Path, probes: int, segment_s: float | None) -> list[float]:
    """Run a server and a stream; return the latency of each probe."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    journal, lake = folder / "journal", folder / "lake"
    server = ["server", "start-dev", "--headless", "--port", str(port), "--journal", str(journal)]
    if segment_s is not None:
        server += ["--dynamic-config-value", f'journal.segmentInterval="{segment_s}s"']
    stream = ["pipeline", "stream", "--journal", str(journal), "--lake", str(lake)]
    with running(server, folder / "server.log"):
        client = await connected(f"127.0.0.1:{port}")
        journal.mkdir(exist_ok=True)
        with running(stream, folder / "stream.log"):
            # The first rows also wait for the start of Spark, which is not measured.
            await probe(client, lake, 0)
            tasks = []
            for number in range(1, probes + 1):
                tasks.append(asyncio.create_task(probe(client, lake, number)))
                await asyncio.sleep(SPACING_S)
            return list(await asyncio.gather(*tasks))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_stream", description=__doc__)
    parser.add_argument("--probes", type=int, default=PROBES, metavar="N")
    parser.add_argument("--segment", type=float, metavar="SECONDS", help="seal segments at this age")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        latencies = asyncio.run(measure(Path(folder), options.probes, options.segment))
    worst = max(latencies)
    if options.json:
        print(json.dumps({"latency_s": latencies}))
    else:
        load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
        print(f"from an event to its rows: {', '.join(f'{one:.0f} s' for one in latencies)}; load average {load}")
        print(f"longest {worst:.0f} s; aim: at most {LATENCY_S_MAX:.0f} s")
    return int(worst > LATENCY_S_MAX)


if __name__ == "__main__":
    sys.exit(main())
