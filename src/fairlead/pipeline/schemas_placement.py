"""The tables of the `placement` job. Batch size 0 is basic routing."""

from pyspark.sql.types import ArrayType, DoubleType, IntegerType, LongType, StringType

from fairlead.pipeline.schemas import struct

_LONG, _INT, _STRING, _DOUBLE = LongType(), IntegerType(), StringType(), DoubleType()

# The task queues to place, with the number of partitions and their total tasks per second.
LISTS = struct(namespace_id=_STRING, task_list=_STRING, task_type=_INT, partitions=_INT, qps=_DOUBLE)
# The same rows, with the hashes of the keys of every partition and of every batch of partitions.
HASHED = struct(
    namespace_id=_STRING,
    task_list=_STRING,
    task_type=_INT,
    partitions=_INT,
    qps=_DOUBLE,
    basic=ArrayType(_LONG, containsNull=False),
    batches=ArrayType(_LONG, containsNull=False),
)
# The contribution of one batch of task queues to the tables below; `what` names the table.
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
    together_max=_LONG,  # the most partitions of one task queue on one host, for the worst task queue
    together_mean=_DOUBLE,
    hosts_per_task_list=_DOUBLE,
)
PLACEMENT_HOSTS = struct(batch_size=_INT, host=_STRING, partitions=_LONG, qps=_DOUBLE)
# The task queues that put the highest load on one host, by tasks per second, then by partitions.
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
# Moves caused by a change: `leave HOST`, `join HOST`, or `batch size N` (a change from batch size N to this row's).
PLACEMENT_MOVES = struct(
    batch_size=_INT, change=_STRING, partitions=_LONG, partitions_share=_DOUBLE, qps=_DOUBLE, qps_share=_DOUBLE
)
# Progress of a gradual change to this batch size: partitions moved after a share of its duration.
PLACEMENT_TIMETABLE = struct(
    batch_size=_INT, change=_STRING, time_share=_DOUBLE, partitions=_LONG, partitions_moved=_LONG, moved_share=_DOUBLE
)
