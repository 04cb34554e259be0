"""CPU of a workflow by layer of the server: py-spy's samples of the main thread, and the clocks of the other threads.

Each sample counts for the layer of the function that runs; time in a library counts for our function that called it.
The shares are scaled to the CPU time of the main thread, so that all rows add up to the CPU of a workflow.
"""

import argparse
import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.workflows_load import RawClient, at_once, connect, run_one
from benchmarks.workflows_servers import OURS, ServerProcess, killed, server_process

WARM_UP_S = 2.0
SAMPLES_PER_S = 100
SPY = str(Path(sys.executable).with_name("py-spy"))

LOOP = "event loop: sockets, timers, wake-ups between threads"
# The first pattern that fits the place of a sample (its function and file) names its layer.
LAYERS: tuple[tuple[str, str], ...] = (
    ("rpc: frames, headers, writes to sockets", r"fairlead/rpc/(?!hosts)"),
    (
        "encoding: protobuf and msgpack",
        r"(Transaction\.finish|spliced|_answerer|encode_\w+|decode_\w+|\bencode|_run_write|from_store|row_of) \(",
    ),
    ("frontend: validation, handlers, draining", r"fairlead/(frontend|server)/"),
    (
        "history: steps, events, commands, responses",
        r"fairlead/history/(events|commands|state|handlers|client|service|messages|nexus|entities)",
    ),
    ("history: locks, caches, commits, queues, executors", r"fairlead/history/"),
    ("matching: client, partitions, polls", r"fairlead/(matching|core|membership)/|fairlead/rpc/hosts"),
    ("store: hand-over to the writer thread", r"fairlead/storage/"),
    ("journal", r"fairlead/journal/"),
    ("metrics, namespaces, times, ids, settings", r"fairlead/"),
)
WRITER = "store: the writer thread (SQLite)"
READERS = "store: reader threads, and the rest of the process"


def layer_of(frames: list[str]) -> str:
    """The layer of a sample, given its frames from the outermost to the innermost."""
    ours = [frame for frame in frames if "fairlead/" in frame and "fairlead/cli" not in frame]
    if not ours or "fairlead/__main__" in ours[-1]:
        return LOOP
    return next((name for name, pattern in LAYERS if re.search(pattern, ours[-1])), LOOP)


def layers_of(lines: Iterable[str]) -> Counter[str]:
    """Samples of the main thread by layer, from py-spy's raw format: frames by semicolons, a space, a count."""
    found: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if "MainThread" in frames[0]:
            found[layer_of(frames[1:])] += int(count)
    return found


def thread_cpu_s(pid: int) -> tuple[float, float, float]:
    """Seconds of CPU of the main thread, of the store's writer thread, and of all others."""
    main_s = writer_s = rest_s = 0.0
    for number, task in enumerate(_threads(pid)):
        cpu_s = int((task / "schedstat").read_text().split()[0]) / 1e9
        if task.name == str(pid):
            main_s = cpu_s
        elif number == 1:
            writer_s = cpu_s
        else:
            rest_s += cpu_s
    return main_s, writer_s, rest_s


def _threads(pid: int) -> Iterator[Path]:
    """The main thread, then the others, the busiest first: the writer is by far the busiest."""
    tasks = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name))
    main, others = tasks[0], tasks[1:]
    yield main
    yield from sorted(others, key=lambda task: -int((task / "schedstat").read_text().split()[0]))


async def measure(
    server: ServerProcess, folder: Path, duration_s: float, *, only_starts: bool
) -> tuple[dict[str, float], float]:
    """Milliseconds of CPU per workflow by layer, and workflows per second."""
    one: Callable[[], Awaitable[object]]
    if only_starts:
        # Without an SDK, whose client would be busier than the server.
        one = (await RawClient.connected(server.address)).start
    else:
        one = partial(run_one, await connect(server.address))
    await at_once(one, duration_s=WARM_UP_S)
    # Measure the CPU time in a first round without the profiler, which stops the server for each sample.
    before = thread_cpu_s(server.pid)
    done = await at_once(one, duration_s=duration_s)
    main_ms, writer_ms, rest_ms = (
        (after - begun) / done * 1e3 for after, begun in zip(thread_cpu_s(server.pid), before, strict=True)
    )
    raw = folder / "samples"
    options = ["-f", "raw", "-r", str(SAMPLES_PER_S), "-d", str(int(duration_s)), "--gil", "--threads", "--nolineno"]
    spy = await asyncio.create_subprocess_exec(
        SPY, "record", *options, "-o", str(raw), "-p", str(server.pid), stdout=subprocess.DEVNULL
    )
    await asyncio.gather(spy.wait(), at_once(one, duration_s=duration_s + 1))
    samples = layers_of(raw.read_text().splitlines())
    total = sum(samples.values())
    by_layer = {name: samples[name] / total * main_ms for name in (LOOP, *(name for name, _ in LAYERS))}
    return {**by_layer, WRITER: writer_ms, READERS: rest_ms}, done / duration_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workflow_layers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of load, twice")
    parser.add_argument("--starts", action="store_true", help="only start workflows, without a worker")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name, contextlib.ExitStack() as stack:
        server = stack.enter_context(server_process(OURS, Path(name)))
        if not options.starts:
            log = stack.enter_context((Path(name) / "worker.log").open("wb"))
            command = [sys.executable, "-m", "benchmarks.workflows_load", server.address]
            stack.enter_context(killed(command, log))
        figures, per_s = uvloop.run(measure(server, Path(name), options.seconds, only_starts=options.starts))
    total_ms = sum(figures.values())
    subject = "start" if options.starts else "workflow"
    title = f"{per_s:,.0f} {subject}s per second, load average {os.getloadavg()[0]:.1f}"
    table = Table("layer", f"CPU ms per {subject}", "%", title=title)
    for layer, cpu_ms in figures.items():
        table.add_row(layer, f"{cpu_ms:.2f}", f"{cpu_ms / total_ms * 100:.0f}")
    table.add_section()
    table.add_row("all", f"{total_ms:.2f}", "100")
    console = Console()
    if not console.is_terminal:
        console.width = 110
    console.print(table)


if __name__ == "__main__":
    main()
