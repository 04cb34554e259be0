"""From journaled batches with payloads to tables of runs and activities, and what they come to by type."""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
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

PERCENTILES = (50, 95, 99)
# Off by at most a ten-thousandth of the rows, in a memory that does not grow with them; exact for fewer rows.
PERCENTILE_ACCURACY = 10_000
FAILURE_TYPES_MAX = 20
WORKFLOW_TYPE = ("cluster", "namespace_id", "workflow_type", "task_list")
ACTIVITY_TYPE = ("cluster", "namespace_id", "activity_type", "task_list")


def gather_records(history: DataFrame) -> DataFrame:
    """The batches, all of a tree in one partition and in the order in which the kernel wants them."""
    zero = F.lit(0)
    records = history.select(
        "cluster",
        "namespace_id",
        "workflow_id",
        # A source that knows no trees has one for each run.
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
        F.try_to_binary("payload", F.lit("base64")).alias("payload"),
    ).select(*RECORDS.names)
    # Of two writes of the same events, the later one counts.
    return records.repartition(*TREE_KEY).sortWithinPartitions(*TREE_KEY, "run_id", "first_event_id", F.desc("task_id"))


def flatten(records: DataFrame) -> DataFrame:
    """One row a run, with its activities in it, or with the problem that is in the way."""
    return records.mapInArrow(_kernel, FLATTENED)


def workflows(flattened: DataFrame) -> DataFrame:
    """The runs of which all is known."""
    return flattened.where("problem is null").select(*WORKFLOWS.names)


def activities(flattened: DataFrame) -> DataFrame:
    """The activities of these runs, one row for each that was scheduled."""
    names = [name for name in ACTIVITIES.names if name not in FLATTENED.names]
    known = flattened.where("problem is null").withColumn("activity", F.explode("activity_rows"))
    # The task list is the activity's own, and not that of its workflow.
    shadowed = [name for name in ACTIVITIES.names if name in FLATTENED["activity_rows"].dataType.elementType.names]  # type: ignore[attr-defined]
    return known.select(
        *[F.col(f"activity.{name}") if name in {*names, *shadowed} else F.col(name) for name in ACTIVITIES.names]
    )


def workflow_types(runs: DataFrame) -> DataFrame:
    """What the runs of each type and task list come to."""
    ends = ("completed", "failed", "timed_out", "canceled", "terminated", "continued_as_new")
    sums = runs.groupBy(*WORKFLOW_TYPE).agg(
        F.count("*").alias("runs"),
        F.count_if(F.col("closed_us").isNull()).alias("open"),
        *(F.count_if(F.col("status") == end).alias(end) for end in ends),
        *(F.sum(name).alias(name) for name in ("activities", "signals", "workflow_tasks_failed")),
        F.max("events").alias("events_max"),
        *_percentiles("duration_s", "first_task_wait_s"),
    )
    return _with_failure_types(sums, runs, WORKFLOW_TYPE).select(*WORKFLOW_TYPES.names)


def activity_types(rows: DataFrame) -> DataFrame:
    """What the activities of each type and task list come to."""
    outcomes = ("open", "completed", "failed", "timed_out", "canceled", "abandoned")
    sums = rows.groupBy(*ACTIVITY_TYPE).agg(
        F.count("*").alias("scheduled"),
        *(F.count_if(F.col("outcome") == outcome).alias(outcome) for outcome in outcomes),
        F.count_if(F.col("retries") > 0).alias("retried"),
        F.coalesce(F.sum("retries"), F.lit(0)).alias("retries"),
        *_percentiles("queue_wait_s", "run_s", "total_s"),
    )
    # What a retry made good is a failure all the same.
    failed = rows.withColumn("failure_type", F.coalesce("failure_type", "retried_failure_type"))
    return _with_failure_types(sums, failed, ACTIVITY_TYPE).select(*ACTIVITY_TYPES.names)


def _percentiles(*names: str) -> Iterator[Column]:
    for name in names:
        found = F.percentile_approx(name, [share / 100 for share in PERCENTILES], PERCENTILE_ACCURACY)
        for place, share in enumerate(PERCENTILES):
            yield found[place].alias(f"{name}_p{share}")


def _with_failure_types(sums: DataFrame, rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Each sum with the failures that came most often."""
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
