"""Cost of an hourly run: all jobs over a lake, and again after one percent more rows.

The jobs run in one warm Spark session, first over everything, then without new rows, then after the new rows. The same
is done before on a lake of a hundredth: its costs are those that don't depend on the number of rows, and are
subtracted. The costs are CPU seconds of all processes. `start-up` is a whole first run of `fairlead pipeline all` over
a small journal in a process of its own.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import pipeline_payloads
from benchmarks.pipeline_data import DAY_S, KINDS, add_copies, write_base
from benchmarks.pipeline_process import Watch
from fairlead.pipeline.lake import Lake

ROWS = 1_000_000
DAYS = 10
SHARE = 0.01
SHARE_MAX = 0.05
STARTUP_ROWS = 48_000
STARTUP_CPU_S_MAX = 62.0
# The jobs of `all`, with the lake that each reads: `histories` needs payloads.
JOBS = {
    "traffic": "lake",
    "fairness": "lake",
    "backtest": "lake",
    "placement": "lake",
    "reconcile": "lake",
    "histories": "payloads",
    "report": "lake",
}
RUN_S_MAX = 7_200.0


@dataclass(frozen=True)
class World:
    """The lakes of one size in a folder; `grow` adds one percent more rows."""

    folder: Path
    rows: int

    def lake(self, name: str) -> Lake:
        return Lake(self.folder / name)

    def make(self, spark: Any) -> None:
        """Fill the lakes: days of task records, runs of three clusters, and runs with payloads."""
        day = max(100, self.rows // DAYS)
        for name, share in (("day", 1.0), ("more", SHARE * DAYS)):
            write_base(self.folder / name, records=day, share=share)
            for kind in KINDS:
                self._ingest(spark, self.folder / name / kind, f"{name}-lake")
        for kind in KINDS:
            add_copies(self.lake("day-lake"), self.lake("lake"), kind, range(DAYS))
        runs = max(25, self.rows // pipeline_payloads.BATCHES_A_RUN)
        base = min(runs, pipeline_payloads.RUNS)
        for name, its, later_s in (("runs", base, 0), ("later", max(1, base // 10), DAY_S)):
            pipeline_payloads.write_runs(self.folder / name, runs=range(its), later_s=later_s)
            self._ingest(spark, self.folder / name, f"{name}-lake")
        pipeline_payloads.add_copies(self.lake("runs-lake"), self.lake("payloads"), range(max(1, runs // base)))

    def grow(self) -> None:
        """Add one percent more rows, of a later time."""
        for kind in KINDS:
            add_copies(self.lake("more-lake"), self.lake("lake"), kind, range(DAYS, DAYS + 1))
        runs = max(1, self.rows // pipeline_payloads.BATCHES_A_RUN // 100)
        base = max(1, min(self.rows // pipeline_payloads.BATCHES_A_RUN, pipeline_payloads.RUNS) // 10)
        copies = range(1_000, 1_000 + max(1, runs // base))
        pipeline_payloads.add_copies(self.lake("later-lake"), self.lake("payloads"), copies)

    def _ingest(self, spark: Any, journal: Path, lake: str) -> None:
        from fairlead.pipeline.job import JobContext  # noqa: PLC0415 - loads Spark
        from fairlead.pipeline.jobs import ingest  # noqa: PLC0415

        ingest.run(JobContext(spark, self.lake(lake), journal=journal))


def measure(folder: Path, rows: int, jobs: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the CPU seconds of each job: `tiny` and `full` runs, then `same` without and `more` with new rows."""
    from fairlead.pipeline.job import JobContext  # noqa: PLC0415 - loads Spark
    from fairlead.pipeline.session import SessionPlan, open_session  # noqa: PLC0415

    watch = Watch()
    ended = threading.Event()
    threading.Thread(target=watch.look_often, args=(ended,), daemon=True).start()
    costs: dict[str, dict[str, float]] = {}
    with open_session(SessionPlan(name="bench-increment", master="local[2]")) as spark:

        def run(name: str, world: World) -> None:
            for job in jobs:
                lake = JOBS[job]
                began = watch.look()
                importlib.import_module(f"fairlead.pipeline.jobs.{job}").run(JobContext(spark, world.lake(lake)))
                costs.setdefault(name, {})[job] = watch.look() - began
                print(f"{name}: {job} {costs[name][job]:.1f} s", file=sys.stderr)

        tiny, tinier, full = (World(folder / name, size) for name, size in (
            ("tiny", rows // 100), ("tinier", rows // 100), ("full", rows)
        ))  # fmt: skip
        for world in (tinier, tiny, full):
            world.folder.mkdir()
            world.make(spark)
        # The first world loads and compiles everything.
        for name, world in (("warm", tinier), ("tiny", tiny), ("full", full)):
            run(name, world)
            run(f"{name} same", world)
            world.grow()
            run(f"{name} more", world)
        ended.set()
    return costs


def startup(folder: Path) -> float:
    """Return the CPU seconds of `fairlead pipeline all` over a small journal, of all its processes."""
    write_base(folder / "small", records=STARTUP_ROWS // 2)
    journal = folder / "small-journal"
    for kind in KINDS:
        for segment in (folder / "small" / kind).glob("*/*"):
            (journal / segment.parent.name).mkdir(parents=True, exist_ok=True)
            os.link(segment, journal / segment.parent.name / segment.name)
    command = ["pipeline", "all", "--journal", str(journal), "--lake", str(folder / "small-lake"), "-o", "json"]
    watch = Watch()
    ended = threading.Event()
    threading.Thread(target=watch.look_often, args=(ended,), daemon=True).start()
    before = watch.look()
    subprocess.run([sys.executable, "-m", "fairlead", *command], check=False, capture_output=True, timeout=RUN_S_MAX)  # noqa: S603 - our own program
    ended.set()
    return watch.look() - before


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_increment", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help="rows of each kind")
    parser.add_argument("--jobs", nargs="*", choices=JOBS, default=list(JOBS), metavar="JOB", help="only these")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        started_s = startup(Path(folder))
        print(f"start-up: {started_s:.1f} s", file=sys.stderr)
        costs = measure(Path(folder), options.rows, options.jobs)
    if options.json:
        print(json.dumps({"startup": started_s, **costs}))
        return 0
    print(f"{options.rows:,} rows of each kind; CPU seconds; load average {os.getloadavg()[0]:.0f}")
    print(f"{'':12}{'all':>10}{'unchanged':>10}{'1% more':>10}{'share':>8}")
    totals = [0.0, 0.0]
    for job in options.jobs:
        full, more = (max(0.0, costs[f"full{part}"][job] - costs[f"tiny{part}"][job]) for part in ("", " more"))
        totals = [totals[0] + full, totals[1] + more]
        same = costs["full same"][job]
        part = f"{more / full:8.1%}" if full else ""
        print(f"{job:12}{costs['full'][job]:10.1f}{same:10.1f}{costs['full more'][job]:10.1f}{part}")
    share = totals[1] / totals[0]
    sums = [sum(costs[name].values()) for name in ("full", "full same", "full more")]
    print(f"{'together':12}{sums[0]:10.1f}{sums[1]:10.1f}{sums[2]:10.1f}{share:8.1%}")
    print(f"1% more rows cost {share:.1%} of a full run, both without the costs of a lake of a hundredth")
    print(f"aim: at most {SHARE_MAX:.0%}")
    print(f"start-up: `all` over {STARTUP_ROWS:,} rows took {started_s:.0f} s of CPU")
    print(f"aim: at most {STARTUP_CPU_S_MAX:.0f} s")
    return int(share > SHARE_MAX or started_s > STARTUP_CPU_S_MAX)


if __name__ == "__main__":
    sys.exit(main())
