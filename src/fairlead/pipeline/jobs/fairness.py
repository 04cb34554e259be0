"""`fairlead pipeline fairness`: compares each key's dispatches with its fair share; names starved and flooding keys."""

from typing import Any

import click
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.stages.fairness import floods, key_fairness, starved, window_fairness
from fairlead.pipeline.stages.traffic import TASK_QUEUE, WINDOW_S, WINDOW_S_MAX, WINDOW_S_MIN

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


def run(context: JobContext) -> Summary:
    """Write the tables `fairness_keys` and `fairness`."""
    window_s = float(context.options.get("window_s", WINDOW_S))
    tasks = context.lake.read(
        context.spark, "task", since=context.since_us, until=context.until_us, namespace=context.namespace
    )
    context.progress("comparing the dispatches of each key with its fair share")
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
    more = f", and {len(flooding) - 1} more keys flooded" if len(flooding) > 1 else ""
    return (
        f"key {worst['flood_key']!r} flooded task queue {worst['task_list']!r} of {worst['cluster']}, and "
        f"{worst['victims']} other keys missed {worst['tasks_missed']:,.0f} tasks of their fair share{more}"
    )


def _findings(windows: DataFrame, keys: DataFrame) -> dict[str, Any]:
    totals = windows.agg(
        F.min("jain").alias("jain_min"),
        F.avg("jain").alias("jain_mean"),
        F.count_if(F.col("starved") > 0).alias("windows_with_starved_keys"),
    ).first()
    assert totals is not None  # noqa: S101 - an aggregate without groups has one row
    ordered = {
        "starved": starved(keys).orderBy(F.desc("tasks_missed"), *TASK_QUEUE, "fairness_key"),
        "floods": floods(windows, keys).orderBy(F.desc("tasks_missed"), *TASK_QUEUE, "flood_key"),
    }
    return totals.asDict() | {
        name: [row.asDict() for row in rows.limit(WORST_SHOWN).collect()] for name, rows in ordered.items()
    }
