"""Totals of runs and activities by type and task queue, by DuckDB in this process.

They are summed up again from all rows of `workflows` and `activities` whenever one row changes: DuckDB takes a tenth
of Spark's CPU for that, and spills to disk what does not fit into memory.
"""

from collections.abc import Sequence

import pyarrow as pa

from fairlead.pipeline.queries import Queries
from fairlead.pipeline.stages.percentiles import PERCENTILES, column_name

FAILURE_TYPES_MAX = 20
WORKFLOW_TYPE = ("cluster", "namespace_id", "workflow_type", "task_list")
ACTIVITY_TYPE = ("cluster", "namespace_id", "activity_type", "task_list")
_RUN_ENDS = ("completed", "failed", "timed_out", "canceled", "terminated", "continued_as_new")
_OUTCOMES = ("open", "completed", "failed", "timed_out", "canceled", "abandoned")


def workflow_types(queries: Queries) -> pa.Table:
    """Return the totals of the runs of each type and task queue, from the table `workflows`."""
    ends = ", ".join(f"count(*) FILTER (status = '{end}') AS {end}" for end in _RUN_ENDS)
    sums = f"""
        count(*) AS runs, count(*) FILTER (closed_us IS NULL) AS open, {ends},
        CAST(sum(activities) AS BIGINT) AS activities, CAST(sum(signals) AS BIGINT) AS signals,
        CAST(sum(workflow_tasks_failed) AS BIGINT) AS workflow_tasks_failed, max(events) AS events_max
    """
    measures = ("duration_s", "first_task_wait_s")
    return queries.table(_totals("workflows", WORKFLOW_TYPE, sums, measures, failure="failure_type"))


def activity_types(queries: Queries) -> pa.Table:
    """Return the totals of the activities of each type and task queue, from the table `activities`."""
    outcomes = ", ".join(f"count(*) FILTER (outcome = '{outcome}') AS {outcome}" for outcome in _OUTCOMES)
    sums = f"""
        count(*) AS scheduled, {outcomes}, count(*) FILTER (retries > 0) AS retried,
        CAST(coalesce(sum(retries), 0) AS BIGINT) AS retries
    """
    measures = ("queue_wait_s", "run_s", "total_s")
    # A failure counts even if a retry succeeded.
    failure = "coalesce(failure_type, retried_failure_type)"
    return queries.table(_totals("activities", ACTIVITY_TYPE, sums, measures, failure=failure))


def _totals(table: str, by: Sequence[str], sums: str, measures: Sequence[str], *, failure: str) -> str:
    """Return the query for the sums, the percentiles and the most frequent failure types of each group."""
    key = ", ".join(by)

    def is_same(other: str) -> str:
        return " AND ".join(f"sums.{name} IS NOT DISTINCT FROM {other}.{name}" for name in by)

    values = " UNION ALL ".join(
        f"SELECT {key}, {number} AS measure, {name} AS value FROM {table} WHERE {name} IS NOT NULL"  # noqa: S608 - our own names
        for number, name in enumerate(measures)
    )
    percentiles = ", ".join(
        f"sum({_weighted(share)}) FILTER (measure = {number}) AS {column_name(name, share)}"
        for number, name in enumerate(measures)
        for share in PERCENTILES
    )
    return f"""
        WITH sums AS (SELECT {key}, {sums} FROM {table} GROUP BY ALL),
        measured AS ({values}),
        -- Ranks, not `quantile_cont`, which would hold all values in memory.
        ranked AS (
            SELECT *, row_number() OVER (PARTITION BY {key}, measure ORDER BY value) - 1 AS place,
                   count(*) OVER (PARTITION BY {key}, measure) - 1 AS last_place
            FROM measured
        ),
        percentiles AS (SELECT {key}, {percentiles} FROM ranked GROUP BY ALL),
        failed AS (
            SELECT {key}, {failure} AS failure_type, count(*) AS count FROM {table}
            WHERE {failure} IS NOT NULL GROUP BY ALL
        ),
        placed AS (
            SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY count DESC, failure_type) AS place FROM failed
        ),
        listed AS (
            SELECT {key}, list({{'failure_type': failure_type, 'count': count}} ORDER BY place) AS failure_types
            FROM placed WHERE place <= {FAILURE_TYPES_MAX} GROUP BY ALL
        )
        SELECT sums.*, percentiles.* EXCLUDE ({key}), failure_types
        FROM sums LEFT JOIN percentiles ON {is_same("percentiles")} LEFT JOIN listed ON {is_same("listed")}
    """  # noqa: S608 - our own names


def _weighted(share: float) -> str:
    """Return the expression for the part of a value in a percentile; null if it has none.

    The definition of percentiles is in `stages.percentiles`.
    """
    position = f"(last_place * {share!r}::DOUBLE)"
    below, above = f"floor({position})", f"ceil({position})"
    return f"""
        CASE WHEN place = {below} AND {below} = {above} THEN value
             WHEN place = {below} THEN value * ({above} - {position})
             WHEN place = {above} THEN value * ({position} - {below}) END
    """
