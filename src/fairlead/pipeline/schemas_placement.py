"""The tables of the `placement` job. Batch size 0 is basic routing."""

from pyspark.sql.types import ArrayType, DoubleType, IntegerType, LongType, StringType

from fairlead.pipeline.schemas import struct

_LONG, _INT, _STRING, _DOUBLE = LongType(), IntegerType(), StringType(), DoubleType()

# The task lists to place: how many partitions, and what all of them together get.
LISTS = struct(namespace_id=_STRING, task_list=_STRING, task_type=_INT, partitions=_INT, qps=_DOUBLE)
# The same with the hashes of the keys: of every partition, and of every batch of partitions.
HASHED = struct(
    namespace_id=_STRING,
    task_list=_STRING,
    task_type=_INT,
    partitions=_INT,
    qps=_DOUBLE,
    basic=ArrayType(_LONG, containsNull=False),
    batches=ArrayType(_LONG, containsNull=False),
)
# What one batch of task lists adds to the tables below; `what` says to which.
PARTIAL = struct(
    what=_STRING,
    batch_size=_INT,
    change=_STRING,
    host=_STRING,
    step=_INT,
    namespace_id=_STRING,
    task_list=_STRING,
    task_type=_INT,
    partitions=_LONG,
    qps=_DOUBLE,
    task_lists=_LONG,
    most=_LONG,
    hosts=_LONG,
)

PLACEMENT = struct(
    batch_size=_INT,
    task_lists=_LONG,
    partitions=_LONG,
    hosts=_LONG,
    partitions_max=_LONG,  # of the fullest host
    partitions_over_mean=_DOUBLE,
    qps_max=_DOUBLE,  # of the busiest host
    qps_over_mean=_DOUBLE,
    together_max=_LONG,  # of the partitions of one task list, the most on one host: of the worst task list
    together_mean=_DOUBLE,
    hosts_per_task_list=_DOUBLE,
)
PLACEMENT_HOSTS = struct(batch_size=_INT, host=_STRING, partitions=_LONG, qps=_DOUBLE)
# The task lists that put most on one host, by tasks a second and then by partitions.
PLACEMENT_SPOTS = struct(
    batch_size=_INT,
    rank=_INT,
    namespace_id=_STRING,
    task_list=_STRING,
    task_type=_INT,
    host=_STRING,
    partitions=_LONG,
    qps=_DOUBLE,
)
# What a change moves: `leave HOST`, `join HOST`, or `batch size N`, from which to this one.
PLACEMENT_MOVES = struct(
    batch_size=_INT, change=_STRING, partitions=_LONG, partitions_share=_DOUBLE, qps=_DOUBLE, qps_share=_DOUBLE
)
# A gradual change to this batch size: what has moved when a share of its time is over.
PLACEMENT_TIMETABLE = struct(
    batch_size=_INT, change=_STRING, time_share=_DOUBLE, partitions=_LONG, partitions_moved=_LONG, moved_share=_DOUBLE
)
