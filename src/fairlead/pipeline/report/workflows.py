"""The section on workflows: outcomes, durations and waits of runs and activities, by type."""

from pyspark.sql import Row
from pyspark.sql import functions as F

from fairlead.pipeline.report.charts import bars
from fairlead.pipeline.report.markup import Markup, table, tag
from fairlead.pipeline.report.page import Finding, Section, missing
from fairlead.pipeline.report.tables import Tables, first_rows, length, one_row

TITLE = "Workflows and activities"
TYPES_SHOWN = 15
_RUNS = ("completed", "failed", "timed_out", "canceled", "terminated", "open", "continued_as_new")
_ACTIVITIES = ("completed", "failed", "timed_out", "canceled", "abandoned", "open")


def workflows(tables: Tables) -> Section:
    """Build the section: outcomes and durations by type."""
    if not tables.have("workflows", "activities", "workflow_types", "activity_types"):
        return missing("workflows", TITLE, job="histories")
    runs, activities = tables.read("workflow_types"), tables.read("activity_types")
    total = one_row(runs.agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("runs", "open", "failed"))))
    if not total["runs"]:
        without = (
            "No run could be read: the journal has no payloads. Set ",
            tag("code", "journal: {payloads: true}"),
            " in the server's configuration.",
        )
        return Section("workflows", TITLE, (), (tag("p", *without, class_="note"),))
    top_runs = first_rows(runs, TYPES_SHOWN, F.desc("runs"), "workflow_type", "task_list", "cluster", "namespace_id")
    order = ("activity_type", "task_list", "cluster", "namespace_id")
    top_activities = first_rows(activities, TYPES_SHOWN, F.desc("scheduled"), *order)
    note = f"The {TYPES_SHOWN} types with the most runs, and the {TYPES_SHOWN} with the most activities."
    body = [tag("p", note, class_="note")]
    plots = [_ends(top_runs, "workflow_type", _RUNS, caption="How runs ended")]
    if top_activities:
        plots.append(_ends(top_activities, "activity_type", _ACTIVITIES, caption="How activities ended"))
    body.append(tag("div", *plots, class_="plots"))
    body.append(_run_table(top_runs))
    if top_activities:
        body.append(_activity_table(top_activities))
    return Section("workflows", TITLE, [_finding(total), *_retries(tables)], tuple(body))


def _finding(total: Row) -> Finding:
    failed = f"{total['failed']:,} failed" if total["failed"] else "none failed"
    return Finding(f"{total['runs']:,} runs of workflows: {failed}, {total['open']:,} are still open.")


def _retries(tables: Tables) -> list[Finding]:
    total = one_row(
        tables.read("activity_types").agg(
            F.coalesce(F.sum("scheduled"), F.lit(0)).alias("scheduled"),
            F.coalesce(F.sum("retried"), F.lit(0)).alias("retried"),
            F.coalesce(F.sum("retries"), F.lit(0)).alias("retries"),
        )
    )
    if not total["retries"]:
        return []
    return [
        Finding(f"{total['retried']:,} of {total['scheduled']:,} activities were retried, {total['retries']:,} times.")
    ]


def _ends(rows: list[Row], name: str, ends: tuple[str, ...], *, caption: str) -> Markup:
    parts = [end.replace("_", " ") for end in ends]
    shares = [
        (row[name] or "?", [(part, float(row[end] or 0)) for part, end in zip(parts, ends, strict=True)])
        for row in rows
    ]
    return bars(shares, caption=caption, parts=parts)


def _run_table(rows: list[Row]) -> Markup:
    return table(
        (
            "workflow type",
            "task queue",
            "namespace",
            "cluster",
            "runs",
            "half within",
            "95 % within",
            "first task waited, 95 %",
        ),
        (
            (
                row["workflow_type"],
                row["task_list"],
                row["namespace_id"],
                row["cluster"],
                row["runs"],
                _length(row["duration_s_p50"]),
                _length(row["duration_s_p95"]),
                _length(row["first_task_wait_s_p95"]),
            )
            for row in rows
        ),
    )


def _activity_table(rows: list[Row]) -> Markup:
    return table(
        (
            "activity type",
            "task queue",
            "namespace",
            "cluster",
            "scheduled",
            "retries",
            "waited, 95 %",
            "ran, 95 %",
            "failures",
        ),
        (
            (
                row["activity_type"],
                row["task_list"],
                row["namespace_id"],
                row["cluster"],
                row["scheduled"],
                row["retries"],
                _length(row["queue_wait_s_p95"]),
                _length(row["run_s_p95"]),
                ", ".join(f"{one['failure_type']} {one['count']:,}" for one in (row["failure_types"] or ())[:3]) or "-",
            )
            for row in rows
        ),
    )


def _length(seconds: float | None) -> str:
    return "-" if seconds is None else length(seconds)
