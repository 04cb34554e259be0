"""Measures what the console's pages cost with 10,000 task queues, and with 10,000 fairness keys in one of them.

    python -m benchmarks.console_size
    python -m benchmarks.console_size --quick

Every task queue is loaded, half of them have a waiting task. CPU is that of the server's process. A first paint is a
request for which the server must read all figures again: its cached ones have expired. A viewer reads the live stream
of one page; its figure is the additional CPU, since ten thousand loaded task queues need some CPU without viewers,
too.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from rich.console import Console
from rich.table import Table
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from benchmarks.aims import Aim, show_aims
from benchmarks.console import cpu_percent, get, viewing
from benchmarks.startup import cpu_clock
from benchmarks.workflows_servers import await_port, free_port, killed
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.matching.connection import connect
from fairlead.matching.messages import NewTask

QUEUES = 10_000
KEYS = 10_000
KEYED = "ten thousand keys"
ADDED_AT_ONCE = 64
# Pages: the list of task queues, and the pages of one task queue with many keys.
ONE = f"name={quote(KEYED)}&type=activity"
LIST = "task-queues"
PAGES = (LIST, f"{LIST}?sort=name&page=50", "home", f"task-queue?{ONE}", f"fairness?{ONE}", f"scaler?{ONE}")
# Aims: milliseconds of CPU for a first paint, and percent of a core for a viewer.
PAINT_MS = 300.0
VIEWER_PERCENT = 1.0
# Seconds until the kept figures are old.
OLD_S = 2.5


async def fill(address: str, host_address: str) -> None:
    """Load the task queues, and add the tasks."""
    client = await Client.connect(address)
    found = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
    namespace_id = found.namespace_info.id

    def tasks() -> Iterator[tuple[str, str]]:
        for number in range(QUEUES - 1):
            yield f"queue-{number:05d}", ""
        for number in range(KEYS):
            yield KEYED, f"key-{number}"

    async with connect(host_address) as matching:
        left = enumerate(tasks())

        async def add() -> None:
            for number, (name, key) in left:
                queue = TaskQueueId(namespace_id, name, TaskType.ACTIVITY)
                if key or number % 2:
                    await matching.add(queue, NewTask(3, key, 1.0, b"x" * 100, time.time()))
                else:
                    # The poll loads the task queue, whether it is answered in time or not.
                    with suppress(FairleadError):
                        await matching.poll(queue, identity="worker", timeout_s=0.05)

        await asyncio.gather(*(add() for _ in range(ADDED_AT_ONCE)))


async def paint_ms(server: int, port: int, page: str) -> float:
    """CPU of the server for a page, in milliseconds."""
    clock = cpu_clock(server)
    began_s = time.clock_gettime(clock)
    await get(port, page)
    return (time.clock_gettime(clock) - began_s) * 1e3


async def measure(server: int, port: int, *, is_quick: bool) -> list[Aim]:
    table = Table("page", "first paint, CPU ms", "again at once, CPU ms", "1 viewer, % of a core")
    seconds, repeats = (10.0, 3) if is_quick else (40.0, 7)
    first_ms = await paint_ms(server, port, LIST)
    idle = await asyncio.to_thread(cpu_percent, server, seconds)
    paints: list[float] = []
    viewers: list[float] = []
    for page in PAGES:
        path = "" if page == "home" else page
        cold, warm = [], []
        for _ in range(repeats):
            await asyncio.sleep(OLD_S)
            cold.append(await paint_ms(server, port, path))
            warm.append(await paint_ms(server, port, path))
        with viewing(port, page, 1):
            await asyncio.sleep(5)
            viewers.append(await asyncio.to_thread(cpu_percent, server, seconds) - idle)
        paints.append(statistics.median(cold))
        shown = page.replace(ONE, "...")
        table.add_row(shown, f"{paints[-1]:.1f}", f"{statistics.median(warm):.1f}", f"{viewers[-1]:.2f}")
    console = Console(width=120)
    console.print(table)
    console.print(f"The first page after the start took {first_ms:.0f} ms; without viewers, {idle:.1f} % of a core.")
    return [
        Aim("first page of the list after the start, CPU ms", first_ms, PAINT_MS, "less"),
        Aim(f"first paint of the list with {QUEUES:,} task queues, CPU ms", paints[0], PAINT_MS, "less"),
        Aim("first paint of any page, CPU ms", max(paints), PAINT_MS, "less"),
        Aim("one viewer, percent of a core", max(viewers), VIEWER_PERCENT, "less"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter measurements")
    given = parser.parse_args()
    port, host_port, ui_port = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="fairlead-console-") as name:
        folder = Path(name)
        (folder / "server.yaml").write_text(
            f"listen: 127.0.0.1:{host_port}\nfrontend: {{listen: '127.0.0.1:{port}'}}\n"
            f"ui: {{listen: '127.0.0.1:{ui_port}'}}\nstore: {{sqlite: {{file: {folder / 'store.db'}}}}}\n"
            "log: {level: error}\nstop: {handOver: 0s, grace: 1s}\nnamespaces: [{name: default, retention: 24h}]\n"
        )
        log_file = folder / "server.log"
        command = [sys.executable, "-m", "fairlead", "server", "start", "--config", str(folder / "server.yaml")]
        # An idle task queue stays loaded for the whole run.
        command += ["--dynamic-config-value", 'matching.maxTaskQueueIdleTime="1h"']
        with log_file.open("wb") as log, killed(command, log) as process:
            await_port(ui_port, process, log_file)
            began_s = time.monotonic()
            asyncio.run(fill(f"127.0.0.1:{port}", f"127.0.0.1:{host_port}"))
            Console(width=120).print(f"{QUEUES:,} task queues, loaded in {time.monotonic() - began_s:.0f} s")
            missed = show_aims(asyncio.run(measure(process.pid, ui_port, is_quick=given.quick)))
    if missed:
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
