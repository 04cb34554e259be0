"""The pipeline's jobs at growing sizes: rows per second, memory, and whether the cost of a row stays constant.

Each job runs on Spark at local[2], in a separate process for each size, so that its peak of memory is measured alone.
It first runs twice on a hundredth of a day: the second run is its fixed cost, which is shown, and subtracted before the
cost of a row is compared between sizes. That cost is CPU time of all processes together, which other load disturbs less
than wall time. `pipeline_data` makes the inputs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
from rich.console import Console
from rich.table import Table

from benchmarks import pipeline_payloads
from benchmarks.pipeline_data import KINDS, add_copies, copy_segments, write_base
from benchmarks.pipeline_process import Outcome, Task, measure
from fairlead.pipeline.lake import Lake

FULL, QUICK = (1_000_000, 10_000_000, 50_000_000), (100_000, 1_000_000)
TINY_SHARE = 0.01
RATIO_MAX = 1.15
MEMORY_MB_MAX = 2_000.0
HOSTS = 100
# Jobs that read each kind of records.
READERS = {
    "task": {"ingest task", "traffic", "fairness", "backtest"},
    "history": {"ingest history", "reconcile"},
}
# Jobs that are also run on DuckDB.
COMPARED = ("traffic", "reconcile")
DUCKDB_S_MAX = 3_600.0
WIDTH_MIN = 160
ROWS = {
    "ingest task": "records of tasks in the journal",
    "ingest history": "records of event batches in the journals of three clusters",
    "traffic": "records of tasks",
    "fairness": "records of tasks",
    "backtest": "records of tasks, replayed under the default 162 settings; each copy adds a day",
    "placement": f"partitions, on {HOSTS} hosts, under 4 batch sizes, with 4 changes of the hosts",
    "reconcile": "records of event batches of three clusters",
    "histories": "records of batches with their events: runs of eleven in four batches, in one cluster",
}


@dataclass(frozen=True)
class Line:
    """Measurements of one job at one size; `ratio` is the cost of a row divided by that at the smallest size."""

    job: str
    rows: int
    outcome: Outcome
    ratio: float
    duckdb: dict[str, float] | None
    duckdb_failure: str = ""

    @property
    def cpu_us(self) -> float:
        """CPU microseconds per row, without the fixed cost."""
        return (self.outcome.work.cpu_s - self.outcome.fixed.cpu_s) / self.rows * 1e6

    @property
    def problems(self) -> Iterator[str]:
        """Missed targets."""
        where = f"{self.job} at {self.rows:,} rows"
        if self.ratio > RATIO_MAX:
            yield f"{where}: a row costs {self.ratio:.2f} times as much as at the smallest size"
        for name, peak_mb in asdict(self.outcome.peaks).items():
            if peak_mb > MEMORY_MB_MAX:
                yield f"{where}: {name.removesuffix('_mb')} had {peak_mb:,.0f} MB"
        if self.duckdb is not None and self.duckdb["differences"]:
            yield f"{where}: {self.duckdb['differences']:,.0f} answers are not those of DuckDB"
        if self.duckdb_failure:
            yield f"{where}: not compared, as DuckDB has failed: {self.duckdb_failure}"


def size_of(folder: Path, pattern: str) -> int:
    """Bytes of the files of a folder with all its folders."""
    return sum(file.stat().st_size for file in folder.rglob(pattern))


class Bench:
    """The inputs, which grow from size to size, and the measurements so far."""

    def __init__(self, folder: Path, base_rows: int, jobs: Sequence[str]) -> None:
        self.folder = folder
        self.base_rows = base_rows
        self.rows = 0
        self.lake = Lake(folder / "lake")
        self.payloads = Lake(folder / "payloads-lake")
        self._has_payloads = "histories" in jobs
        self._kinds = [kind for kind in KINDS if any(job in READERS[kind] for job in jobs)]
        self.lines: list[Line] = []
        # Bytes of a row in the journal and in the lake, of each generated input.
        self.row_bytes: dict[str, tuple[float, float]] = {}

    def prepare(self) -> None:
        """Generate a day and a hundredth of a day, and ingest both into lakes."""
        from fairlead.pipeline.job import JobContext  # noqa: PLC0415 - Spark is loaded for those who measure
        from fairlead.pipeline.jobs import ingest  # noqa: PLC0415
        from fairlead.pipeline.session import SessionPlan, open_session  # noqa: PLC0415

        with open_session(SessionPlan(name="bench-prepare", master="local[2]")) as spark:
            if self._has_payloads:
                pipeline_payloads.write_runs(self.folder / "payloads")
                lake, journal = Lake(self.folder / "runs-lake"), self.folder / "payloads"
                ingest.run(JobContext(spark, lake, journal=journal))
                self._weigh("histories with payloads", journal, lake)
            for name, share in (("tiny", TINY_SHARE), ("base", 1.0)) if self._kinds else ():
                write_base(self.folder / name, records=self.base_rows, share=share)
                for kind in self._kinds:
                    lake, journal = Lake(self.folder / f"{name}-lake"), self.folder / name / kind
                    ingest.run(JobContext(spark, lake, journal=journal))
                    self._weigh(kind, journal, lake)

    def _weigh(self, name: str, journal: Path, lake: Lake) -> None:
        """Take the bytes of an ingested row from the sizes of the files."""
        kind = "task" if name == "task" else "history"
        rows = sum(entry.rows for entry in lake.segments(kind))
        self.row_bytes[name] = (size_of(journal, "*.zst") / rows, size_of(lake.table(kind), "*.parquet") / rows)

    def grow(self, rows: int) -> None:
        """Let the inputs grow to `rows` rows."""
        if self._has_payloads:
            size = pipeline_payloads.ROWS
            runs = Lake(self.folder / "runs-lake")
            pipeline_payloads.add_copies(runs, self.payloads, range(self.rows // size, rows // size))
        for kind in self._kinds:
            copies = range(self.rows // self.base_rows, rows // self.base_rows)
            copy_segments(self.folder / "base" / kind, self.folder / "journal" / kind, copies)
            add_copies(Lake(self.folder / "base-lake"), self.lake, kind, copies)
        self.rows = rows

    def run(self, name: str, rows: int) -> Line:
        """Measure a job at the inputs' current size."""
        outcome = measure(self._task(name, rows))
        shutil.rmtree(self.folder / "ingested", ignore_errors=True)
        asked, failure = self._ask_duckdb(name)
        line = Line(name, self._rows(name, outcome), outcome, 1.0, asked, failure)
        first = next((other for other in self.lines if other.job == name), line)
        line = replace(line, ratio=line.cpu_us / first.cpu_us)
        self.lines.append(line)
        return line

    def _task(self, name: str, rows: int) -> Task:
        if name.startswith("ingest "):
            kind, ingested = name.removeprefix("ingest "), self.folder / "ingested"
            lakes = ({"lake": str(ingested / "all")}, {"lake": str(ingested / "tiny")})
            return Task("ingest", str(self.folder / "journal" / kind), str(self.folder / "tiny" / kind), *lakes)
        options: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        if name == "placement":
            tiny = round(self.base_rows * TINY_SHARE)
            options = ({"partitions": rows, "hosts": HOSTS}, {"partitions": tiny, "hosts": HOSTS})
        if name == "histories":
            return Task(name, str(self.payloads.root), str(self.folder / "runs-lake"), *options)
        return Task(name, str(self.lake.root), str(self.folder / "tiny-lake"), *options)

    def _rows(self, name: str, outcome: Outcome) -> int:
        if name == "placement":
            return int(outcome.said["findings"]["batch_sizes"][0]["partitions"])
        if name.startswith("ingest "):
            return sum(outcome.said["rows"].values())
        kind = "history" if name in {"reconcile", "histories"} else "task"
        lake = self.payloads if name == "histories" else self.lake
        with duckdb.connect() as database:
            files = f"{lake.table(kind)}/*/*/*/*.parquet"
            found = database.execute("SELECT sum(num_rows) FROM parquet_file_metadata(?)", [files]).fetchone()
        return int(found[0]) if found else 0

    def _ask_duckdb(self, name: str) -> tuple[dict[str, float] | None, str]:
        """Return DuckDB's measurements, or the reason for its failure: Spark's must not be lost because of it."""
        if name not in COMPARED:
            return None, ""
        command = [sys.executable, "-m", "benchmarks.pipeline_duckdb", name, str(self.lake.root)]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DUCKDB_S_MAX)  # noqa: S603 - our own module
        except subprocess.TimeoutExpired as late:
            return None, str(late)
        if done.returncode:
            return None, next((line for line in done.stderr.splitlines() if "Error: " in line), done.stderr)
        return json.loads(done.stdout), ""


def show(lines: list[Line]) -> None:
    """Print a table and the meaning of its columns."""
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    table = Table(title=f"local[2], {os.cpu_count()} cores, load average {load}")
    for heading in (
        "job", "rows", "start s", "fixed s", "s", "rows/s", "CPU s", "CPU µs per row", "times the first",
        "Java MB", "driver MB", "workers MB", "DuckDB s", "CPU s",
    ):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "job" else "right")
    for line in lines:
        outcome, peaks, asked = line.outcome, line.outcome.peaks, line.duckdb
        table.add_row(
            line.job,
            f"{line.rows:,}",
            f"{outcome.start.wall_s + outcome.first.wall_s:.1f}",
            f"{outcome.fixed.wall_s:.1f}",
            f"{outcome.work.wall_s:,.1f}",
            f"{line.rows / outcome.work.wall_s:,.0f}",
            f"{outcome.work.cpu_s:,.1f}",
            f"{line.cpu_us:.2f}",
            f"{line.ratio:.2f}",
            *(f"{peak_mb:,.0f}" for peak_mb in (peaks.java_mb, peaks.driver_mb, peaks.workers_mb)),
            *((f"{asked['wall_s']:.1f}", f"{asked['cpu_s']:.1f}") if asked else ("", "")),
        )
    # The output may go to a file, which has no width.
    console = Console(width=max(WIDTH_MIN, Console().width))
    console.print(table)
    console.print("start: first run of the job, on a hundredth of a day; fixed: second run on the same input.")
    console.print("CPU µs per row, and its multiple of that at the first size: both without the fixed cost.")
    for job in dict.fromkeys(line.job for line in lines):
        console.print(f"  rows of {job}: {ROWS[job]}")
    differences = sum(line.duckdb["differences"] for line in lines if line.duckdb)
    if any(line.duckdb for line in lines):
        console.print(f"  results of DuckDB that differ: {differences:,.0f}")


def reported(line: Line) -> str:
    """Progress line for a new measurement."""
    outcome, peaks, asked = line.outcome, line.outcome.peaks, line.duckdb
    text = (
        f"{line.job}, {line.rows:,} rows: {outcome.work.wall_s:,.1f} s, {outcome.work.cpu_s:,.1f} s of CPU, of them "
        f"{outcome.fixed.cpu_s:.1f} fixed: {line.cpu_us:.2f} µs per row, {line.ratio:.2f} times the first; peaks of "
        f"{peaks.java_mb:,.0f}, {peaks.driver_mb:,.0f} and {peaks.workers_mb:,.0f} MB"
    )
    return text if asked is None else f"{text}; DuckDB {asked['wall_s']:.1f} s, {asked['cpu_s']:.1f} s of CPU"


def main() -> int:
    there = [name for name in ROWS if find_spec(f"fairlead.pipeline.jobs.{name.split()[0]}")]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 and 1 million rows: some minutes")
    parser.add_argument("--jobs", nargs="+", choices=there, default=there, metavar="JOB", help="only these")
    parser.add_argument("--sizes", type=int, nargs="+", default=FULL, metavar="N", help="rows, from few to many")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args()
    sizes = QUICK if options.quick else options.sizes
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        bench = Bench(Path(folder), sizes[0], options.jobs)
        progress.print(f"making {sizes[0]:,} records of each kind in {folder}")
        bench.prepare()
        for size in sizes:
            progress.print(f"making them {size:,}")
            bench.grow(size)
            for job in options.jobs:
                line = bench.run(job, size)
                progress.print(reported(line), soft_wrap=True)
    if options.json:
        print(json.dumps([asdict(line) | {"cpu_us": line.cpu_us} for line in bench.lines], indent=2))
    else:
        show(bench.lines)
    for name, (journal, lake) in bench.row_bytes.items():
        progress.print(f"bytes of a row, {name}: {journal:.1f} in the journal, {lake:.1f} in the lake")
    problems = [problem for line in bench.lines for problem in line.problems]
    for problem in problems:
        progress.print(problem)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
