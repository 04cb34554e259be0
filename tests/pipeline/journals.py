"""Small journals for tests: plain records, segments sealed as by the server, and deliberate damage."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

DAY_US = 86_400_000_000
START_US = 1_767_225_600_000_000  # 2026-01-01

Record = Mapping[str, Any]


def task_records(count: int, *, start_us: int = START_US, step_us: int = 1000, **fields: Any) -> list[Record]:
    """Records of matches, one every millisecond."""
    base = {
        "kind": "matched",
        "namespace_id": "shop",
        "task_list": "orders",
        "task_type": 1,
        "partition": 0,
        "host": "host-1",
        "weight": 1.0,
        "was_sync": True,
        "wait_us": 500,
    }
    return [base | {"time_us": start_us + index * step_us} | fields for index in range(count)]


def history_records(count: int, *, start_us: int = START_US, **fields: Any) -> list[Record]:
    """First batches of `count` runs, one second apart."""
    return [
        {
            "time_us": start_us + index * 1_000_000,
            "namespace_id": "shop",
            "workflow_id": f"order-{index}",
            "run_id": f"run-{index}",
            "tree_id": f"run-{index}",
            "branch_id": f"branch-{index}",
            "first_event_id": 1,
            "last_event_id": 2,
            "version": 1,
            "items": [{"event_id": 2, "version": 1}],
            "task_id": 100 + index,
            "status": 1,
            "event_types": [1, 5],
            "event_digests": ["0123456789abcdef", "fedcba9876543210"],
        }
        | fields
        for index in range(count)
    ]


def frames_of(records: Sequence[Record], *, frame_records: int = 100, has_checksum: bool = True) -> bytes:
    """The records as lines of JSON in frames."""
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=has_checksum)
    lines = [json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records]
    return b"".join(
        compressor.compress(b"".join(lines[begin : begin + frame_records]))
        for begin in range(0, len(lines), frame_records)
    )


def write_segment(
    journal: Path,
    content: bytes | Sequence[Record],
    *,
    number: int = 0,
    kind: str = "task",
    cluster: str = "alpha",
    host: str = "host-1",
    version: int = 1,
) -> Path:
    """Seal a segment with these records, or with exactly these bytes."""
    folder = journal / cluster
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}.v{version}.{host}.{number:012d}.jsonl.zst"
    draft = path.with_name(path.name + ".open")
    draft.write_bytes(content if isinstance(content, bytes) else frames_of(content))
    draft.rename(path)
    return path


def write_journal(journal: Path, *, clusters: Iterable[str] = ("alpha", "beta"), segments: int = 3) -> int:
    """Write a journal of some clusters over two days; returns the number of its task records."""
    total = 0
    for place, cluster in enumerate(clusters):
        for number in range(segments):
            count = 250 + 10 * number + place
            # The middle of the segment is at midnight between two days.
            start_us = START_US + DAY_US - count // 2 * 1000
            write_segment(
                journal, task_records(count, start_us=start_us, partition=number), number=number, cluster=cluster
            )
            total += count
        write_segment(journal, history_records(20), kind="history", cluster=cluster)
    return total


def read_segment(path: Path) -> list[dict[str, Any]]:
    """The records of a sealed segment."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as content:
        return [json.loads(line) for line in content.read().splitlines()]
