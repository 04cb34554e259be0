"""Retention: drops old days of the journal tables from a lake, without splitting the history of a run.

The manifests of the batches stay, so that a segment that is still in the journal is not ingested again.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Self

import duckdb
import pyarrow as pa
from pyarrow import parquet

from fairlead.core.errors import FixRequest
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import MEMORY_MAX, literal_paths
from fairlead.pipeline.upkeep.batches import (
    ROWS_A_READ,
    Batch,
    arrow_schema,
    batches_of,
    check_columns,
    in_schema,
    write_rows,
)
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

    Of `history`, a row stays if its run is open, or if the tree of its run has rows on a later day: a reset run begins
    with events of the run before it, which has the same tree.
    """
    if (today - before).days < DAYS_MIN:
        raise TooShort(f"{table}: can't remove the days before {before}: keep at least {DAYS_MIN} days")
    files = [file for batch in batches_of(lake.table(table).resolve()) for file in _files_of(batch)]
    old = [file for day, file in files if day < before]
    with _Kept(table, old, [file for day, file in files if day >= before]) as kept:
        rows_kept = {file: kept.count(file) for file in old}
        found = Retained(
            table,
            before,
            files_removed=sum(left == 0 for left in rows_kept.values()),
            files_rewritten=sum(0 < left < _rows(file) for file, left in rows_kept.items()),
            bytes_removed=sum(file.stat().st_size for file, left in rows_kept.items() if left == 0),
            rows_removed=sum(_rows(file) - left for file, left in rows_kept.items()),
        )
        if found.rows_removed and not is_dry_run:
            root = lake.table(table).resolve()
            schema = arrow_schema(table)
            with next_generation(lake, table) as folder:
                for file, left in rows_kept.items():
                    if left < _rows(file):
                        copy = folder / file.relative_to(root)
                        if left:
                            name = f"kept-{os.urandom(8).hex()}.zstd.parquet"
                            write_rows(copy.with_name(name), kept.rows(file, schema), schema)
                        _remove(copy)
    return found


class _Kept:
    """Tells which rows of the old files stay, by DuckDB, whose memory is bounded: it spills to a temporary folder."""

    def __init__(self, table: str, old: list[Path], newer: list[Path]) -> None:
        self._is_history = table == "history"
        self._old, self._newer = old, newer
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-retention-"))
        config: dict[str, str | bool | int | float | list[str]] = {"memory_limit": MEMORY_MAX, "temp_directory": folder}
        self._database = self._stack.enter_context(duckdb.connect(config=config))
        if self._is_history and self._old:
            self._read(self._old).create_view("old")
            # Without newer files, an empty part of the old ones has the columns.
            (self._read(self._newer) if self._newer else self._read(self._old).limit(0)).create_view("newer")
            self._database.execute(
                f"""
                CREATE TEMP TABLE kept AS
                SELECT DISTINCT tree
                FROM (SELECT {_TREE} AS tree FROM old) SEMI JOIN (SELECT {_TREE} AS tree FROM newer) USING (tree)
                UNION
                SELECT tree FROM (
                    SELECT {_TREE} AS tree, bool_or(status IS NOT NULL AND status NOT IN {_OPEN}) AS is_closed
                    FROM old GROUP BY tree, run_id
                ) WHERE NOT is_closed
                """  # noqa: S608 - our own names
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def count(self, file: Path) -> int:
        """Return the number of rows that stay."""
        if not self._is_history:
            return 0
        found = self._of(file).aggregate("count(*) AS rows_kept").fetchall()
        return int(found[0][0])

    def rows(self, file: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows that stay, in their order."""
        check_columns(file, schema)
        for batch in self._of(file).order("position").to_arrow_reader(ROWS_A_READ):
            yield in_schema(batch, schema)

    def _of(self, file: Path) -> duckdb.DuckDBPyRelation:
        return self._read([file]).filter(f"{_TREE} IN (SELECT tree FROM kept)")  # noqa: S608 - our own names

    def _read(self, files: list[Path]) -> duckdb.DuckDBPyRelation:
        return self._database.read_parquet(literal_paths(files), hive_partitioning=False, union_by_name=True)


# The tree of a run's branches. A reset run has the tree of the run before it.
_TREE = "coalesce(tree_id, run_id)"
# Temporal's numbers of WorkflowExecutionStatus for running and paused.
_OPEN = "(1, 8)"


def _files_of(batch: Batch) -> Iterator[tuple[date, Path]]:
    for part, files in batch.parts().items():
        day = date.fromisoformat(part.name.removeprefix("day="))
        yield from ((day, file) for file in files)


def _rows(file: Path) -> int:
    return int(parquet.read_metadata(file).num_rows)


def _remove(file: Path) -> None:
    """Remove a file of the copy, and the folders of the day and of the cluster if they are empty then."""
    file.unlink()
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    for folder in (file.parent, file.parent.parent):
        if not any(folder.iterdir()):
            folder.rmdir()
