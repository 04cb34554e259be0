"""The tables of the `traffic` job. `window_us` is the beginning of a window, in µs since the epoch."""

from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructType

from fairlead.pipeline.schemas import struct

_LONG, _INT, _STRING, _DOUBLE = LongType(), IntegerType(), StringType(), DoubleType()

_TASK_QUEUE = struct(cluster=_STRING, namespace_id=_STRING, task_list=_STRING, task_type=_INT)
_FLOW = struct(
    window_us=_LONG,
    added=_LONG,
    matched=_LONG,
    matched_at_once=_LONG,
    matched_forwarded=_LONG,
    forwarded=_LONG,  # offers to the parent partition, with or without a match
    polls_empty=_LONG,
    write_qps=_DOUBLE,
    dispatch_qps=_DOUBLE,
    wait_s_p50=_DOUBLE,
    wait_s_p95=_DOUBLE,
    wait_s_p99=_DOUBLE,
    at_once_share=_DOUBLE,
    forwarded_share=_DOUBLE,
    idle_share=_DOUBLE,  # share of polls that returned no task
    backlog=_LONG,  # last value reported in the window
    backlog_max=_LONG,
    backlog_age_s_max=_DOUBLE,
    pollers_mean=_DOUBLE,
)

# One row for each partition and window with any activity.
TRAFFIC = StructType([*_TASK_QUEUE.fields, *struct(partition=_INT).fields, *_FLOW.fields])
# One row for each task queue and window, summed over the partitions.
TRAFFIC_LISTS = StructType(
    [
        *_TASK_QUEUE.fields,
        *_FLOW.fields,
        *struct(
            partitions=_LONG,
            skew=_DOUBLE,  # tasks of the busiest partition, divided by the mean
            skew_deviation=_DOUBLE,  # the standard deviation divided by the mean
        ).fields,
    ]
)
