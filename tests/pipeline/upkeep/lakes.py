"""Lakes whose batches are written by Arrow, without Spark."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa

from fairlead.pipeline.lake import Lake, SegmentEntry
from fairlead.pipeline.upkeep.batches import arrow_schema, write_rows

TODAY = date(2026, 1, 31)
_numbers = count()


def day(ago: int) -> date:
    return TODAY - timedelta(days=ago)


def commit(lake: Lake, table: str, rows: Sequence[Mapping[str, Any]], *, ago: int = 0, cluster: str = "alpha") -> str:
    """Commit rows of one day as a batch with one segment; return the segment's name. Requires no lock."""
    schema = arrow_schema(table)
    segment = f"{table}.v1.h.{next(_numbers):012d}.jsonl.zst"
    midnight = datetime.combine(day(ago), datetime.min.time(), UTC)
    time_us = int(midnight.timestamp()) * 1_000_000
    plain = [
        {"time_us": time_us + position, "segment": segment, "position": position, "namespace_id": "shop"} | dict(row)
        for position, row in enumerate(rows)
    ]
    with lake.locked():
        staged = lake.stage(table)
        # As Spark escapes it.
        part = staged / f"cluster={quote(cluster, safe=' ')}" / f"day={day(ago)}"
        write_rows(part / "part-0.zstd.parquet", iter([pa.RecordBatch.from_pylist(plain, schema)]), schema)
        entry = SegmentEntry(cluster, segment, 1, f"digest-{segment}", len(plain), time.time_ns() // 1000)
        lake.commit(table, staged, [entry], {("unknown_field", "colour"): 1})
    return segment


def rows(root: Path, table: str, columns: str = "segment, position") -> list[tuple[Any, ...]]:
    """Rows of a table, read by an engine that knows nothing of Fairlead."""
    files = f"{root / table}/*/*/*/*.parquet"
    with duckdb.connect() as connection:
        query = f"SELECT {columns} FROM read_parquet('{files}', hive_partitioning=true) ORDER BY ALL"
        return connection.execute(query).fetchall()


def tasks(number: int) -> list[dict[str, Any]]:
    return [{"kind": "added", "task_list": "q", "task_type": 1, "partition": 0, "host": "h"} for _ in range(number)]


def history(run_id: str, number: int = 1, *, tree_id: str = "", is_open: bool = False) -> list[dict[str, Any]]:
    """Rows of a run; the last one closes it unless `is_open`. A reset run has the tree of the run before it."""
    return [
        {
            "workflow_id": "w",
            "run_id": run_id,
            "tree_id": tree_id or run_id,
            "first_event_id": event,
            "last_event_id": event,
            "status": 2 if event == number and not is_open else 1,
        }
        for event in range(1, number + 1)
    ]
