"""The tables of the `traffic` job. A window is named by its beginning, in µs of the epoch."""

from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructType

from fairlead.pipeline.schemas import struct

_LONG, _INT, _STRING, _DOUBLE = LongType(), IntegerType(), StringType(), DoubleType()

_TASK_LIST = struct(cluster=_STRING, namespace_id=_STRING, task_list=_STRING, task_type=_INT)
_FLOW = struct(
    window_us=_LONG,
    added=_LONG,
    matched=_LONG,
    matched_at_once=_LONG,
    matched_forwarded=_LONG,
    forwarded=_LONG,  # offers to the parent, whether they led to a match or not
    polls_empty=_LONG,
    write_qps=_DOUBLE,
    dispatch_qps=_DOUBLE,
    wait_s_p50=_DOUBLE,
    wait_s_p95=_DOUBLE,
    wait_s_p99=_DOUBLE,
    at_once_share=_DOUBLE,
    forwarded_share=_DOUBLE,
    idle_share=_DOUBLE,  # of the polls, those that were answered empty
    backlog=_LONG,  # when last told in the window
    backlog_max=_LONG,
    backlog_age_s_max=_DOUBLE,
    pollers_mean=_DOUBLE,
)

# One row for each partition and window in which anything happened there.
TRAFFIC = StructType([*_TASK_LIST.fields, *struct(partition=_INT).fields, *_FLOW.fields])
# The same for all partitions of a task list together.
TRAFFIC_LISTS = StructType(
    [
        *_TASK_LIST.fields,
        *_FLOW.fields,
        *struct(
            partitions=_LONG,
            skew=_DOUBLE,  # what the busiest partition got, over what they got on average
            skew_deviation=_DOUBLE,  # the standard deviation over the average
        ).fields,
    ]
)
