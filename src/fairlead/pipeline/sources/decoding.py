"""From the bytes of a segment to Arrow batches, or to the reason why there are none. Runs in Python workers."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import zstandard

READ_BYTES = 1 << 18
# What is parsed at once: a frame of a busy server is about as large, those of a quiet one are put together.
BLOCK_BYTES = 2 << 20
FRAME_BYTES_MAX = 512 << 20
FRAME_HEADER_BYTES_MAX = 18
# From 1970 to 2200: another time would be no time, and a folder of its own.
TIME_US_MAX = 7_258_118_400_000_000


class Fault(StrEnum):
    """Why a segment can't be read."""

    EMPTY = "empty"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"
    UNCHECKED = "unchecked"
    TOO_LARGE = "too_large"
    NOT_RECORDS = "not_records"
    INCOMPLETE = "incomplete"
    NO_EXPORT = "no_export"
    CUT_EXPORT = "cut_export"
    NO_RUN = "no_run"


REASONS = {
    Fault.EMPTY: "it has no frame",
    Fault.TRUNCATED: "it ends within a frame",
    Fault.DAMAGED: "a frame is damaged",
    Fault.UNCHECKED: "a frame has no checksum",
    Fault.TOO_LARGE: f"a frame is larger than {FRAME_BYTES_MAX >> 20} MB",
    Fault.NOT_RECORDS: "a line is no JSON object with the fields of the schema",
    Fault.INCOMPLETE: "a record lacks a field that all have, or its time is none",
    Fault.NO_EXPORT: "it is no export of histories, or damaged",
    Fault.CUT_EXPORT: "it ends within a history",
    Fault.NO_RUN: "a history in it is not that of a run from its first event on",
}


class Faulty(Exception):
    """The segment can't be read on."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(REASONS[fault])
        self.fault = fault


def read_frames(file: BinaryIO) -> Iterator[bytes]:
    """The content of each frame, once its checksum was found right."""
    left = file.read(READ_BYTES)
    if not left:
        raise Faulty(Fault.EMPTY)
    while left:
        if len(left) < FRAME_HEADER_BYTES_MAX:
            left += file.read(READ_BYTES)
        content, left = _read_frame(file, left)
        yield content
        left = left or file.read(READ_BYTES)


def _read_frame(file: BinaryIO, chunk: bytes) -> tuple[bytes, bytes]:
    """The frame that begins with the chunk, and the bytes that were read beyond it."""
    try:
        has_checksum = zstandard.get_frame_parameters(chunk).has_checksum
    except zstandard.ZstdError:
        raise Faulty(Fault.TRUNCATED if len(chunk) < FRAME_HEADER_BYTES_MAX else Fault.DAMAGED) from None
    if not has_checksum:
        raise Faulty(Fault.UNCHECKED)
    frame = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        try:
            parts.append(frame.decompress(chunk))
        except zstandard.ZstdError:
            raise Faulty(Fault.DAMAGED) from None
        size_bytes += len(parts[-1])
        if size_bytes > FRAME_BYTES_MAX:
            raise Faulty(Fault.TOO_LARGE)
        if frame.eof:
            break
        chunk = file.read(READ_BYTES)
        if not chunk:
            raise Faulty(Fault.TRUNCATED)
    return b"".join(parts), frame.unused_data


def _read_blocks(file: BinaryIO) -> Iterator[bytes]:
    """The same bytes in blocks of whole lines."""
    held: list[bytes] = []
    size_bytes = 0
    faulty: Faulty | None = None
    try:
        for content in read_frames(file):
            held.append(content)
            size_bytes += len(content)
            if size_bytes >= BLOCK_BYTES and content.endswith(b"\n"):
                yield b"".join(held)
                held, size_bytes = [], 0
    except Faulty as found:
        faulty = found
    # Before the fault, so that the records that precede it are counted.
    if size_bytes:
        yield b"".join(held)
    if faulty:
        raise faulty


def read_records(path: Path, schema: pa.Schema, required: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The records of a segment in their order; raises `Faulty` where it can't be read on."""
    with path.open("rb", buffering=0) as file:
        for block in _read_blocks(file):
            try:
                records = pyarrow.json.read_json(
                    pa.BufferReader(block),
                    pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
                    # A field that this release does not know does not keep it from reading the others.
                    pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
                )
            except pa.ArrowInvalid:
                raise Faulty(Fault.NOT_RECORDS) from None
            _check_complete(records, required)
            yield from records.combine_chunks().to_batches()


def _check_complete(records: pa.Table, required: Sequence[str]) -> None:
    if any(records.column(name).null_count for name in required):
        raise Faulty(Fault.INCOMPLETE)
    times = pc.min_max(records.column("time_us")).as_py()
    if records.num_rows and not 0 <= times["min"] <= times["max"] < TIME_US_MAX:
        raise Faulty(Fault.INCOMPLETE)


def read_rows(
    path: Path, *, cluster: str, record: pa.Schema, required: Sequence[str], row: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of the source: the records with their origin; of a faulty segment a last row says so.

    What came before that row is not to be used: nobody knows what else is wrong with the segment.
    """
    position = 0
    try:
        for batch in read_records(path, record, required):
            yield _with_origin(batch, row, segment=path.name, cluster=cluster, position=position)
            position += batch.num_rows
    except Faulty as faulty:
        yield fault_row(faulty, row, segment=path.name, cluster=cluster, position=position)


def fault_row(faulty: Faulty, row: pa.Schema, *, segment: str, cluster: str, position: int) -> pa.RecordBatch:
    """The row that stands for a segment that can't be read: so many sound records came before."""
    nothing = {name: pa.nulls(1, kind) for name, kind in zip(row.names, row.types, strict=True)}
    said = {
        "segment": pa.array([segment]),
        "position": pa.array([position]),
        "cluster": pa.array([cluster]),
        "fault": pa.array([faulty.fault.value]),
    }
    return pa.RecordBatch.from_pydict(nothing | said, schema=row)


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
