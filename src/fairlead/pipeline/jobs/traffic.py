"""`fairlead pipeline traffic`: rates, waits, backlogs and skew of every partition and task list."""

from typing import Any

import click
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.stages.traffic import (
    TASK_LIST,
    WINDOW_S,
    WINDOW_S_MAX,
    WINDOW_S_MIN,
    list_traffic,
    partition_traffic,
)

WORST_TOLD = 5

OPTIONS = [
    click.option(
        "--window",
        "window_s",
        type=click.FloatRange(WINDOW_S_MIN, WINDOW_S_MAX),
        default=WINDOW_S,
        show_default=True,
        metavar="SECONDS",
        help="Length of a window.",
    ),
]


def run(context: JobContext) -> Summary:
    """Write the tables `traffic` and `traffic_lists`."""
    window_s = float(context.options.get("window_s", WINDOW_S))
    tasks = context.lake.read(
        context.spark, "task", since=context.since_us, until=context.until_us, namespace=context.namespace
    )
    context.progress("counting what went through each partition")
    rows = {"traffic": context.lake.write("traffic", partition_traffic(tasks, window_s=window_s), context.run_id)}
    # What is written is read back: the partitions are then counted once, not once for each table.
    partitions = context.lake.read_derived(context.spark, "traffic")
    context.progress("adding up the partitions of each task list")
    rows["traffic_lists"] = context.lake.write(
        "traffic_lists", list_traffic(tasks, partitions, window_s=window_s), context.run_id
    )
    lists = context.lake.read_derived(context.spark, "traffic_lists")
    return Summary("traffic", rows, {"window_s": window_s, **_findings(lists)})


def _findings(lists: DataFrame) -> dict[str, Any]:
    totals = lists.agg(
        F.countDistinct(*TASK_LIST).alias("task_lists"),
        F.coalesce(F.sum("added"), F.lit(0)).alias("added"),
        F.coalesce(F.sum("matched"), F.lit(0)).alias("matched"),
        F.try_divide(F.sum("matched_at_once"), F.sum("matched")).alias("at_once_share"),
    ).first()
    assert totals is not None  # noqa: S101 - an aggregate without groups has one row
    return totals.asDict() | {
        "busiest": _worst(lists, "write_qps"),
        "slowest": _worst(lists, "wait_s_p99"),
        "most_skewed": _worst(lists, "skew"),
        "fullest": _worst(lists, "backlog_max"),
    }


def _worst(lists: DataFrame, measure: str) -> list[dict[str, Any]]:
    """The task lists where a measure was highest, each with its worst window."""
    worst = lists.groupBy(*TASK_LIST).agg(F.max(measure).alias(measure), F.max_by("window_us", measure).alias("at_us"))
    ordered = worst.where(F.col(measure).isNotNull()).orderBy(F.desc(measure), *TASK_LIST)
    return [row.asDict() for row in ordered.limit(WORST_TOLD).collect()]
