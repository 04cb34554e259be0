"""`fairlead pipeline traffic`: rates, waits, backlogs and skew of every partition and task queue."""

from typing import Any

import click

from fairlead.pipeline.arrow import groups_in_memory
from fairlead.pipeline.increments.changes import touched_hours
from fairlead.pipeline.increments.origin import Plan, plan_run, rows_of
from fairlead.pipeline.increments.selection import in_hours, of_hours
from fairlead.pipeline.increments.touched import Hours
from fairlead.pipeline.job import JobContext, Summary, left_out_alarm
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import Queries, Row, queries_on
from fairlead.pipeline.stages.traffic import (
    WINDOW_S,
    WINDOW_S_MAX,
    WINDOW_S_MIN,
    list_traffic,
    partition_flows,
    partition_traffic,
    window_us_of,
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


TABLES = ("traffic", "traffic_lists")
# Holds the waits from which both tables are computed; it has no other reader.
PARTIAL = "traffic_partial"


def run(context: JobContext) -> Summary:
    """Write the tables `traffic` and `traffic_lists`: anew, or the hours that new records touch."""
    window_s = float(context.options.get("window_s", WINDOW_S))
    plan = plan_run(context, "task", (PARTIAL, *TABLES), {"window_s": window_s})
    rows = _write(context, plan, window_s)
    total, unknown = _unknown_kinds(context.lake)
    findings = {"window_s": window_s, "records_of_unknown_kind": unknown, **_findings(context.lake)}
    alarm = left_out_alarm(unknown, total, what="records", why="this release does not know their kinds")
    return Summary("traffic", rows, findings, alarm)


def _write(context: JobContext, plan: Plan, window_s: float) -> dict[str, int]:
    """Write the tables as planned; return their rows."""
    lake, spark = context.lake, context.spark
    if plan.is_unchanged:
        return {table: rows_of(lake, table) for table in TABLES}
    touched = None if plan.is_whole else Hours(touched_hours(plan.batches, window_us=window_us_of(window_s)))
    tasks = lake.read(spark, "task", since=context.since_us, until=context.until_us, namespace=context.namespace)
    tasks = of_hours(tasks, touched, window_s=window_s)
    writes: dict[str, Any] = {"origin": plan.origin, "touched": touched}
    with groups_in_memory(spark):
        context.progress("counting the traffic of each partition")
        lake.write(PARTIAL, partition_flows(tasks, window_s=window_s), context.run_id, **writes)
        flows = in_hours(lake.read_derived(spark, PARTIAL), touched)
        rows = {"traffic": lake.write("traffic", partition_traffic(flows, window_s=window_s), context.run_id, **writes)}
        context.progress("summing up the partitions of each task queue")
        lists = list_traffic(flows, window_s=window_s)
        rows["traffic_lists"] = lake.write("traffic_lists", lists, context.run_id, **writes)
    return rows


def _unknown_kinds(lake: Lake) -> tuple[int, int]:
    """Return the number of all records, and of records whose kind this release does not know."""
    if not rows_of(lake, PARTIAL):
        return 0, 0
    with queries_on(lake, "traffic_partial") as queries:
        row = queries.one(
            """
            SELECT coalesce(sum(records), 0) AS total, coalesce(sum(records_unknown), 0) AS unknown
            FROM traffic_partial
            """
        )
    return row["total"], row["unknown"]


def _findings(lake: Lake) -> dict[str, Any]:
    with queries_on(lake, "traffic_lists") as queries:
        totals = queries.one(
            """
            SELECT count(DISTINCT (cluster, namespace_id, task_list, task_type)) AS task_lists,
                   coalesce(sum(added), 0) AS added,
                   coalesce(sum(matched), 0) AS matched,
                   sum(matched_at_once) / nullif(sum(matched), 0) AS at_once_share
            FROM traffic_lists
            """
        )
        return totals | {
            "busiest": _worst(queries, "write_qps"),
            "slowest": _worst(queries, "wait_s_p99"),
            "most_skewed": _worst(queries, "skew"),
            "fullest": _worst(queries, "backlog_max"),
        }


def _worst(queries: Queries, measure: str) -> list[Row]:
    """Return the task queues with the highest value of a measure, each with its worst window, the first of several."""
    return queries.rows(
        f"""
        SELECT cluster, namespace_id, task_list, task_type,
               max({measure}) AS {measure}, max_by(window_us, ({measure}, -window_us)) AS at_us
        FROM traffic_lists WHERE {measure} IS NOT NULL GROUP BY ALL
        ORDER BY max({measure}) DESC, cluster, namespace_id, task_list, task_type LIMIT {WORST_SHOWN}
        """  # noqa: S608 - our own names
    )
