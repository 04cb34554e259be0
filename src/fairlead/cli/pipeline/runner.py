"""Runs jobs from the command line: first the checks, then Spark, then the results and the exit code."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession

from fairlead.cli.pipeline.progress import following, progress_display
from fairlead.cli.pipeline.results import print_results
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.jobs import reconcile
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.namespaces import known_names, name_findings
from fairlead.pipeline.session import SessionPlan, open_session, plan_for
from fairlead.pipeline.sources.segments import find_sealed, find_segments
from fairlead.report import Output, printable

# Maximum input bytes of a small session: up to this size, Spark's optimizing start costs more than it saves.
SMALL_BYTES_MAX = 64 << 20
# Exit code if the job succeeded, but its findings need attention.
EXIT_ALARM = 3
# Jobs that only read tables, which another job must have written.
READERS = frozenset({"traffic", "fairness", "backtest", "reconcile", "histories", "report"})

# Jobs that run no Python on Spark's workers, so that the workers need neither this package nor its dependencies.
WITHOUT_PYTHON = frozenset({"traffic", "fairness", "report"})

Run = Callable[[JobContext], Summary]


@dataclass(frozen=True, slots=True)
class Request:
    """The parameters that all jobs share."""

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
    """Run jobs, print their results, and set the exit code."""
    summaries: list[Summary] = []
    try:
        summaries.extend(perform(jobs, options, request))
    except Exception:
        # Print these results: the tables and findings of the completed jobs exist.
        if summaries:
            print_results(summaries, request.output, is_one=is_one)
        raise
    print_results(summaries, request.output, is_one=is_one)
    alarms = [(summary.job, summary.alarm) for summary in summaries if summary.alarm]
    for job, alarm in alarms:
        click.echo(f"fairlead: {job}: {printable(alarm)}", err=True)
    if alarms:
        sys.exit(EXIT_ALARM)


def perform(jobs: Mapping[str, Run], options: Mapping[str, Mapping[str, Any]], request: Request) -> Iterator[Summary]:
    """Run jobs one after the other in one session; yield each result when it is done."""
    plan, lake = prepare(jobs, options, request)
    unchecked = request.namespace
    with progress_display("starting Spark") as display, open_session(plan) as spark, following(display, spark):
        for name, run in jobs.items():
            display.say(name)
            if unchecked is not None and name != "ingest":
                lake.check_namespace(spark, unchecked)
                unchecked = None

            def say(line: str, name: str = name) -> None:
                display.say(f"{name}: {line}")

            yield run_job(run, options.get(name, {}), request, spark=spark, lake=lake, progress=say)


def prepare(
    jobs: Mapping[str, Run], options: Mapping[str, Mapping[str, Any]], request: Request
) -> tuple[SessionPlan, Lake]:
    """Check everything possible before starting Spark, which takes seconds; return the plan of the session."""
    if "reconcile" in jobs:
        reconcile.check_options(options.get("reconcile", {}))
    plan = plan_for(
        request.master,
        name="fairlead pipeline",
        is_small=_is_small(request),
        has_python=not jobs.keys() <= WITHOUT_PYTHON,
    )
    lake = Lake(request.lake)
    if request.journal is not None:
        (find_sealed if "ingest" in jobs else find_segments)(request.journal)
    if jobs.keys() <= READERS:
        lake.check_there()
    lake.check_writable()
    return plan, lake


def run_job(
    run: Run,
    options: Mapping[str, Any],
    request: Request,
    *,
    spark: SparkSession,
    lake: Lake,
    progress: Callable[[str], None],
) -> Summary:
    """Run one job; its findings have names of namespaces beside their ids."""
    context = JobContext(
        spark=spark,
        lake=lake,
        # A Spark Connect server has another working directory.
        journal=None if request.journal is None else request.journal.absolute(),
        since_us=request.since_us,
        until_us=request.until_us,
        namespace=request.namespace,
        options=options,
        progress=progress,
    )
    summary = run(context)
    return replace(summary, findings=name_findings(summary.findings, known_names(lake)))


@contextmanager
def until_stopped(
    signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True until the process gets one of these signals."""
    is_reported = threading.Event()
    before = {number: signal.signal(number, lambda *_: is_reported.set()) for number in signals}
    try:
        yield lambda: not is_reported.is_set()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_small(request: Request) -> bool:
    size_bytes = 0
    for file in request.lake.glob("*/batch=*/*/*/*.parquet") if request.lake.is_dir() else ():
        # A compaction may replace files meanwhile.
        with suppress(FileNotFoundError):
            size_bytes += file.stat().st_size
    if request.journal is not None:
        size_bytes += sum(segment.bytes for segment in find_segments(request.journal))
    return size_bytes <= SMALL_BYTES_MAX
