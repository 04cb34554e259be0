"""The schemas of the journal's records, as contracts: checked when rows are read and when they are written."""

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
    """Return a schema of nullable columns, in this order."""
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
    namespace=STRING,
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
    namespace=STRING,
    outline=STRING,
)

AUDIT_RECORD = struct(
    time_us=LONG,
    method=STRING,
    host=STRING,
    is_allowed=BOOL,
    principal_kind=STRING,
    principal=STRING,
    namespace=STRING,
    object=STRING,
    reason=STRING,
    peer=STRING,
    left_out=LONG,
    first_us=LONG,
)

# Origin of a row: the segment's name, and the number of records before it in the segment.
_ORIGIN = struct(segment=STRING, position=LONG)
_PLACE = struct(cluster=STRING, day=DateType())

TASK = StructType(TASK_RECORD.fields + _ORIGIN.fields + _PLACE.fields)
HISTORY = StructType(HISTORY_RECORD.fields + _ORIGIN.fields + _PLACE.fields)

RECORDS = {"task": TASK_RECORD, "history": HISTORY_RECORD, "audit": AUDIT_RECORD}
# Tables of the lake. The audit is not one of them: `sources.audit` reads it from the journal.
BRONZE = {"task": TASK, "history": HISTORY}
# Fields that every valid record of the journal has.
REQUIRED = {
    "task": ("time_us", "kind", "namespace_id", "task_list", "task_type", "partition", "host"),
    "history": ("time_us", "namespace_id", "workflow_id", "run_id", "first_event_id", "last_event_id"),
    "audit": ("time_us", "method", "host", "is_allowed"),
}

# Columns that the source adds to a record; the lake adds the day later. `fault` is only set in the single row that
# represents an unreadable segment; `position` is then the number of records before the damage.
SOURCE_COLUMNS = StructType([*_ORIGIN.fields, *struct(cluster=STRING, fault=STRING).fields])
SOURCE = {kind: StructType(record.fields + SOURCE_COLUMNS.fields) for kind, record in RECORDS.items()}


def conflicts(table: str, found: StructType) -> list[str]:
    """Describe why this release can't read a table with the schema `found`; empty if it can.

    A column that the lake lacks is read as null, unless every record needs it. Columns of a newer release are not read.
    """
    there = {field.name: field.dataType.simpleString() for field in found.fields}
    wanted = {field.name: field.dataType.simpleString() for field in BRONZE[table].fields}
    needed = (*REQUIRED[table], *_ORIGIN.names, *_PLACE.names)
    missing = [f"{name} is missing" for name in needed if name not in there]
    other = [f"{name} is {there[name]}, not {kind}" for name, kind in wanted.items() if there.get(name, kind) != kind]
    return missing + other


def united(found: StructType, newer: StructType) -> StructType:
    """Return the columns of `found`, followed by those that only `newer` has."""
    return StructType([*found.fields, *(field for field in newer.fields if field.name not in found.names)])
