from pathlib import Path

import msgspec
import pytest
import zstandard

from fairlead.journal import (
    BadSegment,
    Kind,
    NoSegment,
    SegmentName,
    TaskRecord,
    UnknownSchema,
    encode_records,
    read_segment,
    recover,
)
from fairlead.journal.segments import OpenSegment, host_slug

NAME = SegmentName(Kind.TASK, "host-1", 7)


def frame(first: int, count: int) -> bytes:
    records = [
        TaskRecord(number, "added", "ns", "orders", 2, 0, "host:1", "key", 1.0, 3)
        for number in range(first, first + count)
    ]
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(encode_records(records))


def numbers(path: Path) -> list[int]:
    return [record["time_us"] for record in read_segment(path)]


def begin(folder: Path) -> OpenSegment:
    segment = OpenSegment.create(folder, NAME)
    assert segment is not None
    return segment


def test_written_records_are_read_back_without_empty_fields(tmp_path: Path) -> None:
    segment = begin(tmp_path)
    segment.append(frame(0, 3))
    segment.append(frame(3, 2))
    segment.sync()
    segment.seal()
    (path,) = tmp_path.iterdir()
    assert path.name == "task.v1.host-1.000000000007.jsonl.zst"
    assert numbers(path) == [0, 1, 2, 3, 4]
    assert next(read_segment(path)) == {
        "time_us": 0,
        "kind": "added",
        "namespace_id": "ns",
        "task_list": "orders",
        "task_type": 2,
        "partition": 0,
        "host": "host:1",
        "fairness_key": "key",
        "weight": 1.0,
        "priority": 3,
    }


def test_the_pass_number_is_written_as_pass() -> None:
    record = TaskRecord(1, "acked", "ns", "orders", 2, 0, "h", pass_number=5)
    assert msgspec.json.decode(encode_records([record]))["pass"] == 5


def test_a_file_cut_at_any_byte_keeps_all_frames_before_the_cut(tmp_path: Path) -> None:
    frames = [frame(0, 3), frame(3, 3), frame(6, 3)]
    whole = b"".join(frames)
    ends = [0, len(frames[0]), len(frames[0]) + len(frames[1]), len(whole)]
    for cut in range(len(whole) + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / f"{NAME}.open").write_bytes(whole[:cut])
        safe = max(end for end in ends if end <= cut)
        expected = list(range(3 * ends.index(safe)))
        assert numbers(folder / f"{NAME}.open") == expected
        sealed = recover(folder)
        assert [path.name for path in folder.iterdir()] == ([str(NAME)] if expected else [])
        assert sealed == ([folder / str(NAME)] if expected else [])
        if expected:
            assert numbers(folder / str(NAME)) == expected
            assert (folder / str(NAME)).stat().st_size == safe


def test_garbage_after_the_last_frame_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.open").write_bytes(frame(0, 3) + bytes(100))
    recover(tmp_path)
    assert numbers(tmp_path / str(NAME)) == [0, 1, 2]


def test_recovery_does_not_touch_a_segment_that_is_being_written(tmp_path: Path) -> None:
    segment = begin(tmp_path)
    segment.append(frame(0, 3))
    assert recover(tmp_path) == []
    segment.append(frame(3, 1))
    segment.sync()
    segment.seal()
    assert numbers(tmp_path / str(NAME)) == [0, 1, 2, 3]


def test_data_that_is_not_synced_is_not_sealed(tmp_path: Path) -> None:
    segment = begin(tmp_path)
    segment.append(frame(0, 3))
    segment.sync()
    segment.append(frame(3, 3)[:10])
    segment.seal()
    assert numbers(tmp_path / str(NAME)) == [0, 1, 2]


def test_a_segment_name_cannot_be_used_twice(tmp_path: Path) -> None:
    segment = begin(tmp_path)
    assert OpenSegment.create(tmp_path, NAME) is None
    segment.append(frame(0, 1))
    segment.sync()
    segment.seal()
    assert OpenSegment.create(tmp_path, NAME) is None
    assert numbers(tmp_path / str(NAME)) == [0]


@pytest.mark.parametrize("place", [0, 20, -3])
def test_a_damaged_sealed_segment_is_rejected_with_the_position(tmp_path: Path, place: int) -> None:
    content = bytearray(frame(0, 100) + frame(100, 100))
    content[place] ^= 0x40
    path = tmp_path / str(NAME)
    path.write_bytes(content)
    with pytest.raises(BadSegment, match=r"task\.v1\.host-1\.000000000007\.jsonl\.zst is damaged after byte "):
        numbers(path)


def test_a_truncated_sealed_segment_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / str(NAME)
    path.write_bytes(frame(0, 100)[:-1])
    with pytest.raises(BadSegment, match="damaged after byte 0"):
        numbers(path)


def test_a_segment_of_another_schema_version_is_rejected_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "task.v2.host-1.000000000007.jsonl.zst.open"
    path.write_bytes(b"what only version 2 understands")
    with pytest.raises(UnknownSchema, match="has schema version 2, but this release reads 1"):
        numbers(path)
    assert recover(tmp_path) == []
    assert path.read_bytes() == b"what only version 2 understands"


@pytest.mark.parametrize("name", ["notes.txt", "task.v1.host.7.jsonl.zst", "mail.v1.host.000000000007.jsonl.zst", ""])
def test_a_file_with_another_name_is_not_a_segment(name: str) -> None:
    with pytest.raises(NoSegment, match="not a journal segment"):
        SegmentName.parse(name)


@pytest.mark.parametrize(
    ("host", "slug"),
    [("127.0.0.1:7240", "127-0-0-1-7240"), ("[::1]:7240", "1-7240"), ("...", "host"), ("é" * 3, "host")],
)
def test_every_host_name_is_turned_into_a_valid_file_name(host: str, slug: str) -> None:
    assert host_slug(host) == slug
    assert SegmentName.parse(str(SegmentName(Kind.HISTORY, slug, 1))) == (Kind.HISTORY, slug, 1)
