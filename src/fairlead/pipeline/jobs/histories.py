"""`fairlead pipeline histories`: runs and activities as flat tables, with totals by type, window and day."""

from typing import Any

import click
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fairlead.pipeline import type_totals
from fairlead.pipeline.arrow import arrow_limits
from fairlead.pipeline.increments.changes import files_with, hours_in, touched_keys
from fairlead.pipeline.increments.origin import Plan, plan_run, rows_of
from fairlead.pipeline.increments.selection import in_hours, of_keys
from fairlead.pipeline.increments.touched import Hours, Keys
from fairlead.pipeline.job import JobContext, Summary, left_out_alarm
from fairlead.pipeline.kernels.histories import Problem
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import Queries, Row, queries_on
from fairlead.pipeline.schemas_histories import ACTIVITY_TYPES, WORKFLOW_TYPES
from fairlead.pipeline.stages import histories, history_totals
from fairlead.pipeline.stages.traffic import WINDOW_S, WINDOW_S_MAX, WINDOW_S_MIN, window_us_of

WORST_SHOWN = 5
NO_PAYLOADS_HINT = (
    "runs without payloads can't be read: set `journal: {payloads: true}` or `keys` in the server's configuration for "
    "future runs, and export the stored ones with `fairlead export`"
)

OPTIONS = [
    click.option(
        "--window",
        "window_s",
        type=click.FloatRange(WINDOW_S_MIN, WINDOW_S_MAX),
        default=WINDOW_S,
        show_default=True,
        metavar="SECONDS",
        help="Length of a window of waits and traffic.",
    ),
]


RUNS = ("cluster", "namespace_id", "workflow_id", "run_id")
WORKFLOW_ID = ("namespace_id", "workflow_id")
# Holds the workflow tasks and actions of all runs, from which totals are computed; it has no other reader.
PARTIAL = "histories_partial"
BY_RUN = ("workflows", "activities")
BY_TIME = ("waits", "history_traffic", "actions")
BY_TYPE = ("workflow_types", "activity_types", "failures")


def run(context: JobContext) -> Summary:
    """Write the tables of runs and activities, and their totals: anew, or for the workflow ids with new events."""
    window_s = float(context.options.get("window_s", WINDOW_S))
    tables = (PARTIAL, *BY_RUN, *BY_TIME, *BY_TYPE)
    plan = plan_run(context, "history", tables, {"window_s": window_s}, is_joint=True)
    if plan.is_unchanged:
        rows = {table: rows_of(context.lake, table) for table in tables[1:]}
    else:
        rows = _write(context, plan, window_s)
    problems = _problems(context.lake)
    return Summary("histories", rows, _findings(context.lake, problems), _alarm(problems))


def _write(context: JobContext, plan: Plan, window_s: float) -> dict[str, int]:
    """Write the tables as planned; return their rows."""
    lake, spark, run_id = context.lake, context.spark, context.run_id
    keys = None if plan.is_whole else touched_keys(plan.batches, WORKFLOW_ID)
    # Read events before `since`, too: a row needs all events of its run. Runs without events after `since` are dropped
    # below.
    history = lake.read(
        spark,
        "history",
        until=context.until_us,
        namespace=context.namespace,
        files=None if keys is None else files_with(lake, "history", keys),
    )
    if keys is not None:
        history = of_keys(history, keys, WORKFLOW_ID)
    touched = None if keys is None else Keys(WORKFLOW_ID, keys)
    writes: dict[str, Any] = {"origin": plan.origin, "touched": touched}
    before = frozenset[int]() if keys is None else _task_hours(lake, keys, window_s)
    with arrow_limits(spark):
        flattened = histories.flatten(histories.gather_records(history))
        if context.since_us is not None:
            flattened = flattened.where(F.col("last_us") >= context.since_us)
        flattened = flattened.persist()
        try:
            context.progress("reading the events of the runs")
            rows = {"workflows": lake.write("workflows", histories.workflows(flattened), run_id, **writes)}
            rows["activities"] = lake.write("activities", histories.activities(flattened), run_id, **writes)
            partial = flattened.select(*RUNS, "workflow_type", "problem", "workflow_task_rows", "action_rows")
            lake.write(PARTIAL, partial, run_id, **writes)
        finally:
            flattened.unpersist()
        context.progress("summing up waits, traffic and actions")
        hours = None if keys is None else Hours(before | _task_hours(lake, keys, window_s))
        rows |= _write_totals(context, plan, hours)
    context.progress("summing up by type and task queue")
    runs, activities = (lake.read_derived(spark, name) for name in BY_RUN)
    with queries_on(lake, *BY_RUN) as queries:
        totals = {
            "workflow_types": _frame(spark, type_totals.workflow_types(queries), WORKFLOW_TYPES),
            "activity_types": _frame(spark, type_totals.activity_types(queries), ACTIVITY_TYPES),
            "failures": history_totals.failures(runs, activities),
        }
    return rows | {name: lake.write(name, frame, run_id, origin=plan.origin) for name, frame in totals.items()}


def _frame(spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    # Spark takes no Arrow table without rows.
    return spark.createDataFrame(rows if rows.num_rows else [], schema)


def _task_hours(lake: Lake, keys: pa.Table, window_s: float) -> frozenset[int]:
    """Return the hours in which tasks of these workflow ids were scheduled or started."""
    window_us = window_us_of(window_s)
    times = ("scheduled_us", "started_us")
    nested = [f"unnest(list_transform(workflow_task_rows, lambda t: t.{time}))" for time in times]
    of_workflows = hours_in(lake, PARTIAL, nested, keys, window_us=window_us)
    return of_workflows | hours_in(lake, "activities", times, keys, window_us=window_us)


def _write_totals(context: JobContext, plan: Plan, hours: Hours | None) -> dict[str, int]:
    """Write the tables by window and day; with `since`, those of the time before it are left out."""
    lake, window_s = context.lake, float(context.options.get("window_s", WINDOW_S))
    flattened = lake.read_derived(context.spark, PARTIAL)
    tasks = history_totals.tasks(flattened, lake.read_derived(context.spark, "activities"))
    if hours is not None:
        tasks = in_hours(tasks, hours, times=("scheduled_us", "started_us"), window_s=window_s)
    tasks = tasks.persist()
    tables = {
        "waits": (in_hours(history_totals.waits(tasks, window_s=window_s), hours), F.col("window_us"), hours),
        "history_traffic": (
            in_hours(history_totals.history_traffic(tasks, window_s=window_s), hours), F.col("window_us"), hours
        ),
        "actions": (history_totals.actions(flattened), F.unix_micros(F.col("day").cast("timestamp")), None),
    }  # fmt: skip
    try:
        return {
            name: lake.write(name, _since(context, table, time), context.run_id, origin=plan.origin, touched=touched)
            for name, (table, time, touched) in tables.items()
        }
    finally:
        tasks.unpersist()


def _problems(lake: Lake) -> dict[str | None, int]:
    """Return the number of runs by the problem that prevented reading them; None for those that were read."""
    if not rows_of(lake, PARTIAL):
        return {}
    with queries_on(lake, PARTIAL) as queries:
        return {
            row["problem"]: row["runs"]
            for row in queries.rows(f"SELECT problem, count(*) AS runs FROM {PARTIAL} GROUP BY problem")  # noqa: S608 - our own name
        }


def _since(context: JobContext, table: DataFrame, time: Column) -> DataFrame:
    return table if context.since_us is None else table.where(time >= context.since_us)


def _alarm(problems: dict[str | None, int]) -> str | None:
    """Return an alarm if many runs were left out; None if no run was journaled with payloads."""
    without = problems.get(Problem.NO_PAYLOADS, 0)
    total = sum(problems.values())
    if without == total:
        return None
    why = "their events are incomplete, unreadable or without payloads"
    return left_out_alarm(total - problems.get(None, 0), total, what="runs", why=why)


def _findings(lake: Lake, problems: dict[str | None, int]) -> dict[str, Any]:
    findings: dict[str, Any] = {
        "runs_without_payloads": problems.get(Problem.NO_PAYLOADS, 0),
        "runs_incomplete": problems.get(Problem.INCOMPLETE, 0),
        "runs_unreadable": problems.get(Problem.UNREADABLE, 0),
    }
    with queries_on(lake, "activity_types") as queries:
        findings["slowest_to_start"] = _worst(queries, "queue_wait_s_p99")
        findings["most_retried"] = _worst(queries, "retries")
    if findings["runs_without_payloads"]:
        findings["hint"] = NO_PAYLOADS_HINT
    return findings


def _worst(queries: Queries, measure: str) -> list[Row]:
    """Return the activity types with the highest value of a measure."""
    by = ", ".join(type_totals.ACTIVITY_TYPE)
    return queries.rows(
        f"""
        SELECT {by}, {measure} FROM activity_types WHERE {measure} > 0
        ORDER BY {measure} DESC, {by} LIMIT {WORST_SHOWN}
        """  # noqa: S608 - our own names
    )
