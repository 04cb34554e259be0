"""The schemas of what the journal records, as contracts: asserted where rows come in and where they are written."""

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

SCHEMA_VERSION = 1

_LONG, _INT, _STRING, _DOUBLE, _BOOL = LongType(), IntegerType(), StringType(), DoubleType(), BooleanType()


def struct(**fields: DataType) -> StructType:
    """A schema of nullable columns, in the order in which they are given."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])


TASK_RECORD = struct(
    time_us=_LONG,
    kind=_STRING,
    namespace_id=_STRING,
    task_list=_STRING,
    task_type=_INT,
    partition=_INT,
    host=_STRING,
    fairness_key=_STRING,
    weight=_DOUBLE,
    priority=_INT,
    **{"pass": _LONG},
    was_sync=_BOOL,
    was_forwarded=_BOOL,
    wait_us=_LONG,
    tasks=_LONG,
    age_us=_LONG,
    pollers=_INT,
    read=_INT,
    write=_INT,
    version=_LONG,
)

HISTORY_RECORD = struct(
    time_us=_LONG,
    namespace_id=_STRING,
    workflow_id=_STRING,
    run_id=_STRING,
    tree_id=_STRING,
    branch_id=_STRING,
    first_event_id=_LONG,
    last_event_id=_LONG,
    version=_LONG,
    items=ArrayType(struct(event_id=_LONG, version=_LONG)),
    task_id=_LONG,
    status=_INT,
    event_types=ArrayType(_INT),
    event_digests=ArrayType(_STRING),
    signals=ArrayType(_STRING),
    new_run_id=_STRING,
    payload=_STRING,
)

# Where a row came from: the segment's name, and how many records stand before it there.
_ORIGIN = struct(segment=_STRING, position=_LONG)
_PLACE = struct(cluster=_STRING, day=DateType())

TASK = StructType(TASK_RECORD.fields + _ORIGIN.fields + _PLACE.fields)
HISTORY = StructType(HISTORY_RECORD.fields + _ORIGIN.fields + _PLACE.fields)

RECORDS = {"task": TASK_RECORD, "history": HISTORY_RECORD}
BRONZE = {"task": TASK, "history": HISTORY}
# A record without one of these is not what the journal promises.
REQUIRED = {
    "task": ("time_us", "kind", "namespace_id"),
    "history": ("time_us", "namespace_id", "workflow_id", "run_id", "first_event_id", "last_event_id"),
}

# What the source adds to a record before the lake gives it its day. `fault` is null but in the one row that stands for
# a segment that can't be read: `position` is then how many records were read before the damage.
SOURCE_COLUMNS = StructType(_ORIGIN.fields + [StructField("cluster", _STRING), StructField("fault", _STRING)])
SOURCE = {kind: StructType(record.fields + SOURCE_COLUMNS.fields) for kind, record in RECORDS.items()}


def differences(*, expected: StructType, found: StructType) -> list[str]:
    """How two schemas differ, in words; the order of columns and whether nulls are allowed are left out."""
    wanted = {field.name: field.dataType.simpleString() for field in expected.fields}
    there = {field.name: field.dataType.simpleString() for field in found.fields}
    missing = [f"{name} is missing" for name in wanted if name not in there]
    extra = [f"{name} is not known" for name in there if name not in wanted]
    other = [f"{name} is {there[name]}, not {wanted[name]}" for name in wanted if there.get(name, wanted[name]) != wanted[name]]
    return missing + extra + other
