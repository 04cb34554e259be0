"""Checks whether all clusters hold the same histories, and plans which events to send to which cluster."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.core.errors import FixRequest
from fairlead.core.versions import ClusterVersions
from fairlead.pipeline.arrow import arrow_limits
from fairlead.pipeline.increments.changes import clusters_of_namespaces, files_with, touched_keys
from fairlead.pipeline.increments.origin import Plan, plan_run
from fairlead.pipeline.increments.selection import of_keys
from fairlead.pipeline.increments.touched import Keys
from fairlead.pipeline.job import JobContext, Summary, left_out_alarm
from fairlead.pipeline.kernels.reconcile import Kind, State
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import Queries, Row, queries_on
from fairlead.pipeline.stages import reconcile
from fairlead.pipeline.stages.clocks import read_clocks, with_arrivals
from fairlead.pipeline.stages.payloads import with_payload_faults
from fairlead.replication.plans import PLAN_SCHEMA

GRACE_S = 600.0
PLAN_FILE = "repair_plan.json"
SENDS = "FROM repair_plan ORDER BY namespace_id, workflow_id, run_id, target, first_event_id, version"
# The findings that can't be repaired by sending events and need an operator. Two kinds of findings repeat one of
# missing events, which the plan already sends: extra_events (the other cluster lacks these events) and zombie (the
# cluster lacks the event that closes the run). They are left out.
BY_HAND = f"""
    SELECT namespace_id, namespace, workflow_id, run_id, finding.*
    FROM (SELECT *, unnest(findings) AS finding FROM verdicts WHERE verdict = '{State.WRONG}')
    WHERE finding.state = '{State.WRONG}'
      AND NOT (finding.kind IN ('{Kind.MISSING_RUN}', '{Kind.MISSING_EVENTS}', '{Kind.GAP}')
               AND finding.other IS NOT NULL)
      AND finding.kind <> '{Kind.EXTRA_EVENTS}'
      AND NOT (finding.kind = '{Kind.ZOMBIE}' AND finding.cluster IS NOT NULL)
    ORDER BY namespace_id, workflow_id, run_id, finding.kind
"""  # noqa: S608 - our own names

OPTIONS = [
    click.option(
        "--grace",
        type=click.FloatRange(min=0),
        default=GRACE_S,
        show_default=True,
        metavar="SECONDS",
        help="Age up to which a missing event counts as late, not as wrong.",
    ),
    click.option(
        "--retention",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Retention: a cluster may have deleted runs that closed longer ago than this.",
    ),
    click.option(
        "--expect",
        multiple=True,
        metavar="CLUSTER",
        help="A cluster that should have every run; may be repeated. [default: all clusters with the run's namespace]",
    ),
    click.option(
        "--initial-version",
        multiple=True,
        metavar="CLUSTER=VERSION",
        help="A cluster's initial failover version; with --increment, it tells which cluster wrote an event.",
    ),
    click.option("--increment", type=click.IntRange(min=1), help="Failover version increment of the clusters."),
    click.option(
        "--plan",
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"File for the repair plan. [default: {PLAN_FILE} in the lake]",
    ),
]


class WrongVersions(FixRequest):
    """--increment and --initial-version are invalid or incomplete."""


class NoPlaceForPlan(FixRequest):
    """The repair plan can't be written to the given path."""


RUN = ("namespace_id", "workflow_id", "run_id")
WORKFLOW_ID = ("namespace_id", "workflow_id")
TABLES = ("verdicts", "pairs", "repair_plan")
# Holds the copies of each run, and how each two clusters compare; it has no other reader.
PARTIAL = "reconcile_partial"
# The workflow ids whose verdicts may change without new events: those with any finding or difference, and those with
# several runs of which one is open, since the time decides which of them should have ended. Runs that are the same in
# all clusters stay so.
UNSETTLED = f"""
    SELECT DISTINCT namespace_id, workflow_id FROM (
        SELECT namespace_id, workflow_id FROM verdicts GROUP BY ALL
        HAVING bool_or(verdict <> 'agreed' OR len(findings) > 0) OR (bool_or(is_open) AND count(*) > 1)
        UNION ALL
        SELECT namespace_id, workflow_id FROM {PARTIAL} GROUP BY ALL
        HAVING bool_or(len(list_filter(
                   pairs, lambda p: p.only_left + p.only_right + p.different + p.late + p.not_comparable > 0
               )) > 0)
            OR (bool_or(len(list_filter(copies, lambda c: c.is_open)) > 0) AND count(*) > 1)
    )
"""  # noqa: S608 - our own names


def run(context: JobContext) -> Summary:
    """Judge the runs; write `verdicts`, `pairs` and `repair_plan`, and the plan as a file.

    Without new batches and with the same options, only workflow ids whose verdict depends on the time are judged again.
    """
    plan = Path(context.options.get("plan") or context.lake.root / PLAN_FILE)
    if not plan.parent.is_dir() or plan.is_dir():
        raise NoPlaceForPlan(f"--plan {plan}: give a file in an existing folder")
    present = clusters_of_namespaces(context.lake, "history")
    todo = plan_run(context, "history", (PARTIAL, *TABLES), _parameters(context, present), is_joint=True)
    keys = None if todo.is_whole else _keys(context.lake, todo)
    # Read events before `since`, too: a run is judged by all of its events. Workflow ids without events after `since`
    # are dropped below.
    history = context.lake.read(
        context.spark,
        "history",
        until=context.until_us,
        namespace=context.namespace,
        files=None if keys is None else files_with(context.lake, "history", keys),
    )
    measure = _measure(context)
    expected = _expected(context, history) if keys is None else _known(context, present)
    if keys is not None:
        history = of_keys(history, keys, WORKFLOW_ID)
    arrived = with_arrivals(history, context.spark, context.lake).transform(with_payload_faults)
    runs = reconcile.gather_runs(arrived, since_us=context.since_us)
    with arrow_limits(context.spark):
        context.progress("comparing the histories of all clusters")
        # On disk, not in memory: the table is read five times, and grows with the number of runs.
        judged = reconcile.judge(runs, expected, measure).persist(StorageLevel.DISK_ONLY)
        try:
            rows = _write_tables(context, judged, measure, todo, keys)
        finally:
            judged.unpersist()
    return _summary(context, rows, measure, plan)


def _parameters(context: JobContext, present: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the values on which the verdict of every run depends."""
    options = context.options
    return {
        "grace": float(options.get("grace", GRACE_S)),
        "retention": options.get("retention"),
        "expect": sorted(set(options.get("expect") or ())),
        "increment": options.get("increment"),
        "initial_version": sorted(options.get("initial_version") or ()),
        "clusters": {namespace_id: list(clusters) for namespace_id, clusters in sorted(present.items())},
    }


def _keys(lake: Lake, todo: Plan) -> pa.Table:
    """Return the workflow ids with new events, and those whose verdicts depend on the time."""
    with queries_on(lake, "verdicts", PARTIAL) as queries:
        unsettled = queries.table(UNSETTLED)
    new = touched_keys(todo.batches, WORKFLOW_ID).cast(unsettled.schema) if todo.batches else unsettled.slice(0, 0)
    return pa.concat_tables([new, unsettled]).group_by(list(WORKFLOW_ID)).aggregate([])


def _write_tables(
    context: JobContext, judged: DataFrame, measure: reconcile.Measure, todo: Plan, keys: pa.Table | None
) -> dict[str, int]:
    lake, run_id = context.lake, context.run_id
    writes: dict[str, Any] = {"origin": todo.origin, "touched": None if keys is None else Keys(WORKFLOW_ID, keys)}
    found = reconcile.find_across_runs(judged, measure)
    rows = {"verdicts": lake.write("verdicts", reconcile.verdicts(judged, found), run_id, **writes)}
    context.progress("counting differences and planning the repair")
    lake.write(PARTIAL, judged.select(*RUN, "copies", "pairs"), run_id, **writes)
    compared = lake.read_derived(context.spark, PARTIAL)
    rows["pairs"] = lake.write("pairs", reconcile.pairs(compared), run_id, origin=todo.origin)
    rows["repair_plan"] = lake.write("repair_plan", reconcile.repair_plan(judged), run_id, **writes)
    return rows


def _summary(context: JobContext, rows: dict[str, int], measure: reconcile.Measure, plan: Path) -> Summary:
    lake = context.lake
    with queries_on(lake, "verdicts", "repair_plan") as queries:
        by_hand_count = _write_plan(plan, queries, measure)
        by_verdict = queries.rows("SELECT verdict, count(*) AS runs FROM verdicts GROUP BY ALL ORDER BY verdict")
        kinds = queries.rows(
            """
            SELECT kind, count(*) AS runs FROM (SELECT unnest(kinds) AS kind FROM verdicts)
            GROUP BY kind ORDER BY kind
            """
        )
    counts = {row["verdict"]: row["runs"] for row in by_verdict}
    wrong = counts.get("wrong", 0)
    findings: dict[str, Any] = {
        "verdicts": counts,
        "kinds": {row["kind"]: row["runs"] for row in kinds},
        "sends": rows["repair_plan"],
        "by_hand": by_hand_count,
        "plan": str(plan),
        "now_us": measure.now_us,
        "watermarks_us": dict(measure.clocks.own) if measure.clocks else {},
        "grace_s": measure.grace_us / 1e6,
    }
    alarm = f"{wrong:,} of {rows['verdicts']:,} runs are wrong: the repair plan is {plan}" if wrong else None
    unknown = counts.get(State.NOT_COMPARABLE, 0)
    alarm = alarm or left_out_alarm(unknown, rows["verdicts"], what="runs", why="they can't be compared")
    return Summary("reconcile", rows, findings, alarm)


def _measure(context: JobContext) -> reconcile.Measure:
    """Return the measure for judging runs. The clocks are read from the records of all namespaces."""
    options = context.options
    increment, initial_versions = _versions(options.get("increment"), options.get("initial_version") or ())
    now_us = time.time_ns() // 1000
    retention_s = options.get("retention")
    return reconcile.Measure(
        now_us=now_us if context.until_us is None else context.until_us,
        grace_us=round(float(options.get("grace", GRACE_S)) * 1e6),
        retention_us=None if retention_s is None else round(float(retention_s) * 1e6),
        increment=increment,
        initial_versions=initial_versions,
        clocks=read_clocks(
            context.lake,
            now_us=now_us,
            until_us=context.until_us,
            increment=increment,
            initial_versions=initial_versions,
        ),
    )


def check_options(options: Mapping[str, Any]) -> None:
    """Raise an error for invalid options before the job starts."""
    _versions(options.get("increment"), tuple(options.get("initial_version") or ()))


def _versions(increment: int | None, given: tuple[str, ...]) -> tuple[int | None, dict[str, int]]:
    if increment is None and not given:
        return None, {}
    if increment is None or not given:
        raise WrongVersions("--increment and --initial-version need each other: give both, or neither")
    versions = {}
    for text in given:
        cluster, separator, version = text.rpartition("=")
        if not separator or not version.isdecimal():
            raise WrongVersions(f"--initial-version {text!r}: give CLUSTER=VERSION, like east=1")
        versions[cluster] = int(version)
    # Raises an error if two clusters could have the same version.
    ClusterVersions(increment, versions)
    return increment, versions


def _expected(context: JobContext, history: DataFrame) -> DataFrame:
    named = sorted(set(context.options.get("expect") or ()))
    if not named:
        return reconcile.expected_clusters(history)
    return history.select("namespace_id").distinct().withColumn("expected", F.array(*map(F.lit, named)))


def _known(context: JobContext, present: Mapping[str, Sequence[str]]) -> DataFrame:
    """Like `_expected`, from the clusters that the plan of the run has read."""
    named = sorted(set(context.options.get("expect") or ()))
    rows = [(namespace_id, named or list(clusters)) for namespace_id, clusters in sorted(present.items())]
    return context.spark.createDataFrame(rows, "namespace_id string, expected array<string>")


def _write_plan(path: Path, queries: Queries, measure: reconcile.Measure) -> int:
    """Write the plan atomically; return the number of findings left for manual repair."""
    head = {"schema": PLAN_SCHEMA, "now_us": measure.now_us, "grace_us": measure.grace_us}
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(head)[:-1] + b',\n"sends": [')
            for place, row in enumerate(queries.stream(SENDS)):
                file.write((b",\n" if place else b"\n") + _encode(row))
            file.write(b'],\n"by_hand": [')
            count = 0
            for row in queries.stream(BY_HAND):
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
    return msgspec.json.encode({name: value for name, value in row.items() if value is not None})
