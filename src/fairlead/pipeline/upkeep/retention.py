"""Retention: drops old days of the journal tables from a lake, without splitting the history of a run.

The manifests of the batches stay, so that a segment that is still in the journal is not ingested again.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from fairlead.core.errors import FixRequest
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.upkeep.batches import Batch, arrow_schema, batches_of, rows_of, write_rows
from fairlead.pipeline.upkeep.generations import next_generation

# Days that every lake keeps, at least: records may arrive late, and reconcile waits for them.
DAYS_MIN = 2


class TooShort(FixRequest):
    """The retention would remove days that records still arrive for."""


@dataclass(frozen=True, slots=True)
class Retained:
    """The rows and files that a retention removed, or would remove; `before` is the first day that is kept."""

    table: str
    before: date
    files_removed: int
    files_rewritten: int
    bytes_removed: int
    rows_removed: int


def retain(lake: Lake, table: str, *, before: date, today: date, is_dry_run: bool = False) -> Retained:
    """Remove the rows of days before this one; readers see all of it at once. Requires the lock.

    Of `history`, the rows of a run stay as long as the run has rows on a later day.
    """
    if (today - before).days < DAYS_MIN:
        raise TooShort(f"{table}: can't remove the days before {before}: keep at least {DAYS_MIN} days")
    batches = batches_of(lake.table(table))
    old = [file for batch in batches for file in _files_before(batch, before)]
    kept_runs = _runs_from(batches, before) if table == "history" and old else None
    schema = arrow_schema(table)
    plan = [(file, _rows_left(file, kept_runs, schema)) for file in old]
    found = Retained(
        table,
        before,
        files_removed=sum(left == 0 for _, left in plan),
        files_rewritten=sum(0 < left < _rows(file) for file, left in plan),
        bytes_removed=sum(file.stat().st_size for file, left in plan if left == 0),
        rows_removed=sum(_rows(file) - left for file, left in plan),
    )
    if found.rows_removed and not is_dry_run:
        root = lake.table(table).resolve()
        with next_generation(lake, table) as folder:
            for file, left in plan:
                if left < _rows(file):
                    _rewrite(folder / file.relative_to(root), kept_runs, schema)
    return found


def _files_before(batch: Batch, before: date) -> Iterator[Path]:
    for part, files in batch.parts().items():
        if date.fromisoformat(part.name.removeprefix("day=")) < before:
            yield from (file.resolve() for file in files)


def _runs_from(batches: Sequence[Batch], first: date) -> pa.Array:
    """The ids of the runs with rows on this day or later."""
    found = pa.array([], pa.string())
    for batch in batches:
        for part, files in batch.parts().items():
            if date.fromisoformat(part.name.removeprefix("day=")) >= first:
                ids = parquet.read_table(files, columns=["run_id"], partitioning=None).column("run_id")
                found = pc.unique(pa.chunked_array([found, *ids.chunks], pa.string()))
    return found


def _rows(file: Path) -> int:
    return int(parquet.read_metadata(file).num_rows)


def _rows_left(file: Path, kept_runs: pa.Array | None, schema: pa.Schema) -> int:
    if kept_runs is None:
        return 0
    ids = rows_of([file], pa.schema([schema.field("run_id")]), is_partial=True)
    return sum(rows.num_rows for rows in _of_runs(ids, kept_runs))


def _of_runs(batches: Iterator[pa.RecordBatch], runs: pa.Array) -> Iterator[pa.RecordBatch]:
    for rows in batches:
        yield rows.filter(pc.is_in(rows.column("run_id"), value_set=runs))


def _rewrite(file: Path, kept_runs: pa.Array | None, schema: pa.Schema) -> None:
    """Replace a file of the copy by one with the rows that stay, if there are any."""
    if kept_runs is not None:
        kept = _of_runs(rows_of([file], schema), kept_runs)
        write_rows(file.with_name(f"kept-{os.urandom(8).hex()}.zstd.parquet"), kept, schema)
    file.unlink()
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    # Remove the folders of the day and of the cluster if they are empty now.
    for folder in (file.parent, file.parent.parent):
        if not any(folder.iterdir()):
            folder.rmdir()
