"""`fairlead pipeline histories`: runs and activities as flat tables, and what they come to by type and task list."""

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.arrow import arrow_limits
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.kernels.histories import Problem
from fairlead.pipeline.stages import histories

WORST_TOLD = 5
NO_PAYLOADS_HINT = (
    "runs without payloads can't be told of: set `journal: {payloads: true}` in the server's configuration for those "
    "to come, and bring those that are in the store with `fairlead export`"
)


def run(context: JobContext) -> Summary:
    """Write the tables `workflows`, `activities`, `workflow_types` and `activity_types`."""
    lake, run_id = context.lake, context.run_id
    # Not from `since` on: a run is told of with all of its events. Runs without any since then are left out below.
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
            problems = {row["problem"]: row["count"] for row in flattened.groupBy("problem").count().collect()}
        finally:
            flattened.unpersist()
    context.progress("adding up by type and task list")
    runs, activities = (lake.read_derived(context.spark, name) for name in ("workflows", "activities"))
    rows["workflow_types"] = lake.write("workflow_types", histories.workflow_types(runs), run_id)
    rows["activity_types"] = lake.write("activity_types", histories.activity_types(activities), run_id)
    types = lake.read_derived(context.spark, "activity_types")
    return Summary("histories", rows, _findings(problems, types))


def _findings(problems: dict[str | None, int], types: DataFrame) -> dict[str, Any]:
    findings: dict[str, Any] = {
        "runs_without_payloads": problems.get(Problem.NO_PAYLOADS, 0),
        "runs_incomplete": problems.get(Problem.INCOMPLETE, 0),
        "runs_unreadable": problems.get(Problem.UNREADABLE, 0),
        "slowest_to_start": _worst(types, "queue_wait_s_p99"),
        "most_retried": _worst(types, "retries"),
    }
    if findings["runs_without_payloads"]:
        findings["hint"] = NO_PAYLOADS_HINT
    return findings


def _worst(types: DataFrame, measure: str) -> list[dict[str, Any]]:
    """The activity types where a measure is highest."""
    ordered = types.where(F.col(measure) > 0).orderBy(F.desc(measure), *histories.ACTIVITY_TYPE)
    return [row.asDict() for row in ordered.select(*histories.ACTIVITY_TYPE, measure).limit(WORST_TOLD).collect()]
