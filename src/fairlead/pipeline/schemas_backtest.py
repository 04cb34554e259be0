"""The tables of the `backtest` job. `setting` is the number of a candidate; 0 is the current settings."""

from pyspark.sql.types import ArrayType, BooleanType, DoubleType, IntegerType, LongType, StringType, StructType

from fairlead.pipeline.schemas import struct

_LONG, _INT, _STRING, _DOUBLE, _BOOL = LongType(), IntegerType(), StringType(), DoubleType(), BooleanType()

_TASK_QUEUE = struct(cluster=_STRING, namespace_id=_STRING, task_list=_STRING, task_type=_INT)

# A part of the arrivals of a task queue: the number of tasks by bucket, without empty buckets.
ARRIVALS = StructType(
    [*_TASK_QUEUE.fields, *struct(arrivals=ArrayType(struct(bucket=_LONG, tasks=_LONG), containsNull=False)).fields]
)

_OUTCOME = struct(
    tasks=_LONG,
    changes=_LONG,  # sum of ups, downs and drains
    ups=_LONG,
    downs=_LONG,
    drains=_LONG,
    above_s=_DOUBLE,  # seconds with a load above the threshold in force
    partitions_max=_LONG,
    partition_hours=_DOUBLE,
    overshoot_hours=_DOUBLE,  # write partitions beyond the number needed, times hours
    overshoot_max=_LONG,
    backlog_max=_DOUBLE,
    backlog_mean=_DOUBLE,
    wait_s_max=_DOUBLE,
    wait_s_mean=_DOUBLE,
    late=_DOUBLE,  # number of tasks whose predicted wait exceeds the bound
)
REPLAYED = StructType([*_TASK_QUEUE.fields, *struct(setting=_INT).fields, *_OUTCOME.fields])
# With the state from which the next run continues the replay.
STATES = StructType([*REPLAYED.fields, *struct(state=ArrayType(_DOUBLE, containsNull=False)).fields])
CANDIDATES = struct(
    setting=_INT,
    upscale_rps=_DOUBLE,
    upscale_sustained_s=_DOUBLE,
    downscale_sustained_s=_DOUBLE,
    downscale_factor=_DOUBLE,
    interval_s=_DOUBLE,
)
_VERDICT = struct(late_share=_DOUBLE, changes_per_day=_DOUBLE, is_within=_BOOL, is_recommended=_BOOL)

# One row per task queue and setting.
BACKTEST = StructType([*_TASK_QUEUE.fields, *CANDIDATES.fields, *_OUTCOME.fields, *_VERDICT.fields])
# One row per cluster and setting, summed over all task queues; `changes_per_day` is that of the task queue with the
# most changes.
BACKTEST_SETTINGS = StructType(
    [*struct(cluster=_STRING, task_lists=_LONG).fields, *CANDIDATES.fields, *_OUTCOME.fields, *_VERDICT.fields]
)
# Partitions over time, under the current and the recommended settings.
BACKTEST_TIMELINE = StructType(
    [
        *_TASK_QUEUE.fields,
        *struct(setting=_INT, time_us=_LONG, qps=_DOUBLE, write=_LONG, read=_LONG, backlog=_DOUBLE).fields,
    ]
)
