"""`fairlead pipeline fairness`: compares each key's dispatches with its fair share; names starved and flooding keys."""

from typing import Any

import click
from pyspark import StorageLevel

from fairlead.pipeline.arrow import groups_in_memory
from fairlead.pipeline.fairness_queries import FLOODS, STARVED
from fairlead.pipeline.increments.origin import Plan, plan_run, rows_of
from fairlead.pipeline.increments.spans import before_spans, in_spans, of_spans, touched_spans
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import queries_on
from fairlead.pipeline.stages.fairness import (
    CARRIED_WINDOWS_MAX,
    MISSED_MIN,
    fairness_of,
    key_levels,
    window_fairness,
)
from fairlead.pipeline.stages.traffic import WINDOW_S, WINDOW_S_MAX, WINDOW_S_MIN, window_us_of

WORST_SHOWN = 10

OPTIONS = [
    click.option(
        "--window",
        "window_s",
        type=click.FloatRange(WINDOW_S_MIN, WINDOW_S_MAX),
        default=WINDOW_S,
        show_default=True,
        metavar="SECONDS",
        help="Length of a window. Shorter windows show more unfairness, which evens out over time.",
    ),
]


TABLES = ("fairness_keys", "fairness")
# Holds the backlog of each key after each window, with which later runs begin; it has no other reader.
PARTIAL = "fairness_partial"


def run(context: JobContext) -> Summary:
    """Write the tables `fairness_keys` and `fairness`: anew, or the windows that new records touch."""
    window_s = float(context.options.get("window_s", WINDOW_S))
    plan = plan_run(context, "task", (PARTIAL, *TABLES), {"window_s": window_s}, is_joint=True)
    if plan.is_unchanged:
        rows = {table: rows_of(context.lake, table) for table in TABLES}
    else:
        rows = _write(context, plan, window_s)
    findings = _findings(context.lake)
    return Summary("fairness", rows, {"window_s": window_s, **findings}, _alarm(findings["floods"]))


def _write(context: JobContext, plan: Plan, window_s: float) -> dict[str, int]:
    """Write the tables as planned; return their rows."""
    lake, spark, run_id = context.lake, context.spark, context.run_id
    tasks = lake.read(spark, "task", since=context.since_us, until=context.until_us, namespace=context.namespace)
    spans, before = None, None
    if not plan.is_whole:
        spans = touched_spans(lake, plan.batches, PARTIAL, window_us=window_us_of(window_s))
        tasks = of_spans(tasks, spans, time="time_us", is_journal=True)
        before = before_spans(
            lake.read_derived(spark, PARTIAL), spans, span_us=(CARRIED_WINDOWS_MAX + 1) * window_us_of(window_s)
        )
    writes: dict[str, Any] = {"origin": plan.origin, "touched": spans}
    context.progress("comparing the dispatches of each key with its fair share")
    levels = key_levels(tasks, window_s=window_s, before=before).persist(StorageLevel.DISK_ONLY)
    try:
        compared = fairness_of(levels, tasks, window_s=window_s)
        with groups_in_memory(spark):
            rows = {"fairness_keys": lake.write("fairness_keys", in_spans(compared, spans), run_id, **writes)}
        keys = in_spans(lake.read_derived(spark, "fairness_keys"), spans)
        rows["fairness"] = lake.write("fairness", window_fairness(keys), run_id, **writes)
        # The end of a waiting time may change later; the next run does not need it.
        lake.write(PARTIAL, in_spans(levels.drop("end_us"), spans), run_id, **writes)
    finally:
        levels.unpersist()
    return rows


def _alarm(flooding: list[dict[str, Any]]) -> str | None:
    if not flooding:
        return None
    worst = flooding[0]
    more = f", and {len(flooding) - 1} more keys flooded" if len(flooding) > 1 else ""
    return (
        f"key {worst['flood_key']!r} flooded task queue {worst['task_list']!r} of {worst['cluster']}, and "
        f"{worst['victims']} other keys missed {worst['tasks_missed']:,.0f} tasks of their fair share{more}"
    )


def _findings(lake: Lake) -> dict[str, Any]:
    with queries_on(lake, "fairness", "fairness_keys") as queries:
        totals = queries.one(
            """
            SELECT min(jain) AS jain_min, avg(jain) AS jain_mean,
                   count(*) FILTER (starved > 0) AS windows_with_starved_keys
            FROM fairness
            """
        )
        starved = queries.rows(f"{STARVED} LIMIT $count", count=WORST_SHOWN)
        return totals | {
            "starved": starved,
            "floods": queries.rows(FLOODS, missed_min=MISSED_MIN, count=WORST_SHOWN),
        }
