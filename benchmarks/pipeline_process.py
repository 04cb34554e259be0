"""Runs one job in its own process, and measures the resources of its processes: Java, the driver, and the workers.

Started as a program, this module is that process: it runs the job twice on the smallest input, so that everything is
loaded and most code is compiled, and then once on the measured input. The second run gives the job's fixed cost.
"""

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SAMPLE_S = 0.1
JOB_S_MAX = 7_200.0
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Task:
    """A job, the folder of its input, and the folder of the smallest input. `options` are those of the command line."""

    job: str
    source: str
    tiny: str
    options: dict[str, Any] = field(default_factory=dict)
    tiny_options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of wall time, and of CPU time of all processes together."""

    wall_s: float
    cpu_s: float

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)


@dataclass(slots=True)
class Peaks:
    """Peak memory of each kind of process in MB; the workers together."""

    java_mb: float = 0.0
    driver_mb: float = 0.0
    workers_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of a job: start of Spark, fixed cost, cost of the work, peaks, and the job's output."""

    start: Cost
    first: Cost
    fixed: Cost
    work: Cost
    peaks: Peaks
    said: dict[str, Any]


def measure(task: Task) -> Outcome:
    """Run a task in its own process."""
    command = [sys.executable, "-m", "benchmarks.pipeline_process", json.dumps(asdict(task))]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=JOB_S_MAX)  # noqa: S603 - our own module
    if done.returncode:
        raise RuntimeError(f"{task} ended with {done.returncode}")
    plain = json.loads(done.stdout.splitlines()[-1])
    start, first, fixed, work = (Cost(*plain[name]) for name in ("start", "first", "fixed", "work"))
    return Outcome(start, first, fixed, work, Peaks(**plain["peaks"]), plain["said"])


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def family(pid: int) -> list[int]:
    """Ids of a process and its descendants."""
    found = [pid]
    for member in found:
        try:
            for children in Path(f"/proc/{member}/task").glob("*/children"):
                found += [int(child) for child in children.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            # The process, or one of its threads, has ended meanwhile.
            continue
    return found


class Watch:
    """Samples CPU time and peaks of memory of this process and its descendants, ended ones included.

    Spark's daemon does not wait for its workers, so the system does not add their CPU time to the daemon's: for an
    ended worker, the last sample counts. Other processes are awaited by their parents, whose CPU time then includes
    theirs.
    """

    def __init__(self) -> None:
        self.peaks = Peaks()
        self._worker_ticks: dict[int, int] = {}
        self._lock = threading.Lock()

    def look_often(self, ended: threading.Event) -> None:
        """Sample until `ended` is set."""
        while not ended.wait(SAMPLE_S):
            self.look()

    def look(self) -> float:
        """Take a sample; return the seconds of CPU time until now."""
        with self._lock:
            peaks = self.peaks
            other_ticks = 0
            workers_bytes = 0
            for member in family(os.getpid()):
                folder = Path(f"/proc/{member}")
                try:
                    ticks = sum(map(int, (folder / "stat").read_text().rpartition(")")[2].split()[11:15]))
                    command = (folder / "cmdline").read_bytes()
                    if b"pyspark.daemon" in command:
                        self._worker_ticks[member] = ticks
                        workers_bytes += int((folder / "statm").read_text().split()[1]) * _PAGE_BYTES
                        continue
                    if member == os.getpid():
                        peaks.driver_mb = max(peaks.driver_mb, _peak_mb(member))
                    elif b"SparkSubmit" in command:
                        peaks.java_mb = max(peaks.java_mb, _peak_mb(member))
                except (FileNotFoundError, ProcessLookupError):
                    continue
                # An ending worker has no command line any more: keep the kind that it had.
                if member not in self._worker_ticks:
                    other_ticks += ticks
            peaks.workers_mb = max(peaks.workers_mb, workers_bytes / 1e6)
            return (other_ticks + sum(self._worker_ticks.values())) / _TICKS_A_SECOND


def _run(task: Task) -> dict[str, Any]:
    begun = Cost(time.monotonic(), 0.0)
    from fairlead.pipeline.job import JobContext  # noqa: PLC0415 - the time that it takes belongs to the start
    from fairlead.pipeline.lake import Lake  # noqa: PLC0415
    from fairlead.pipeline.session import SessionPlan, open_session  # noqa: PLC0415

    watch = Watch()
    ended = threading.Event()
    threading.Thread(target=watch.look_often, args=(ended,), daemon=True).start()

    def now() -> Cost:
        return Cost(time.monotonic(), watch.look())

    job = importlib.import_module(f"fairlead.pipeline.jobs.{task.job}")
    with open_session(SessionPlan(name=f"bench-{task.job}", master="local[2]")) as spark:

        def once(source: str, options: dict[str, Any], since_us: int | None = None) -> tuple[Cost, dict[str, Any]]:
            began = now()
            lake, journal = (source, None) if task.job != "ingest" else (options["lake"], Path(source))
            context = JobContext(spark, Lake(Path(lake)), journal=journal, options=options, since_us=since_us)
            said = job.run(context)
            return now() - began, {"rows": said.rows, "findings": said.findings}

        started = now() - begun
        first, _ = once(task.tiny, task.tiny_options)
        again = {name: f"{value}-again" if name == "lake" else value for name, value in task.tiny_options.items()}
        # Without this bound, the job would find nothing new, and compute nothing.
        fixed, _ = once(task.tiny, again, since_us=None if task.job == "ingest" else 1)
        work, said = once(task.source, task.options)
        ended.set()
    costs = {"start": started, "first": first, "fixed": fixed, "work": work}
    plain = {name: (cost.wall_s, cost.cpu_s) for name, cost in costs.items()}
    return plain | {"said": said, "peaks": asdict(watch.peaks)}


if __name__ == "__main__":
    print(json.dumps(_run(Task(**json.loads(sys.argv[1]))), default=str))
