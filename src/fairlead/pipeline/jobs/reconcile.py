"""Whether the clusters hold the same histories, and what must be sent to whom where they do not."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from fairlead.core.errors import FixRequest
from fairlead.core.versions import ClusterVersions
from fairlead.pipeline.arrow import arrow_limits
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.stages import reconcile
from fairlead.replication.plans import PLAN_SCHEMA

GRACE_S = 600.0
PLAN_FILE = "repair_plan.json"

OPTIONS = [
    click.option(
        "--grace",
        type=click.FloatRange(min=0),
        default=GRACE_S,
        show_default=True,
        metavar="SECONDS",
        help="Events younger than this may still be on their way: a cluster without them is late, not wrong.",
    ),
    click.option(
        "--retention",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Runs that closed longer ago than this may have been removed from any cluster.",
    ),
    click.option(
        "--expect",
        multiple=True,
        metavar="CLUSTER",
        help="A cluster that should have every run; if none is named, those that have anything of the run's namespace.",
    ),
    click.option(
        "--initial-version",
        multiple=True,
        metavar="CLUSTER=VERSION",
        help="A cluster's initial version; with --increment it tells who writes at a version, and whose word counts.",
    ),
    click.option("--increment", type=click.IntRange(min=1), help="The increment of versions that the clusters share."),
    click.option(
        "--plan",
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"Where to write the plan of repair; else {PLAN_FILE} in the lake.",
    ),
]


class WrongVersions(FixRequest):
    """The clusters' initial versions were not given as they should be."""


class NoPlaceForPlan(FixRequest):
    """The plan can't be written where it should be."""


def run(context: JobContext) -> Summary:
    """Judge every run; write `verdicts`, `pairs` and `repair_plan`, and the plan as a file."""
    plan = Path(context.options.get("plan") or context.lake.root / PLAN_FILE)
    if not plan.parent.is_dir() or plan.is_dir():
        raise NoPlaceForPlan(f"--plan {plan}: give a file in a folder that is there")
    # Not from `since` on: a run is judged by all of its events. Workflow ids without any since then are left out below.
    history = context.lake.read(context.spark, "history", until=context.until_us, namespace=context.namespace)
    measure = _measure(context, history)
    expected = _expected(context, history)
    runs = reconcile.gather_runs(history, since_us=context.since_us)
    with arrow_limits(context.spark):
        context.progress("comparing the histories of all clusters")
        # Not in memory: it is read five times, and grows with the number of runs.
        judged = reconcile.judge(runs, expected, measure).persist(StorageLevel.DISK_ONLY)
        try:
            return _write(context, judged, measure, plan)
        finally:
            judged.unpersist()


def _write(context: JobContext, judged: DataFrame, measure: reconcile.Measure, plan: Path) -> Summary:
    lake, run_id = context.lake, f"reconcile-{measure.now_us}"
    found = reconcile.find_across_runs(judged, measure)
    rows = {"verdicts": lake.write("verdicts", reconcile.verdicts(judged, found), run_id)}
    context.progress("counting what differs, and planning its repair")
    rows["pairs"] = lake.write("pairs", reconcile.pairs(judged), run_id)
    rows["repair_plan"] = lake.write("repair_plan", reconcile.repair_plan(judged), run_id)
    verdicts = lake.read_derived(context.spark, "verdicts")
    steps = lake.read_derived(context.spark, "repair_plan")
    by_hand_count = _write_plan(plan, steps, reconcile.by_hand(verdicts), measure)
    counts = {row["verdict"]: row["count"] for row in verdicts.groupBy("verdict").count().collect()}
    kinds = verdicts.select(F.explode("kinds").alias("kind")).groupBy("kind").count().orderBy("kind").collect()
    wrong = counts.get("wrong", 0)
    findings: dict[str, Any] = {
        "verdicts": dict(sorted(counts.items())),
        "kinds": {row["kind"]: row["count"] for row in kinds},
        "sends": rows["repair_plan"],
        "by_hand": by_hand_count,
        "plan": str(plan),
        "now_us": measure.now_us,
        "grace_s": measure.grace_us / 1e6,
    }
    alarm = f"{wrong:,} of {rows['verdicts']:,} runs are wrong: {plan} says what to send to whom" if wrong else None
    return Summary("reconcile", rows, findings, alarm)


def _measure(context: JobContext, history: DataFrame) -> reconcile.Measure:
    """Without an end, the moment of judgement is that of the last batch: what was journaled later is not here."""
    options = context.options
    increment, initial_versions = _versions(options.get("increment"), options.get("initial_version") or ())
    latest_us = context.until_us
    if latest_us is None:
        latest_us = history.agg(F.max("time_us")).head()[0]  # type: ignore[index] # There always is one row.
    retention_s = options.get("retention")
    return reconcile.Measure(
        now_us=latest_us or 0,
        grace_us=round(float(options.get("grace", GRACE_S)) * 1e6),
        retention_us=None if retention_s is None else round(float(retention_s) * 1e6),
        increment=increment,
        initial_versions=initial_versions,
    )


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what is wrong with the options, before anything is begun."""
    _versions(options.get("increment"), tuple(options.get("initial_version") or ()))


def _versions(increment: int | None, given: tuple[str, ...]) -> tuple[int | None, dict[str, int]]:
    if increment is None and not given:
        return None, {}
    if increment is None or not given:
        raise WrongVersions("--increment and --initial-version only tell something together: give both, or neither")
    versions = {}
    for text in given:
        cluster, separator, version = text.rpartition("=")
        if not separator or not version.isdecimal():
            raise WrongVersions(f"--initial-version {text!r}: give CLUSTER=VERSION, like east=1")
        versions[cluster] = int(version)
    # Refuses what could not tell the clusters apart.
    ClusterVersions(increment, versions)
    return increment, versions


def _expected(context: JobContext, history: DataFrame) -> DataFrame:
    named = sorted(set(context.options.get("expect") or ()))
    if not named:
        return reconcile.expected_clusters(history)
    return history.select("namespace_id").distinct().withColumn("expected", F.array(*map(F.lit, named)))


def _write_plan(path: Path, steps: DataFrame, by_hand: DataFrame, measure: reconcile.Measure) -> int:
    """Write the plan so that it is there whole or not at all; answers with how much is left to people."""
    head = {"schema": PLAN_SCHEMA, "now_us": measure.now_us, "grace_us": measure.grace_us}
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(head)[:-1] + b',\n"sends": [')
            ordered = steps.orderBy("namespace_id", "workflow_id", "run_id", "target", "first_event_id", "version")
            for place, row in enumerate(ordered.toLocalIterator()):
                file.write((b",\n" if place else b"\n") + _encode(row))
            file.write(b'],\n"by_hand": [')
            count = 0
            for row in by_hand.orderBy("namespace_id", "workflow_id", "run_id", "kind").toLocalIterator():
                file.write((b",\n" if count else b"\n") + _encode(row))
                count += 1
            file.write(b"]}\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return count


def _encode(row: Row) -> bytes:
    return msgspec.json.encode({name: value for name, value in row.asDict(recursive=True).items() if value is not None})
