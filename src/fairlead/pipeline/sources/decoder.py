"""Decodes a segment into Arrow batches, or finds the reason why it can't be read. Runs in Python workers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from fairlead.journal import Happening
from fairlead.journal.frames import BadFrame, read_frames
from fairlead.pipeline.sources.faults import Fault, Faulty, check_times

# Bytes parsed at once: about one frame of a busy server, or several small frames of an idle one.
BLOCK_BYTES = 2 << 20
# Upper bound of a record's time, in µs: the year 2200. Later times are invalid; each would make another day folder.
TIME_US_MAX = 7_258_118_400_000_000
# Maximum number and length of the unknown names that are reported for one segment.
UNKNOWN_NAMES_MAX = 100
UNKNOWN_NAME_CHARACTERS_MAX = 64
OTHER_NAMES = "(others)"


class Note(StrEnum):
    """Kinds of content of a readable segment that this release does not know."""

    UNKNOWN_FIELD = "unknown_field"
    UNKNOWN_KIND = "unknown_kind"


Unknown = Counter[tuple[Note, str]]


def _read_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a segment in blocks of whole lines."""
    held: list[bytes] = []
    size_bytes = 0
    is_empty = True
    faulty: Faulty | None = None
    try:
        for content, _ in read_frames(file):
            is_empty = False
            held.append(content)
            size_bytes += len(content)
            if size_bytes >= BLOCK_BYTES and content.endswith(b"\n"):
                yield b"".join(held)
                held, size_bytes = [], 0
        if is_empty:
            faulty = Faulty(Fault.EMPTY)
    except BadFrame as found:
        faulty = Faulty(Fault(found.fault.value))
    # Yield the records before the fault, so that they are counted.
    if size_bytes:
        yield b"".join(held)
    if faulty:
        raise faulty


def read_records(
    path: Path, schema: pa.Schema, required: Sequence[str], *, unknown: Unknown | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a segment in order; raise `Faulty` at the first fault.

    `unknown` counts the records by field or kind that this release does not know.
    """
    unknown = Counter() if unknown is None else unknown
    with path.open("rb", buffering=0) as file:
        for block in _read_blocks(file):
            records = _parse(block, schema, unknown)
            _check_complete(records, required)
            _count_kinds(records, unknown)
            yield from records.combine_chunks().to_batches()


def _parse(block: bytes, schema: pa.Schema, unknown: Unknown) -> pa.Table:
    try:
        return _read_json(block, schema, unexpected="error")
    except pa.ArrowInvalid:
        pass
    try:
        # Ignore unknown fields, and read the others.
        records = _read_json(block, schema, unexpected="ignore")
    except pa.ArrowInvalid:
        raise Faulty(Fault.NOT_RECORDS) from None
    _count_fields(block, schema, unknown)
    return records


def _read_json(block: bytes, schema: pa.Schema, *, unexpected: str) -> pa.Table:
    return pyarrow.json.read_json(
        pa.BufferReader(block),
        pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


def _count_fields(block: bytes, schema: pa.Schema, unknown: Unknown) -> None:
    """Count records by fields that the schema does not have; fields within `items` are named `items.<name>`."""
    known = set(schema.names)
    for line in block.splitlines():
        record = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        names = record.keys() - known
        if "items" in record and "items" in known:
            items = msgspec.json.decode(record["items"], type=list[dict[str, msgspec.Raw]] | None) or []
            names |= {f"items.{name}" for item in items for name in item.keys() - {"event_id", "version"}}
        for name in names:
            _count(unknown, Note.UNKNOWN_FIELD, name, 1)


def _count_kinds(records: pa.Table, unknown: Unknown) -> None:
    if "kind" not in records.schema.names:
        return
    kinds = records.column("kind")
    others = kinds.filter(pc.invert(pc.is_in(kinds, value_set=pa.array([*Happening], pa.string()))))
    for found in pc.value_counts(others).to_pylist():
        _count(unknown, Note.UNKNOWN_KIND, found["values"], found["counts"])


def _count(unknown: Unknown, note: Note, name: str, records: int) -> None:
    key = note, name[:UNKNOWN_NAME_CHARACTERS_MAX]
    if key not in unknown and len(unknown) >= UNKNOWN_NAMES_MAX:
        key = note, OTHER_NAMES
    unknown[key] += records


def _check_complete(records: pa.Table, required: Sequence[str]) -> None:
    if any(records.column(name).null_count for name in required):
        raise Faulty(Fault.INCOMPLETE)
    times = pc.min_max(records.column("time_us")).as_py()
    if records.num_rows and not 0 <= times["min"] <= times["max"] < TIME_US_MAX:
        raise Faulty(Fault.INCOMPLETE)


def read_rows(
    path: Path, *, cluster: str, record: pa.Schema, required: Sequence[str], row: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment: its records with their origin; a last row reports the fault of a faulty segment.

    Rows before a fault must not be used: other parts of the segment may be wrong, too. After the rows of a sound
    segment, further rows report unknown names: `fault` is a `Note`, `namespace_id` the name, `position` the number of
    records.
    """
    position = 0
    unknown: Unknown = Counter()
    try:
        for batch in read_records(path, record, required, unknown=unknown):
            if batch.num_rows:
                times = pc.min_max(batch.column("time_us")).as_py()
                check_times(times["min"], times["max"])
            yield _with_origin(batch, row, segment=path.name, cluster=cluster, position=position)
            position += batch.num_rows
    except Faulty as faulty:
        yield fault_row(faulty, row, segment=path.name, cluster=cluster, position=position)
    else:
        for (note, name), records in unknown.items():
            yield _row(row, segment=path.name, cluster=cluster, position=records, fault=note, namespace_id=name)


def fault_row(faulty: Faulty, row: pa.Schema, *, segment: str, cluster: str, position: int) -> pa.RecordBatch:
    """Return the row that represents an unreadable segment, after `position` sound records."""
    return _row(row, segment=segment, cluster=cluster, position=position, fault=faulty.fault.value)


def _row(row: pa.Schema, **values: str | int) -> pa.RecordBatch:
    nothing = {name: pa.nulls(1, kind) for name, kind in zip(row.names, row.types, strict=True)}
    return pa.RecordBatch.from_pydict(nothing | {name: pa.array([value]) for name, value in values.items()}, schema=row)


def _with_origin(batch: pa.RecordBatch, row: pa.Schema, *, segment: str, cluster: str, position: int) -> pa.RecordBatch:
    count = batch.num_rows
    origin = {
        "segment": pa.repeat(segment, count),
        "position": pa.array(np.arange(position, position + count, dtype=np.int64)),
        "cluster": pa.repeat(cluster, count),
        "fault": pa.nulls(count, pa.string()),
    }
    records = dict(zip(batch.schema.names, batch.columns, strict=True))
    return pa.RecordBatch.from_pydict(records | origin, schema=row)
