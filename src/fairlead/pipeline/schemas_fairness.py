"""The tables of the `fairness` job. `window_us` is the beginning of a window, in µs since the epoch."""

from pyspark.sql.types import ArrayType, BooleanType, DoubleType, IntegerType, LongType, StringType, StructType

from fairlead.pipeline.schemas import struct

_LONG, _INT, _STRING, _DOUBLE = LongType(), IntegerType(), StringType(), DoubleType()

_WINDOW = struct(cluster=_STRING, namespace_id=_STRING, task_list=_STRING, task_type=_INT, window_us=_LONG)

# One row for each key that had tasks in a window, even if none was dispatched.
FAIRNESS_KEYS = StructType(
    [
        *_WINDOW.fields,
        *struct(
            fairness_key=_STRING,
            weight=_DOUBLE,
            backlog_before=_LONG,
            added=_LONG,
            dispatched=_LONG,
            share=_DOUBLE,  # share of all dispatched tasks
            weight_share=_DOUBLE,  # share of the weights of the keys that had tasks
            fair=_DOUBLE,  # dispatches due to the key by its weight and its tasks
            ratio=_DOUBLE,  # dispatched divided by fair
            wait_s_p50=_DOUBLE,
            wait_s_p95=_DOUBLE,
            wait_s_p99=_DOUBLE,
            is_starved=BooleanType(),
            is_flood=BooleanType(),
        ).fields,
    ]
)
# One row for each key and window with a record, from which later runs continue. Rows without a key are windows in which
# the task queue reported an empty backlog.
FAIRNESS_LEVELS = StructType(
    [
        *_WINDOW.fields,
        *struct(
            fairness_key=_STRING,
            weight=_DOUBLE,
            added=_LONG,
            dispatched=_LONG,
            backlog_before=_LONG,
            left=_LONG,  # backlog at the end of the window
            end_us=_LONG,  # end of the time for which this backlog waited
            is_empty=BooleanType(),
        ).fields,
    ]
)
# One row for each task queue and window in which a key had tasks.
FAIRNESS = StructType(
    [
        *_WINDOW.fields,
        *struct(
            keys=_LONG,
            dispatched=_LONG,
            jain=_DOUBLE,  # Jain index of the ratios: 1 is fair to all; 1/keys means one key got everything
            starved=_LONG,
            starved_tasks=_DOUBLE,  # dispatches that the starved keys missed
            starved_keys=ArrayType(_STRING, containsNull=False),  # worst first
            flood_key=_STRING,  # the flooding key with the most dispatches beyond its fair share
            flood_tasks=_DOUBLE,
            flood_added=_LONG,
        ).fields,
    ]
)
