"""Turns journaled batches with payloads into tables of runs and activities, with totals by type."""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from fairlead.pipeline.kernels.histories import flatten_runs
from fairlead.pipeline.schemas_histories import (
    ACTIVITIES,
    ACTIVITY_TYPES,
    FLATTENED,
    RECORDS,
    TREE_KEY,
    WORKFLOW_TYPES,
    WORKFLOWS,
)
from fairlead.pipeline.stages.percentiles import with_percentiles

FAILURE_TYPES_MAX = 20
WORKFLOW_TYPE = ("cluster", "namespace_id", "workflow_type", "task_list")
ACTIVITY_TYPE = ("cluster", "namespace_id", "activity_type", "task_list")


def gather_records(history: DataFrame) -> DataFrame:
    """Return the batches with each tree in one partition, sorted as the kernel requires."""
    zero = F.lit(0)
    records = history.select(
        "cluster",
        "namespace_id",
        "workflow_id",
        # Without tree ids, each run has its own tree.
        F.coalesce("tree_id", "run_id").alias("tree_id"),
        "run_id",
        "first_event_id",
        "last_event_id",
        F.coalesce("version", zero).cast("long").alias("version"),
        F.col("items.event_id").alias("item_ids"),
        F.col("items.version").alias("item_versions"),
        F.coalesce("task_id", zero).cast("long").alias("task_id"),
        F.coalesce("status", zero).cast("int").alias("status"),
        "time_us",
        F.try_to_binary(F.coalesce("payload", "outline"), F.lit("base64")).alias("payload"),
    ).select(*RECORDS.names)
    # The later write of the same events comes first, and wins.
    return records.repartition(*TREE_KEY).sortWithinPartitions(*TREE_KEY, "run_id", "first_event_id", F.desc("task_id"))


def flatten(records: DataFrame) -> DataFrame:
    """Return one row per run, with its activities nested, or with the problem that prevented reading it."""
    return records.mapInArrow(_kernel, FLATTENED)


def workflows(flattened: DataFrame) -> DataFrame:
    """Return the runs without a problem."""
    return flattened.where("problem is null").select(*WORKFLOWS.names)


def activities(flattened: DataFrame) -> DataFrame:
    """Return the activities of these runs, one row for each scheduled activity."""
    names = [name for name in ACTIVITIES.names if name not in FLATTENED.names]
    known = flattened.where("problem is null").withColumn("activity", F.explode("activity_rows"))
    # The activity's task queue, not its workflow's.
    shadowed = [name for name in ACTIVITIES.names if name in FLATTENED["activity_rows"].dataType.elementType.names]  # type: ignore[attr-defined]
    return known.select(
        *[F.col(f"activity.{name}") if name in {*names, *shadowed} else F.col(name) for name in ACTIVITIES.names]
    )


def workflow_types(runs: DataFrame) -> DataFrame:
    """Return the totals of the runs of each type and task queue."""
    ends = ("completed", "failed", "timed_out", "canceled", "terminated", "continued_as_new")
    sums = runs.groupBy(*WORKFLOW_TYPE).agg(
        F.count("*").alias("runs"),
        F.count_if(F.col("closed_us").isNull()).alias("open"),
        *(F.count_if(F.col("status") == end).alias(end) for end in ends),
        *(F.sum(name).alias(name) for name in ("activities", "signals", "workflow_tasks_failed")),
        F.max("events").alias("events_max"),
    )
    sums = with_percentiles(sums, runs, WORKFLOW_TYPE, ("duration_s", "first_task_wait_s"))
    return _with_failure_types(sums, runs, WORKFLOW_TYPE).select(*WORKFLOW_TYPES.names)


def activity_types(rows: DataFrame) -> DataFrame:
    """Return the totals of the activities of each type and task queue."""
    outcomes = ("open", "completed", "failed", "timed_out", "canceled", "abandoned")
    sums = rows.groupBy(*ACTIVITY_TYPE).agg(
        F.count("*").alias("scheduled"),
        *(F.count_if(F.col("outcome") == outcome).alias(outcome) for outcome in outcomes),
        F.count_if(F.col("retries") > 0).alias("retried"),
        F.coalesce(F.sum("retries"), F.lit(0)).alias("retries"),
    )
    sums = with_percentiles(sums, rows, ACTIVITY_TYPE, ("queue_wait_s", "run_s", "total_s"))
    # A failure counts even if a retry succeeded.
    failed = rows.withColumn("failure_type", F.coalesce("failure_type", "retried_failure_type"))
    return _with_failure_types(sums, failed, ACTIVITY_TYPE).select(*ACTIVITY_TYPES.names)


def _with_failure_types(sums: DataFrame, rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Add the most frequent failure types of each group."""
    counts = rows.where("failure_type is not null").groupBy(*by, "failure_type").agg(F.count("*").alias("count"))
    order = Window.partitionBy(*by).orderBy(F.desc("count"), "failure_type")
    most = counts.withColumn("place", F.row_number().over(order)).where(F.col("place") <= FAILURE_TYPES_MAX)
    listed = most.groupBy(*by).agg(
        F.transform(
            F.array_sort(F.collect_list(F.struct("place", "failure_type", "count"))),
            lambda each: F.struct(each["failure_type"].alias("failure_type"), each["count"].alias("count")),
        ).alias("failure_types")
    )
    return sums.join(listed, list(by), "left")


def _kernel(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return partial(flatten_runs, schema=to_arrow_schema(FLATTENED))(batches)
