"""Workflows on Fairlead beside Temporal's development server: throughput, latency, CPU and memory.

Both servers are started as a user starts them, with a file on disk, and get the same load from the same SDK: the worker
in one process, the clients in another. The rounds alternate, and each figure's best round counts: noise of a shared
machine only makes a figure worse. Ratios of figures from the same run are more reliable than the figures.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.aims import RATE_REACHED_MIN, RATIO_REACHED_MIN, Aim, show_aims
from benchmarks.workflows_load import (
    CONCURRENCY,
    SIGNALED,
    SIGNALS_A_WORKFLOW_MAX,
    RawClient,
    at_once,
    connect,
    run_one,
)
from benchmarks.workflows_servers import (
    OURS,
    REFERENCE,
    SERVERS,
    UNSYNCED,
    ServerProcess,
    killed,
    server_process,
)

WARM_UP_S = 1.0
# Seconds after the last response for work that a server does later; its CPU time counts too.
SETTLE_S = 0.5
COLOURS = {OURS: "#1f77b4", REFERENCE: "#c7c7c7"}

Figures = dict[str, float]


@dataclass(frozen=True)
class Size:
    """Durations of the parts."""

    rounds: int
    load_s: float
    sequential: int
    raw_s: float


FULL = Size(rounds=3, load_s=5.0, sequential=100, raw_s=2.0)
QUICK = Size(rounds=1, load_s=2.5, sequential=30, raw_s=1.0)


@dataclass(frozen=True)
class Row:
    """A figure: whether higher is better, and its aims.

    `times` is the factor by which Fairlead should be better, `times_unsynced` the same against a reference that does
    not wait for the disk, and `figure` the value that Fairlead should reach on two idle cores.
    """

    name: str
    title: str
    better: Literal["more", "less"]
    times: float | None = None
    times_unsynced: float | None = None
    figure: float | None = None

    def best(self, values: list[float]) -> float:
        return max(values) if self.better == "more" else min(values)

    def times_better(self, ours: float, theirs: float) -> float:
        return ours / theirs if self.better == "more" else theirs / ours

    def aim(self, *, is_unsynced: bool) -> float | None:
        """The factor by which Fairlead should be better; None without an aim."""
        return self.times_unsynced if is_unsynced and self.times_unsynced is not None else self.times

    def aims(self, ours: float, theirs: float, *, is_unsynced: bool) -> list[Aim]:
        """The aims of this figure: a factor to the reference, and a figure of ours alone."""
        found = []
        if (times := self.aim(is_unsynced=is_unsynced)) is not None:
            beside = "Temporal's server without fsync" if is_unsynced else "Temporal's server"
            # CPU times of one run vary less than rates and latencies.
            reached_min = RATIO_REACHED_MIN if "CPU" in self.title else RATE_REACHED_MIN
            title = f"{self.title}: times better than {beside}"
            found.append(Aim(title, self.times_better(ours, theirs), times, reached_min=reached_min))
        if self.figure is not None:
            found.append(Aim(self.title, ours, self.figure, self.better))
        return found


ROWS = (
    Row("workflows_per_s", f"workflows per second, {CONCURRENCY} at once", "more", 2.5),
    Row("workflow_cpu_ms", "server CPU ms per workflow", "less", 12.0, 8.0),
    Row("result_ms_p50", "start to result ms, one at a time, p50", "less", 2.0, figure=8.0),
    Row("result_ms_p99", "start to result ms, one at a time, p99", "less"),
    Row("starts_per_s", "starts per second, no worker", "more", figure=3_000),
    Row("start_cpu_ms", "server CPU ms per start", "less"),
    Row("signals_to_one_per_s", "signals per second to one workflow", "more", figure=3_000),
    Row("signal_to_one_cpu_ms", "server CPU ms per signal to one workflow", "less"),
    Row("signals_to_many_per_s", f"signals per second to {SIGNALED} workflows", "more"),
    Row("signal_to_many_cpu_ms", f"server CPU ms per signal to {SIGNALED} workflows", "less"),
    Row("resident_mb", "MB resident afterwards", "less"),
)


async def measured(
    server: ServerProcess, call: Callable[[], Awaitable[object]], *, duration_s: float, calls_max: int = sys.maxsize
) -> tuple[float, float]:
    """Calls per second, and the server's CPU milliseconds per call."""
    cpu_s, began_s = server.cpu_s(), time.perf_counter()
    calls = await at_once(call, duration_s=duration_s, calls_max=calls_max)
    took_s = time.perf_counter() - began_s
    await asyncio.sleep(SETTLE_S)
    return calls / took_s, (server.cpu_s() - cpu_s) / calls * 1e3


async def with_worker(server: ServerProcess, size: Size) -> Figures:
    client = await connect(server.address)
    await at_once(lambda: run_one(client), duration_s=WARM_UP_S)
    per_s, cpu_ms = await measured(server, lambda: run_one(client), duration_s=size.load_s)
    waits_ms = [await run_one(client) * 1e3 for _ in range(size.sequential)]
    percentiles = statistics.quantiles(waits_ms, n=100)
    return {
        "workflows_per_s": per_s,
        "workflow_cpu_ms": cpu_ms,
        "result_ms_p50": percentiles[49],
        "result_ms_p99": percentiles[98],
    }


async def without_worker(server: ServerProcess, size: Size) -> Figures:
    client = await RawClient.connected(server.address)
    await at_once(client.start, duration_s=WARM_UP_S / 2)
    starts = await measured(server, client.start, duration_s=size.raw_s)
    await client.start("one")
    to_one = await measured(
        server, lambda: client.signal("one"), duration_s=size.raw_s, calls_max=SIGNALS_A_WORKFLOW_MAX
    )
    names = [f"many-{number}" for number in range(SIGNALED)]
    await asyncio.gather(*(client.start(name) for name in names))
    turns = cycle(names)
    to_many = await measured(server, lambda: client.signal(next(turns)), duration_s=size.raw_s)
    await client.close()
    return {
        "starts_per_s": starts[0],
        "start_cpu_ms": starts[1],
        "signals_to_one_per_s": to_one[0],
        "signal_to_one_cpu_ms": to_one[1],
        "signals_to_many_per_s": to_many[0],
        "signal_to_many_cpu_ms": to_many[1],
    }


def measure(kind: str, size: Size, extra: Sequence[str]) -> Figures:
    """Measure all figures of one server, which starts with an empty store."""
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name,
        server_process(kind, Path(name), extra) as server,
    ):
        command = [sys.executable, "-m", "benchmarks.workflows_load", server.address]
        with (Path(name) / "worker.log").open("wb") as log, killed(command, log):
            figures = uvloop.run(with_worker(server, size))
        figures |= uvloop.run(without_worker(server, size))
        return figures | {"resident_mb": server.resident_mb()}


def summary(rounds: Mapping[str, list[Figures]], *, is_unsynced: bool) -> list[dict[str, Any]]:
    """For each figure: the best round of both servers, the factor by which ours is better, and its aims."""
    found: list[dict[str, Any]] = []
    for row in ROWS:
        ours, theirs = (row.best([figures[row.name] for figures in rounds[kind]]) for kind in SERVERS)
        aims = row.aims(ours, theirs, is_unsynced=is_unsynced)
        found.append(
            {
                "name": row.name,
                OURS: ours,
                REFERENCE: theirs,
                "times_better": row.times_better(ours, theirs),
                "aims": [asdict(aim) | {"share": aim.share, "is_missed": aim.is_missed} for aim in aims],
            }
        )
    return found


def show(lines: list[dict[str, Any]], size: Size) -> None:
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    table = Table(
        "",
        *SERVERS,
        "times better",
        title=f"best of {size.rounds} rounds, {os.cpu_count()} cores, load average {load}",
    )
    for row, line in zip(ROWS, lines, strict=True):
        table.add_row(row.title, f"{line[OURS]:,.2f}", f"{line[REFERENCE]:,.2f}", f"{line['times_better']:.1f}")
    console = Console()
    if not console.is_terminal:
        console.width = 130
    console.print(table)


def draw(lines: list[dict[str, Any]], file: Path) -> None:
    """Draw the factor by which ours is better, for each figure, with the target."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second, and need not be installed

    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    places = range(len(ROWS))
    ratios = [float(str(line["times_better"])) for line in lines]
    axes.barh(places, ratios, color=COLOURS[OURS])
    axes.axvline(1, color="black", linewidth=1)
    axes.text(1, -0.6, " 1: Temporal's development server", fontsize=8)
    for place, (row, line, ratio) in enumerate(zip(ROWS, lines, ratios, strict=True)):
        label = f" {ratio:.1f} ({line[OURS]:,.4g} : {line[REFERENCE]:,.4g})"
        axes.text(ratio, place, label, va="center", fontsize=8)
        if row.times is not None:
            axes.plot([row.times] * 2, [place - 0.45, place + 0.45], color="#d62728", linewidth=2)
    axes.set_yticks(places, [row.title for row in ROWS], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, max(ratios) * 1.3)
    axes.set_xlabel("times better (red: the aim; in brackets Fairlead : Temporal)", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    # Leave out the library's version, so that an update does not change the picture.
    figure.savefig(file, dpi=120, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workflows", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: less than a minute")
    parser.add_argument(
        "--unsynced",
        action="store_true",
        help="run Temporal's server without waiting for the disk; Fairlead still waits",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the ratios")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    rounds: dict[str, list[Figures]] = {kind: [] for kind in SERVERS}
    progress = Console(stderr=True)
    for number in range(size.rounds):
        for kind in SERVERS:
            progress.print(f"round {number + 1} of {size.rounds}: {kind}")
            rounds[kind].append(measure(kind, size, UNSYNCED if options.unsynced and kind == REFERENCE else ()))
    lines = summary(rounds, is_unsynced=options.unsynced)
    if options.json:
        print(json.dumps({"cores": os.cpu_count(), "figures": lines, "rounds": rounds}, indent=2))
    else:
        show(lines, size)
    if options.plot:
        draw(lines, options.plot)
    if options.json:
        return
    aims = [
        aim
        for row, line in zip(ROWS, lines, strict=True)
        for aim in row.aims(line[OURS], line[REFERENCE], is_unsynced=options.unsynced)
    ]
    if missed := show_aims(aims):
        sys.exit("missed by more than noise: " + "; ".join(missed))


if __name__ == "__main__":
    main()
