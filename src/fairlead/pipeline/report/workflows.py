"""The section on workflows: outcomes, durations and waits of runs and activities, by type."""

from collections import Counter

from fairlead.pipeline.queries import Row
from fairlead.pipeline.report.charts import bars, plots_of
from fairlead.pipeline.report.markup import Markup, table, tag
from fairlead.pipeline.report.page import Finding, Section, missing
from fairlead.pipeline.report.tables import Tables, length

TITLE = "Workflows and activities"
TYPES_SHOWN = 15
_RUNS = ("completed", "failed", "timed_out", "canceled", "terminated", "open", "continued_as_new")
_ACTIVITIES = ("completed", "failed", "timed_out", "canceled", "abandoned", "open")


def workflows(tables: Tables) -> Section:
    """Build the section: outcomes and durations by type."""
    if not tables.have("workflows", "activities", "workflow_types", "activity_types"):
        return missing("workflows", TITLE, job="histories")
    total = tables.queries.one(
        """
        SELECT coalesce(sum(runs), 0) AS runs, coalesce(sum(open), 0) AS open, coalesce(sum(failed), 0) AS failed
        FROM workflow_types
        """
    )
    if not total["runs"]:
        without = (
            "No run could be read: the journal has no payloads. Set ",
            tag("code", "journal: {payloads: true}"),
            " in the server's configuration.",
        )
        return Section("workflows", TITLE, (), (tag("p", *without, class_="note"),))
    top_runs = tables.queries.rows(
        "FROM workflow_types ORDER BY runs DESC, workflow_type, task_list, cluster, namespace_id LIMIT $count",
        count=TYPES_SHOWN,
    )
    top_activities = tables.queries.rows(
        "FROM activity_types ORDER BY scheduled DESC, activity_type, task_list, cluster, namespace_id LIMIT $count",
        count=TYPES_SHOWN,
    )
    note = f"The {TYPES_SHOWN} types with the most runs, and the {TYPES_SHOWN} with the most activities."
    body = [tag("p", note, class_="note")]
    plots = [_ends(top_runs, "workflow_type", _RUNS, caption="How runs ended")]
    if top_activities:
        plots.append(_ends(top_activities, "activity_type", _ACTIVITIES, caption="How activities ended"))
    body += plots_of(plots)
    body.append(_run_table(top_runs))
    if top_activities:
        body.append(_activity_table(top_activities))
    return Section("workflows", TITLE, [_finding(total), *_retries(tables)], tuple(body))


def _finding(total: Row) -> Finding:
    failed = f"{total['failed']:,} failed" if total["failed"] else "none failed"
    return Finding(f"{total['runs']:,} runs of workflows: {failed}, {total['open']:,} are still open.")


def _retries(tables: Tables) -> list[Finding]:
    total = tables.queries.one(
        """
        SELECT coalesce(sum(scheduled), 0) AS scheduled, coalesce(sum(retried), 0) AS retried,
               coalesce(sum(retries), 0) AS retries
        FROM activity_types
        """
    )
    if not total["retries"]:
        return []
    return [
        Finding(f"{total['retried']:,} of {total['scheduled']:,} activities were retried, {total['retries']:,} times.")
    ]


def _ends(rows: list[Row], name: str, ends: tuple[str, ...], *, caption: str) -> Markup:
    parts = [end.replace("_", " ") for end in ends]
    times = Counter(row[name] for row in rows)
    shares = [
        (
            # The table below has the same rows in the same order, with their namespaces and task queues, too.
            f"{row[name] or 'no type'}, {row['cluster']}" if times[row[name]] > 1 else row[name] or "no type",
            [(part, float(row[end] or 0)) for part, end in zip(parts, ends, strict=True)],
        )
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
