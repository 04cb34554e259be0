"""How a job is run from the command line: checks first, then Spark, then the answer and the exit code."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fairlead.cli.pipeline.answer import answer
from fairlead.cli.pipeline.progress import following, telling
from fairlead.cli.report import Output
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.jobs import reconcile
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.session import open_session, plan_for
from fairlead.pipeline.sources.segments import find_sealed, find_segments

# Up to this much, Spark spends more time on making itself fast than on the work.
SMALL_BYTES_MAX = 64 << 20
# The work is done, and somebody must look at what was found.
EXIT_ALARM = 3
# What these work on was brought in by others.
READERS = frozenset({"traffic", "fairness", "backtest", "reconcile", "histories", "report"})

Run = Callable[[JobContext], Summary]


@dataclass(frozen=True, slots=True)
class Request:
    """What all jobs are asked with."""

    lake: Path
    journal: Path | None
    master: str | None
    since_us: int | None
    until_us: int | None
    namespace: str | None
    output: Output


def run_jobs(
    jobs: Mapping[str, Run], options: Mapping[str, Mapping[str, Any]], request: Request, *, is_one: bool
) -> None:
    """Run jobs, print what they answer, and end with the right exit code."""
    summaries: list[Summary] = []
    try:
        summaries.extend(perform(jobs, options, request))
    except Exception:
        # What the jobs before it wrote and found is there.
        if summaries:
            answer(summaries, request.output, is_one=is_one)
        raise
    answer(summaries, request.output, is_one=is_one)
    alarms = [summary for summary in summaries if summary.alarm]
    for summary in alarms:
        click.echo(f"fairlead: {summary.job}: {summary.alarm}", err=True)
    if alarms:
        sys.exit(EXIT_ALARM)


def perform(jobs: Mapping[str, Run], options: Mapping[str, Mapping[str, Any]], request: Request) -> Iterator[Summary]:
    """Run jobs one after the other in one session, and answer as each is done."""
    # What can be wrong is found out before Spark is started, which takes seconds.
    if "reconcile" in jobs:
        reconcile.check_options(options.get("reconcile", {}))
    plan = plan_for(request.master, name="fairlead pipeline", is_small=_is_small(request))
    lake = Lake(request.lake)
    if request.journal is not None:
        (find_sealed if "ingest" in jobs else find_segments)(request.journal)
    if jobs.keys() <= READERS:
        lake.check_there()
    lake.check_writable()
    unchecked = request.namespace
    with telling("starting Spark") as told, open_session(plan) as spark, following(told, spark):
        for name, run in jobs.items():
            told.say(name)
            if unchecked is not None and name != "ingest":
                lake.check_namespace(spark, unchecked)
                unchecked = None

            def say(line: str, name: str = name) -> None:
                told.say(f"{name}: {line}")

            context = JobContext(
                spark=spark,
                lake=lake,
                journal=request.journal,
                since_us=request.since_us,
                until_us=request.until_us,
                namespace=request.namespace,
                options=options.get(name, {}),
                progress=say,
            )
            yield run(context)


@contextmanager
def until_told_to_end(
    signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
) -> Iterator[Callable[[], bool]]:
    """A question that is answered with yes until the process is told to end."""
    is_told = threading.Event()
    before = {number: signal.signal(number, lambda *_: is_told.set()) for number in signals}
    try:
        yield lambda: not is_told.is_set()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_small(request: Request) -> bool:
    files = [*request.lake.glob("*/batch=*/*/*/*.parquet")] if request.lake.is_dir() else []
    size_bytes = sum(file.stat().st_size for file in files)
    if request.journal is not None:
        size_bytes += sum(segment.bytes for segment in find_segments(request.journal))
    return size_bytes <= SMALL_BYTES_MAX
