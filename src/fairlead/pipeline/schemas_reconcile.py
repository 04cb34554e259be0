"""Schemas of the reconcile job: the kernel's input and output, and the tables."""

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

_LONG, _INT, _STRING, _BOOL = LongType(), IntegerType(), StringType(), BooleanType()


def _struct(fields: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


ITEM = _struct({"event_id": _LONG, "version": _LONG})
BRANCH = ArrayType(ITEM)
RUN_KEY = {"namespace_id": _STRING, "workflow_id": _STRING, "run_id": _STRING}

BATCH = _struct(
    {
        "cluster": _STRING,
        "tree_id": _STRING,
        "branch_id": _STRING,
        "first": _LONG,
        "last": _LONG,
        "version": _LONG,
        "task_id": _LONG,
        "time_us": _LONG,
        "status": _INT,
        "types_count": _INT,
        "digests": _STRING,
        "items": BRANCH,
        "signals": ArrayType(_STRING),
        "event_types": ArrayType(_INT),
        "arrived_us": _LONG,
        "payload_fault": _STRING,
    }
)
# `successors` are the ids of the runs that continue this run, whether or not those runs exist.
_CARRIED: dict[str, DataType] = {**RUN_KEY, "successors": ArrayType(_STRING)}
RUN_BATCHES = _struct({**_CARRIED, "expected": ArrayType(_STRING), "batches": ArrayType(BATCH)})

FINDING = _struct(
    {
        "kind": _STRING,
        "state": _STRING,
        "cluster": _STRING,
        "other": _STRING,
        "version": _LONG,
        "first_event_id": _LONG,
        "last_event_id": _LONG,
        "detail": _STRING,
    }
)
COPY = _struct(
    {
        "cluster": _STRING,
        "is_open": _BOOL,
        "is_overdue": _BOOL,
        "status": _INT,
        "last_event_id": _LONG,
        "last_version": _LONG,
        "events": _LONG,
        "first_us": _LONG,
        "last_us": _LONG,
        "tree_id": _STRING,
    }
)
PAIR = _struct(
    {
        "left": _STRING,
        "right": _STRING,
        "shared": _LONG,
        "only_left": _LONG,
        "only_right": _LONG,
        "different": _LONG,
        "late": _LONG,
        "not_comparable": _LONG,
    }
)
SEND = _struct(
    {
        "target": _STRING,
        "source": _STRING,
        "version": _LONG,
        "first_event_id": _LONG,
        "last_event_id": _LONG,
        "items": BRANCH,
        "kind": _STRING,
    }
)
LOST_SIGNAL = _struct({"signal": _STRING, "event_id": _LONG, "version": _LONG})

_SUMMARY: dict[str, DataType] = {
    "branches": ArrayType(BRANCH),
    "drawing": _STRING,
    "ancestor": ITEM,
    "disagreeing": ArrayType(_STRING),
    "status": _INT,
    "is_open": _BOOL,
    "last_event_id": _LONG,
    "last_version": _LONG,
    "first_us": _LONG,
    "last_us": _LONG,
    "findings": ArrayType(FINDING),
}
JUDGED = _struct(
    {
        **_CARRIED,
        **_SUMMARY,
        "copies": ArrayType(COPY),
        "pairs": ArrayType(PAIR),
        "sends": ArrayType(SEND),
        "current_signals": ArrayType(_STRING),
        "lost_signals": ArrayType(LOST_SIGNAL),
        "opened_age_us": _LONG,
        "last_age_us": _LONG,
    }
)
# Findings that need several runs of a workflow id.
FOUND = _struct({**RUN_KEY, "finding": FINDING})

# The first of `branches` is the current one; `verdict` is agreed, late, not_comparable, expired or wrong.
VERDICTS = _struct(
    {**RUN_KEY, "verdict": _STRING, "kinds": ArrayType(_STRING), **_SUMMARY, "clusters": ArrayType(_STRING)}
)
PAIRS = _struct(
    {
        "namespace_id": _STRING,
        "left": _STRING,
        "right": _STRING,
        "runs": _LONG,
        "runs_equal": _LONG,
        "runs_only_left": _LONG,
        "runs_only_right": _LONG,
        "events_shared": _LONG,
        "events_only_left": _LONG,
        "events_only_right": _LONG,
        "events_different": _LONG,
        "events_late": _LONG,
        "events_not_comparable": _LONG,
    }
)
# `items` is the branch of the events, up to the last of them.
REPAIR_PLAN = _struct(
    {
        **RUN_KEY,
        "target": _STRING,
        "source": _STRING,
        "version": _LONG,
        "first_event_id": _LONG,
        "last_event_id": _LONG,
        "items": BRANCH,
        "kind": _STRING,
    }
)
