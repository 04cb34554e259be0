"""Inputs of the pipeline's benchmark: a day of synthetic records, and as many copies as a size needs.

The generators of `fairlead pipeline synth` make the first day of each kind; DuckDB writes the copies as Parquet,
straight into the lake. A copy of the tasks is the same day, shifted by days. A copy of the histories is the same runs
at the same time with other ids. So the results for many copies follow from the results for one.
For `ingest`, a copy is the same segments with other numbers, each with one further record: `ingest` loads segments of
the same content only once.
"""

from pathlib import Path

import duckdb
import msgspec
import zstandard

from fairlead.journal import SegmentName, read_segment
from fairlead.journal.segments import COMPRESSION_LEVEL
from fairlead.pipeline.lake import Lake, SegmentEntry
from fairlead.pipeline.schemas import BRONZE
from fairlead.pipeline.synth.histories import HistoryShape, write_histories
from fairlead.pipeline.synth.traffic import TrafficShape, write_traffic

KINDS = tuple(BRONZE)
DAY_S = 86_400
# Approximate number of records of one run in all three clusters together.
RECORDS_PER_RUN = 22
# Distance between the segment numbers of two copies: more than the number of segments in a base.
_NUMBERS_A_COPY = 1_000
_ROWS_A_GROUP = 1 << 20
_IDS = ("workflow_id", "run_id", "tree_id", "branch_id", "new_run_id")


def write_base(journal: Path, *, records: int, share: float = 1.0) -> None:
    """Write journals, one folder for each kind, with about `records` records per day; `share` is the day's part."""
    write_traffic(journal / "task", TrafficShape(rows=round(records * share), span_s=DAY_S * share))
    write_histories(journal / "history", HistoryShape(runs=max(1, round(records * share / RECORDS_PER_RUN))))


def copy_segments(base: Path, journal: Path, copies: range) -> None:
    """Add copies of a base journal's segments to another journal."""
    compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True).compress
    for segment in sorted(base.glob("*/*.zst")):
        name = SegmentName.parse(segment.name)
        folder = journal / segment.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        content, record = segment.read_bytes(), next(read_segment(segment))
        for copy in copies:
            more = msgspec.json.encode(record | {"time_us": record["time_us"] + copy}) + b"\n"
            file = folder / str(name._replace(number=name.number + copy * _NUMBERS_A_COPY))
            file.write_bytes(content + compress(more))


def add_copies(base: Lake, lake: Lake, kind: str, copies: range) -> None:
    """Add copies of a base lake's rows to another lake, each as a batch."""
    with duckdb.connect(config={"threads": 2, "preserve_insertion_order": False}) as database, lake.locked():
        database.execute("SET enable_progress_bar = false")
        for copy in copies:
            staged = lake.stage(kind)
            for part in sorted(base.table(kind).glob("batch=*/cluster=*/day=*")):
                _copy_part(database, part, staged, kind, copy)
            lake.commit(kind, staged, [entry_of(database, staged, f"{kind}-{copy}")])


def entry_of(database: duckdb.DuckDBPyConnection, staged: Path, name: str) -> SegmentEntry:
    """Return the entry of the manifest for a staged batch, as if one segment had its rows."""
    files = f"{staged}/*/*/*.parquet"
    found = database.execute("SELECT sum(num_rows) FROM parquet_file_metadata(?)", [files]).fetchone()
    return SegmentEntry("bench", name, 0, name, int(found[0]) if found else 0)


def _copy_part(database: duckdb.DuckDBPyConnection, part: Path, staged: Path, kind: str, copy: int) -> None:
    cluster, day = part.parent.name, part.name
    if kind == "task":
        changed = f"time_us + {copy * DAY_S * 1_000_000} AS time_us"
        (later,) = database.execute("SELECT ?::DATE + ?", [day.removeprefix("day="), copy]).fetchone() or ("",)
        day = f"day={later}"
    else:
        changed = ", ".join(f"{name} || '-{copy}' AS {name}" for name in _IDS)
    folder = staged / cluster / day
    folder.mkdir(parents=True)
    rows = f"SELECT * REPLACE ({changed}) FROM read_parquet('{part}/*.parquet', hive_partitioning = false)"  # noqa: S608 - our own names
    database.execute(
        f"COPY ({rows}) TO '{folder / 'part-0.parquet'}' "
        f"(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, ROW_GROUP_SIZE {_ROWS_A_GROUP})"
    )
