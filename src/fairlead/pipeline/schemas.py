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

LONG, INT, STRING, DOUBLE, BOOL = LongType(), IntegerType(), StringType(), DoubleType(), BooleanType()


def struct(**fields: DataType) -> StructType:
    """A schema of nullable columns, in the order in which they are given."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])


TASK_RECORD = struct(
    time_us=LONG,
    kind=STRING,
    namespace_id=STRING,
    task_list=STRING,
    task_type=INT,
    partition=INT,
    host=STRING,
    fairness_key=STRING,
    weight=DOUBLE,
    priority=INT,
    **{"pass": LONG},
    was_sync=BOOL,
    was_forwarded=BOOL,
    wait_us=LONG,
    tasks=LONG,
    age_us=LONG,
    pollers=INT,
    read=INT,
    write=INT,
    version=LONG,
)

HISTORY_RECORD = struct(
    time_us=LONG,
    namespace_id=STRING,
    workflow_id=STRING,
    run_id=STRING,
    tree_id=STRING,
    branch_id=STRING,
    first_event_id=LONG,
    last_event_id=LONG,
    version=LONG,
    items=ArrayType(struct(event_id=LONG, version=LONG)),
    task_id=LONG,
    status=INT,
    event_types=ArrayType(INT),
    event_digests=ArrayType(STRING),
    signals=ArrayType(STRING),
    new_run_id=STRING,
    payload=STRING,
)

# Where a row came from: the segment's name, and how many records stand before it there.
_ORIGIN = struct(segment=STRING, position=LONG)
_PLACE = struct(cluster=STRING, day=DateType())

TASK = StructType(TASK_RECORD.fields + _ORIGIN.fields + _PLACE.fields)
HISTORY = StructType(HISTORY_RECORD.fields + _ORIGIN.fields + _PLACE.fields)

RECORDS = {"task": TASK_RECORD, "history": HISTORY_RECORD}
BRONZE = {"task": TASK, "history": HISTORY}
# A record without one of these is not what the journal promises.
REQUIRED = {
    "task": ("time_us", "kind", "namespace_id", "task_list", "task_type", "partition", "host"),
    "history": ("time_us", "namespace_id", "workflow_id", "run_id", "first_event_id", "last_event_id"),
}

# What the source adds to a record before the lake gives it its day. `fault` is null but in the one row that stands for
# a segment that can't be read: `position` is then how many records were read before the damage.
SOURCE_COLUMNS = StructType([*_ORIGIN.fields, *struct(cluster=STRING, fault=STRING).fields])
SOURCE = {kind: StructType(record.fields + SOURCE_COLUMNS.fields) for kind, record in RECORDS.items()}


def differences(*, expected: StructType, found: StructType) -> list[str]:
    """How two schemas differ, in words; the order of columns and whether nulls are allowed are left out."""
    wanted = {field.name: field.dataType.simpleString() for field in expected.fields}
    there = {field.name: field.dataType.simpleString() for field in found.fields}
    missing = [f"{name} is missing" for name in wanted if name not in there]
    extra = [f"{name} is not known" for name in there if name not in wanted]
    other = [
        f"{name} is {there[name]}, not {wanted[name]}"
        for name in wanted
        if there.get(name, wanted[name]) != wanted[name]
    ]
    return missing + extra + other
