"""All jobs on a standalone cluster of two workers with a core each, beside `local[2]` on the same data.

Each engine runs the jobs of `fairlead pipeline all` once in a process of its own, over the journals of `fairlead
pipeline synth`. The figures are wall seconds, and CPU seconds of all processes: driver, master, workers, executors and
their Python workers. The processes of the cluster start before, and their start is not measured. Both engines must
write the same number of rows to each table.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.pipeline_process import Cost, Watch
from fairlead.pipeline.synth.journals import write_journals
from tests.pipeline.servers import cluster

SCALE = 1.0
RATIO_MAX = 1.5
LOCAL = "local[2]"


@dataclass(slots=True)
class Measured:
    """The cost of an engine: its start with the first job's imports, each job, its end, and the rows of each table."""

    parts: dict[str, Cost] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> Cost:
        """The cost of all parts."""
        return Cost(sum(part.wall_s for part in self.parts.values()), sum(part.cpu_s for part in self.parts.values()))


def measure(master: str, journal: Path, lake: Path, watch: Watch) -> Measured:
    """Run all jobs in a child process."""
    measured = Measured()
    last = Cost(time.monotonic(), watch.look())
    command = [sys.executable, "-m", "benchmarks.pipeline_cluster", "--child", master, str(journal), str(lake)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603 - our own module
        for line in child.stdout or ():
            said = json.loads(line)
            now = Cost(time.monotonic(), watch.look())
            measured.parts[said["part"]] = now - last
            measured.rows |= said["rows"]
            last = now
    if child.returncode:
        raise RuntimeError(f"{master} ended with {child.returncode}")
    measured.parts["end"] = Cost(time.monotonic(), watch.look()) - last
    return measured


def run_jobs(master: str, journal: Path, lake: Path) -> None:
    """Run all jobs, and print a line after each."""
    from fairlead.cli.pipeline.command import jobs_with_options  # noqa: PLC0415 - the time that it takes belongs to the start
    from fairlead.cli.pipeline.runner import Request, prepare, run_job  # noqa: PLC0415
    from fairlead.pipeline.session import open_session  # noqa: PLC0415
    from fairlead.report import Output  # noqa: PLC0415

    request = Request(lake, journal, master, None, None, None, Output.JSON)
    jobs, options = jobs_with_options({})
    plan, opened = prepare(jobs, options, request)
    with open_session(plan) as spark:
        print(json.dumps({"part": "start", "rows": {}}), flush=True)
        for name, run in jobs.items():
            done = run_job(run, options[name], request, spark=spark, lake=opened, progress=lambda _: None)
            print(json.dumps({"part": name, "rows": done.rows}), flush=True)


def show(local: Measured, other: Measured) -> float:
    """Print the costs; return the ratio of the wall times."""
    print(f"{'':12}{LOCAL:>20}{'cluster':>20}")
    print(f"{'':12}{'wall s':>10}{'CPU s':>10}{'wall s':>10}{'CPU s':>10}")
    parts = [(part, local.parts[part], other.parts[part]) for part in local.parts]
    for part, here, there in [*parts, ("together", local.total, other.total)]:
        print(f"{part:12}{here.wall_s:10.1f}{here.cpu_s:10.1f}{there.wall_s:10.1f}{there.cpu_s:10.1f}")
    ratio = other.total.wall_s / local.total.wall_s
    load = os.getloadavg()[0]
    print(
        f"the cluster takes {ratio:.2f} times the wall time, and {other.total.cpu_s / local.total.cpu_s:.2f} times the"
    )
    print(f"CPU; aim: at most {RATIO_MAX} times the wall time; load average {load:.1f}")
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_cluster", description=__doc__)
    parser.add_argument("--scale", type=float, default=SCALE, help="1 is a day with 300,000 records of tasks")
    parser.add_argument("--only", choices=("local", "cluster"), help="only this engine")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        master, journal, lake = options.child
        run_jobs(master, Path(journal), Path(lake))
        return 0
    watch = Watch()
    ended = threading.Event()
    threading.Thread(target=watch.look_often, args=(ended,), daemon=True).start()
    found: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        write_journals(folder / "journal", scale=options.scale, seed=0, notify=lambda *_: None)
        if options.only != "cluster":
            found["local"] = measure(LOCAL, folder / "journal", folder / "local-lake", watch)
        if options.only != "local":
            master = stack.enter_context(cluster(folder))
            found["cluster"] = measure(master, folder / "journal", folder / "cluster-lake", watch)
    ended.set()
    if len(found) == 1:
        [one] = found.values()
        return int(show(one, one) > RATIO_MAX)
    if found["local"].rows != found["cluster"].rows:
        print(f"different rows: {found['local'].rows} and {found['cluster'].rows}")
        return 1
    return int(show(found["local"], found["cluster"]) > RATIO_MAX)


if __name__ == "__main__":
    sys.exit(main())
