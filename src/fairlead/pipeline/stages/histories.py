"""Turns journaled batches with payloads into tables of runs and activities."""

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from fairlead.pipeline.kernels.histories import flatten_runs
from fairlead.pipeline.schemas_histories import (
    ACTIVITIES,
    FLATTENED,
    RECORDS,
    TREE_KEY,
    WORKFLOWS,
)


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


def _kernel(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return partial(flatten_runs, schema=to_arrow_schema(FLATTENED))(batches)
