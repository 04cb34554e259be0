"""The tables of the `backtest` job. A setting is a number, of which 0 is what is in force."""

from pyspark.sql.types import ArrayType, BooleanType, DoubleType, IntegerType, LongType, StringType, StructType

from fairlead.pipeline.schemas import struct

_LONG, _INT, _STRING, _DOUBLE, _BOOL = LongType(), IntegerType(), StringType(), DoubleType(), BooleanType()

_TASK_LIST = struct(cluster=_STRING, namespace_id=_STRING, task_list=_STRING, task_type=_INT)

# Some of the arrivals of a task list: how many in which buckets, those with none left out.
ARRIVALS = StructType(
    [*_TASK_LIST.fields, *struct(arrivals=ArrayType(struct(bucket=_LONG, tasks=_LONG), containsNull=False)).fields]
)

_OUTCOME = struct(
    tasks=_LONG,
    changes=_LONG,  # of either count: ups, downs and drains
    ups=_LONG,
    downs=_LONG,
    drains=_LONG,
    above_s=_DOUBLE,  # the load was above the threshold in force
    partitions_max=_LONG,
    partition_hours=_DOUBLE,
    overshoot_hours=_DOUBLE,  # write partitions beyond those needed at the time
    overshoot_max=_LONG,
    backlog_max=_DOUBLE,
    backlog_mean=_DOUBLE,
    wait_s_max=_DOUBLE,
    wait_s_mean=_DOUBLE,
    late=_DOUBLE,  # tasks that would wait longer than the bound
)
REPLAYED = StructType([*_TASK_LIST.fields, *struct(setting=_INT).fields, *_OUTCOME.fields])
CANDIDATES = struct(
    setting=_INT,
    upscale_rps=_DOUBLE,
    upscale_sustained_s=_DOUBLE,
    downscale_sustained_s=_DOUBLE,
    downscale_factor=_DOUBLE,
    interval_s=_DOUBLE,
)
_VERDICT = struct(late_share=_DOUBLE, changes_per_day=_DOUBLE, is_within=_BOOL, is_recommended=_BOOL)

# One row for each task list and setting.
BACKTEST = StructType([*_TASK_LIST.fields, *CANDIDATES.fields, *_OUTCOME.fields, *_VERDICT.fields])
# The same for all task lists of a cluster together; changes a day are those of the task list with the most.
BACKTEST_SETTINGS = StructType(
    [*struct(cluster=_STRING, task_lists=_LONG).fields, *CANDIDATES.fields, *_OUTCOME.fields, *_VERDICT.fields]
)
# Partitions over time, for what is in force and what is recommended.
BACKTEST_TIMELINE = StructType(
    [
        *_TASK_LIST.fields,
        *struct(setting=_INT, time_us=_LONG, qps=_DOUBLE, write=_LONG, read=_LONG, backlog=_DOUBLE).fields,
    ]
)
