"""Lets the records of histories arrive in a lake in random order, in several batches."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from fairlead.pipeline.lake import Lake, SegmentEntry
from fairlead.pipeline.sources.segments import find_sealed
from fairlead.pipeline.upkeep.batches import arrow_schema, write_rows
from tests.pipeline.journals import read_segment

Record = Mapping[str, Any]
# Every segment of a test arrives at this time, so that both lakes of a test know the same.
ARRIVED_US = 1_800_000_000_000_000


def records_in(journal: Path, kind: str = "history") -> list[tuple[str, Record]]:
    """The records of a journal, each with its cluster."""
    return [
        (segment.cluster, record)
        for segment in find_sealed(journal)
        if segment.kind == kind
        for record in read_segment(segment.path)
    ]


def shuffled(
    records: Sequence[tuple[str, Record]], chance: Random, shares: Sequence[float]
) -> list[list[tuple[str, Record]]]:
    """Divide records at random into batches with about these shares of them."""
    batches: list[list[tuple[str, Record]]] = [[] for _ in shares]
    for record in records:
        batches[chance.choices(range(len(shares)), shares)[0]].append(record)
    return batches


def arrive(lake: Lake, records: Sequence[tuple[str, Record]], *, number: int, kind: str = "history") -> None:
    """Commit records as a batch with one segment for each cluster."""
    schema = arrow_schema(kind)
    segment = f"{kind}.v1.h.{number:012d}.jsonl.zst"
    parts: dict[tuple[str, date], list[dict[str, Any]]] = {}
    for position, (cluster, record) in enumerate(records):
        day = datetime.fromtimestamp(record["time_us"] / 1e6, UTC).date()
        parts.setdefault((cluster, day), []).append({**record, "segment": segment, "position": position})
    with lake.locked():
        staged = lake.stage(kind)
        for (cluster, day), rows in parts.items():
            file = staged / f"cluster={cluster}" / f"day={day}" / "part-0.zstd.parquet"
            write_rows(file, iter([pa.RecordBatch.from_pylist(rows, schema)]), schema)
        clusters = sorted({cluster for cluster, _ in records})
        entries = [
            SegmentEntry(name, segment, 1, f"{name}-{number}", sum(one == name for one, _ in records), ARRIVED_US)
            for name in clusters
        ]
        lake.commit(kind, staged, entries)
