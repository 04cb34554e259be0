"""The tables of the `fairness` job. A window is named by its beginning, in µs of the epoch."""

from pyspark.sql.types import ArrayType, BooleanType, DoubleType, IntegerType, LongType, StringType, StructType

from fairlead.pipeline.schemas import struct

_LONG, _INT, _STRING, _DOUBLE = LongType(), IntegerType(), StringType(), DoubleType()

_WINDOW = struct(cluster=_STRING, namespace_id=_STRING, task_list=_STRING, task_type=_INT, window_us=_LONG)

# One row for each key that had work in a window, also where none of it was dispatched.
FAIRNESS_KEYS = StructType(
    [
        *_WINDOW.fields,
        *struct(
            fairness_key=_STRING,
            weight=_DOUBLE,
            backlog_before=_LONG,
            added=_LONG,
            dispatched=_LONG,
            share=_DOUBLE,  # of all that was dispatched
            weight_share=_DOUBLE,  # of the weights of the keys that had work
            fair=_DOUBLE,  # what the key would have got by its weight and what it had
            ratio=_DOUBLE,  # dispatched over fair
            wait_s_p50=_DOUBLE,
            wait_s_p95=_DOUBLE,
            wait_s_p99=_DOUBLE,
            is_starved=BooleanType(),
            is_flood=BooleanType(),
        ).fields,
    ]
)
# One row for each task list and window in which a key had work.
FAIRNESS = StructType(
    [
        *_WINDOW.fields,
        *struct(
            keys=_LONG,
            dispatched=_LONG,
            jain=_DOUBLE,  # of the ratios: 1 is fair to all, 1/keys is all to one
            starved=_LONG,
            starved_tasks=_DOUBLE,  # what the starved keys should have got and did not
            starved_keys=ArrayType(_STRING, containsNull=False),  # the worst first
            flood_key=_STRING,  # of the keys that are floods, what got most beyond its due
            flood_tasks=_DOUBLE,
            flood_added=_LONG,
        ).fields,
    ]
)
