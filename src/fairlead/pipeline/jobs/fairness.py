"""`fairlead pipeline fairness`: what each fairness key got against what was due, and who starved because of whom."""

from typing import Any

import click
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.stages.fairness import floods, key_fairness, starved, window_fairness
from fairlead.pipeline.stages.traffic import TASK_LIST, WINDOW_S, WINDOW_S_MAX, WINDOW_S_MIN

WORST_TOLD = 10

OPTIONS = [
    click.option(
        "--window",
        "window_s",
        type=click.FloatRange(WINDOW_S_MIN, WINDOW_S_MAX),
        default=WINDOW_S,
        show_default=True,
        metavar="SECONDS",
        help="Length of a window. Short ones show more unfairness: it evens out over time.",
    ),
]


def run(context: JobContext) -> Summary:
    """Write the tables `fairness_keys` and `fairness`."""
    window_s = float(context.options.get("window_s", WINDOW_S))
    tasks = context.lake.read(
        context.spark, "task", since=context.since_us, until=context.until_us, namespace=context.namespace
    )
    context.progress("comparing what each key got with what was due")
    rows = {
        "fairness_keys": context.lake.write("fairness_keys", key_fairness(tasks, window_s=window_s), context.run_id)
    }
    keys = context.lake.read_derived(context.spark, "fairness_keys")
    rows["fairness"] = context.lake.write("fairness", window_fairness(keys), context.run_id)
    windows = context.lake.read_derived(context.spark, "fairness")
    findings = _findings(windows, keys)
    return Summary("fairness", rows, {"window_s": window_s, **findings}, _alarm(findings["floods"]))


def _alarm(flooding: list[dict[str, Any]]) -> str | None:
    if not flooding:
        return None
    worst = flooding[0]
    more = f", and {len(flooding) - 1} more did likewise" if len(flooding) > 1 else ""
    return (
        f"key {worst['flood_key']!r} flooded task list {worst['task_list']!r} of {worst['cluster']}, and "
        f"{worst['victims']} others missed {worst['tasks_missed']:,.0f} tasks that were due to them{more}"
    )


def _findings(windows: DataFrame, keys: DataFrame) -> dict[str, Any]:
    totals = windows.agg(
        F.min("jain").alias("jain_min"),
        F.avg("jain").alias("jain_mean"),
        F.count_if(F.col("starved") > 0).alias("windows_with_starved_keys"),
    ).first()
    assert totals is not None  # noqa: S101 - an aggregate without groups has one row
    ordered = {
        "starved": starved(keys).orderBy(F.desc("tasks_missed"), *TASK_LIST, "fairness_key"),
        "floods": floods(windows, keys).orderBy(F.desc("tasks_missed"), *TASK_LIST, "flood_key"),
    }
    return totals.asDict() | {
        name: [row.asDict() for row in rows.limit(WORST_TOLD).collect()] for name, rows in ordered.items()
    }
