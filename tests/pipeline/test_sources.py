"""Reading segments returns what was written, and never returns damaged data."""

import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from fairlead.journal import HistoryRecord, Kind, TaskRecord, encode_records, frames
from fairlead.pipeline.schemas import HISTORY_RECORD, RECORDS, REQUIRED, SOURCE, TASK_RECORD
from fairlead.pipeline.sources import decoder
from fairlead.pipeline.sources.decoder import read_records, read_rows
from fairlead.pipeline.sources.faults import Fault, Faulty
from fairlead.pipeline.sources.journal import rows_of, segments_at_rest
from fairlead.pipeline.sources.segments import find_segments
from tests.pipeline.journals import frames_of, history_records, task_records, write_segment

RECORD = to_arrow_schema(TASK_RECORD)


def read(path: Path, kind: str = "task") -> list[dict[str, object]]:
    batches = read_records(path, to_arrow_schema(RECORDS[kind]), REQUIRED[kind])
    return [row for batch in batches for row in batch.to_pylist()]


def fault_of(path: Path) -> Fault | None:
    try:
        read(path)
    except Faulty as faulty:
        return faulty.fault
    return None


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    records = [*task_records(250), *task_records(3, fairness_key="käse\u2028", **{"pass": 2**62}, weight=0.25)]
    nothing = dict.fromkeys(TASK_RECORD.names)
    assert read(write_segment(tmp_path, records)) == [nothing | dict(record) for record in records]
    batches = history_records(30, signals=[], new_run_id="next")
    nothing = dict.fromkeys(HISTORY_RECORD.names)
    path = write_segment(tmp_path, batches, kind="history")
    assert read(path, "history") == [nothing | dict(record) for record in batches]


def test_the_servers_records_have_the_fields_of_the_schema(tmp_path: Path) -> None:
    record = TaskRecord(1, "backlog", "shop", "orders", 1, 0, "host", pass_number=3, tasks=7, age_us=9, pollers=1)
    path = write_segment(tmp_path, zstandard.ZstdCompressor(write_checksum=True).compress(encode_records([record])))
    [row] = read(path)
    assert (row["pass"], row["tasks"], row["age_us"], row["pollers"], row["kind"]) == (3, 7, 9, 1, "backlog")
    for record_type, schema in ((TaskRecord, TASK_RECORD), (HistoryRecord, HISTORY_RECORD)):
        assert [field.encode_name for field in msgspec.structs.fields(record_type)] == schema.names
    assert set(RECORDS) == set(Kind)


def test_a_field_of_a_later_release_is_ignored(tmp_path: Path) -> None:
    assert len(read(write_segment(tmp_path, task_records(5, colour={"deep": [1]})))) == 5


def test_blocks_are_cut_at_whole_lines_wherever_frames_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "BLOCK_BYTES", 100)
    lines = b"".join(json.dumps(record).encode() + b"\n" for record in task_records(40))
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    pieces = b"".join(compress(lines[begin : begin + 333]) for begin in range(0, len(lines), 333))
    assert len(read(write_segment(tmp_path, pieces))) == 40
    assert len(read(write_segment(tmp_path, compress(lines.rstrip())))) == 40


def test_every_truncation_inside_a_frame_is_found(tmp_path: Path) -> None:
    frames = [frames_of(task_records(20, start_us=begin)) for begin in (1, 2, 3)]
    whole = b"".join(frames)
    ends = {len(frames[0]), len(frames[0]) + len(frames[1]), len(whole)}
    for size in range(1, len(whole) + 1):
        fault = fault_of(write_segment(tmp_path, whole[:size]))
        assert fault is (None if size in ends else Fault.TRUNCATED), size
    assert fault_of(write_segment(tmp_path, b"")) is Fault.EMPTY


@given(data=st.data())
def test_a_flipped_bit_never_changes_a_row(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    whole = frames_of(task_records(60), frame_records=20)
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    try:
        rows = read(write_segment(folder, bytes(flipped)))
    except Faulty:
        return
    # The changed bit was in an unused part of a frame's header: the records are the same.
    assert rows == read(write_segment(folder, whole))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (frames_of(task_records(3), has_checksum=False), Fault.UNCHECKED),
        (b"not a frame of any kind at all", Fault.DAMAGED),
        (frames_of(task_records(3)) + b"more bytes than there should be", Fault.DAMAGED),
        (frames_of(task_records(3, wait_us=1.5)), Fault.NOT_RECORDS),
        (frames_of(task_records(3, partition=2**31)), Fault.NOT_RECORDS),
        (zstandard.ZstdCompressor(write_checksum=True).compress(b'{"time_us": 1, "kind'), Fault.NOT_RECORDS),
        (zstandard.ZstdCompressor(write_checksum=True).compress(b"[1, 2]\n"), Fault.NOT_RECORDS),
        (frames_of([{"kind": "added", "namespace_id": "n"}]), Fault.INCOMPLETE),
        (frames_of(task_records(1, start_us=-1)), Fault.INCOMPLETE),
        (frames_of(task_records(1, start_us=2**62)), Fault.INCOMPLETE),
    ],
)
def test_every_fault_has_its_name(tmp_path: Path, content: bytes, fault: Fault) -> None:
    assert fault_of(write_segment(tmp_path, content)) is fault


def test_a_frame_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FRAME_BYTES_MAX", 1000)
    assert fault_of(write_segment(tmp_path, task_records(100))) is Fault.TOO_LARGE


def test_the_last_row_of_a_faulty_segment_names_the_fault(tmp_path: Path) -> None:
    path = write_segment(tmp_path, frames_of(task_records(250))[:-3])
    row = to_arrow_schema(SOURCE["task"])
    batches = list(read_rows(path, cluster="alpha", record=RECORD, required=REQUIRED["task"], row=row))
    rows = pa.Table.from_batches(batches).to_pylist()
    assert [row["position"] for row in rows] == [*range(200), 200]
    assert {row["fault"] for row in rows[:-1]} == {None}
    last = {name: value for name, value in rows[-1].items() if value is not None}
    assert last == {"segment": path.name, "position": 200, "cluster": "alpha", "fault": "truncated"}


def test_only_sealed_segments_are_found(tmp_path: Path) -> None:
    sealed = [write_segment(tmp_path, task_records(1), number=number, cluster="beta") for number in (3, 1)]
    other = write_segment(tmp_path, history_records(1), kind="history", cluster="alpha")
    (tmp_path / "alpha" / "task.v1.host-1.000000000009.jsonl.zst.open").write_bytes(b"")
    (tmp_path / "alpha" / "position.json").write_text("{}")
    (tmp_path / "alpha" / "picture.zst").write_text("")
    (tmp_path / "_tmp").mkdir()
    assert [segment.path for segment in find_segments(tmp_path)] == [other, sealed[1], sealed[0]]
    assert [segment.path for segment in find_segments(tmp_path, ["history"])] == [other]


def test_spark_reads_segments_in_parallel(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        write_segment(tmp_path, task_records(100), number=number)
    rows = segments_at_rest(spark, find_segments(tmp_path)).transform(rows_of, "task")
    assert rows.schema == SOURCE["task"]
    counts = rows.groupBy("segment").count().collect()
    assert [row["count"] for row in counts] == [100] * 4
