"""`fairlead pipeline fairness`: compares each key's dispatches with its fair share; names starved and flooding keys."""

from typing import Any

import click

from fairlead.pipeline.arrow import groups_in_memory
from fairlead.pipeline.fairness_queries import FLOODS, STARVED
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import queries_on
from fairlead.pipeline.stages.fairness import MISSED_MIN, key_fairness, window_fairness
from fairlead.pipeline.stages.traffic import WINDOW_S, WINDOW_S_MAX, WINDOW_S_MIN

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
    compared = key_fairness(tasks, window_s=window_s)
    with groups_in_memory(context.spark):
        rows = {"fairness_keys": context.lake.write("fairness_keys", compared, context.run_id)}
    keys = context.lake.read_derived(context.spark, "fairness_keys")
    rows["fairness"] = context.lake.write("fairness", window_fairness(keys), context.run_id)
    findings = _findings(context.lake)
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
