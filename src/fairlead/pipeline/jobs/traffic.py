"""`fairlead pipeline traffic`: rates, waits, backlogs and skew of every partition and task queue."""

from typing import Any

import click
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.journal import Happening
from fairlead.pipeline.job import JobContext, Summary, left_out_alarm
from fairlead.pipeline.stages.traffic import (
    TASK_QUEUE,
    WINDOW_S,
    WINDOW_S_MAX,
    WINDOW_S_MIN,
    list_traffic,
    partition_traffic,
)

WORST_SHOWN = 5

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
    context.progress("counting the traffic of each partition")
    rows = {"traffic": context.lake.write("traffic", partition_traffic(tasks, window_s=window_s), context.run_id)}
    # Read the written table back, so that Spark counts the partitions once and not once for each table.
    partitions = context.lake.read_derived(context.spark, "traffic")
    context.progress("summing up the partitions of each task queue")
    rows["traffic_lists"] = context.lake.write(
        "traffic_lists", list_traffic(tasks, partitions, window_s=window_s), context.run_id
    )
    lists = context.lake.read_derived(context.spark, "traffic_lists")
    total, unknown = _unknown_kinds(tasks)
    findings = {"window_s": window_s, "records_of_unknown_kind": unknown, **_findings(lists)}
    alarm = left_out_alarm(unknown, total, what="records", why="this release does not know their kinds")
    return Summary("traffic", rows, findings, alarm)


def _unknown_kinds(tasks: DataFrame) -> tuple[int, int]:
    """Return the number of all records, and of records whose kind this release does not know."""
    is_unknown = ~F.col("kind").isin(*map(str, Happening))
    row = tasks.agg(F.count("*").alias("total"), F.count_if(is_unknown).alias("unknown")).first()
    assert row is not None  # noqa: S101 - an aggregate without groups has one row
    return row["total"], row["unknown"]


def _findings(lists: DataFrame) -> dict[str, Any]:
    totals = lists.agg(
        F.countDistinct(*TASK_QUEUE).alias("task_lists"),
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
    """Return the task queues with the highest value of a measure, each with its worst window."""
    worst = lists.groupBy(*TASK_QUEUE).agg(F.max(measure).alias(measure), F.max_by("window_us", measure).alias("at_us"))
    ordered = worst.where(F.col(measure).isNotNull()).orderBy(F.desc(measure), *TASK_QUEUE)
    return [row.asDict() for row in ordered.limit(WORST_SHOWN).collect()]
