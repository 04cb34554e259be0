"""`fairlead pipeline histories`: runs and activities as flat tables, with totals by type, window and day."""

from typing import Any

import click
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.arrow import arrow_limits
from fairlead.pipeline.job import JobContext, Summary, left_out_alarm
from fairlead.pipeline.kernels.histories import Problem
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import Queries, Row, queries_on
from fairlead.pipeline.stages import histories, history_totals
from fairlead.pipeline.stages.traffic import WINDOW_S, WINDOW_S_MAX, WINDOW_S_MIN

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


def run(context: JobContext) -> Summary:
    """Write the tables of runs and activities, and their totals."""
    lake, run_id = context.lake, context.run_id
    # Read events before `since`, too: a row needs all events of its run. Runs without events after `since` are dropped
    # below.
    history = lake.read(context.spark, "history", until=context.until_us, namespace=context.namespace)
    with arrow_limits(context.spark):
        flattened = histories.flatten(histories.gather_records(history))
        if context.since_us is not None:
            flattened = flattened.where(F.col("last_us") >= context.since_us)
        flattened = flattened.persist()
        try:
            context.progress("reading the events of all runs")
            rows = {"workflows": lake.write("workflows", histories.workflows(flattened), run_id)}
            rows["activities"] = lake.write("activities", histories.activities(flattened), run_id)
            context.progress("summing up waits, traffic and actions")
            rows |= _write_totals(context, flattened)
            problems = {row["problem"]: row["count"] for row in flattened.groupBy("problem").count().collect()}
        finally:
            flattened.unpersist()
    context.progress("summing up by type and task queue")
    runs, activities = (lake.read_derived(context.spark, name) for name in ("workflows", "activities"))
    rows["workflow_types"] = lake.write("workflow_types", histories.workflow_types(runs), run_id)
    rows["activity_types"] = lake.write("activity_types", histories.activity_types(activities), run_id)
    rows["failures"] = lake.write("failures", history_totals.failures(runs, activities), run_id)
    return Summary("histories", rows, _findings(lake, problems), _alarm(problems))


def _write_totals(context: JobContext, flattened: DataFrame) -> dict[str, int]:
    """Write the tables by window and day; with `since`, those of the time before it are left out."""
    lake, window_s = context.lake, float(context.options.get("window_s", WINDOW_S))
    activities = lake.read_derived(context.spark, "activities")
    tasks = history_totals.tasks(flattened, activities).persist()
    tables = {
        "waits": (history_totals.waits(tasks, window_s=window_s), F.col("window_us")),
        "history_traffic": (history_totals.history_traffic(tasks, window_s=window_s), F.col("window_us")),
        "actions": (history_totals.actions(flattened), F.unix_micros(F.col("day").cast("timestamp"))),
    }
    try:
        return {
            name: lake.write(name, _since(context, table, time), context.run_id)
            for name, (table, time) in tables.items()
        }
    finally:
        tasks.unpersist()


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
    by = ", ".join(histories.ACTIVITY_TYPE)
    return queries.rows(
        f"""
        SELECT {by}, {measure} FROM activity_types WHERE {measure} > 0
        ORDER BY {measure} DESC, {by} LIMIT {WORST_SHOWN}
        """  # noqa: S608 - our own names
    )
