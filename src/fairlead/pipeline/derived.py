"""Writes derived tables, each by swapping one link: as a whole, or only the rows that a run computed anew.

An incremental run makes a folder of the table with hard links to the files that it does not touch. Files with touched
rows are written again without them, and the new rows are added as files.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark.sql import DataFrame

from fairlead.journal.segments import sync_path
from fairlead.pipeline.increments.touched import Touched
from fairlead.pipeline.lake_files import keep_newest, remove_old, sync_tree, write_json

if TYPE_CHECKING:
    from fairlead.pipeline.increments.origin import Origin

ORIGIN_FILE = "_origin.json"
# A table with more files than this below that size gets them merged to one.
SMALL_FILES_MAX = 24
SMALL_BYTES_MAX = 16 << 20
ROWS_A_READ = 64 << 10


def write_table(
    root: Path,
    table: str,
    frame: DataFrame,
    run_id: str,
    *,
    partition_by: Sequence[str] = (),
    origin: "Origin | None" = None,
    touched: Touched | None = None,
) -> int:
    """Replace the rows of a derived table atomically; return the number of rows after it.

    With `touched`, only these rows are replaced, and `frame` must have no others.
    """
    with _staged(root, table, run_id) as staged:
        frame.write.partitionBy(*partition_by).parquet(str(staged))
        if touched is not None:
            _add_untouched(staged, (root / table).resolve(), touched)
            _merge_small(staged)
        if origin is not None:
            write_json(staged / ORIGIN_FILE, origin.plain())
        rows = rows_in(staged)
        sync_tree(staged)
        _swap(root, table, staged, run_id)
    return rows


def rows_in(folder: Path) -> int:
    """Return the number of rows of a table's folder."""
    return sum(int(parquet.read_metadata(file).num_rows) for file in folder.rglob("*.parquet"))


@contextmanager
def _staged(root: Path, table: str, run_id: str) -> Iterator[Path]:
    remove_old(root / "_staging" / "runs")
    staged = root / "_staging" / "runs" / f"{table}-{run_id}-{os.urandom(4).hex()}"
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _swap(root: Path, table: str, staged: Path, run_id: str) -> None:
    runs = root / "_runs" / table
    runs.mkdir(parents=True, exist_ok=True)
    place = runs / f"{run_id}-{os.urandom(4).hex()}"
    staged.rename(place)
    swap = root / "_staging" / f"{table}-{os.urandom(4).hex()}.link"
    swap.symlink_to(os.path.relpath(place, root))
    swap.replace(root / table)
    sync_path(root)
    keep_newest(runs, place)


def _add_untouched(staged: Path, present: Path, touched: Touched) -> None:
    """Add the rows of the present run that stay: by links to whole files where possible."""
    for file in sorted(present.glob("*.parquet")):
        with parquet.ParquetFile(file) as source:
            if not touched.may_be_in(source.metadata) or not _has_touched(source, touched):
                os.link(file, staged / file.name)
                continue
            # Another name: an engine that published the old file must not take the new one for it.
            _write(staged / _new_name("kept"), _untouched(source, touched), source.schema_arrow)


def _has_touched(source: parquet.ParquetFile, touched: Touched) -> bool:
    batches = source.iter_batches(ROWS_A_READ, columns=list(touched.columns))
    return any(pc.any(touched.mask(rows)).as_py() for rows in batches)


def _untouched(source: parquet.ParquetFile, touched: Touched) -> Iterator[pa.RecordBatch]:
    for rows in source.iter_batches(ROWS_A_READ):
        yield rows.filter(pc.invert(touched.mask(rows)))


def _merge_small(staged: Path) -> None:
    """Merge the small files if there are many: each incremental run adds at least one to each table."""
    small = [file for file in sorted(staged.glob("*.parquet")) if file.stat().st_size < SMALL_BYTES_MAX]
    if len(small) <= SMALL_FILES_MAX:
        return
    schema = parquet.read_schema(small[0])
    _write(staged / _new_name("merged"), (rows for file in small for rows in _all(file)), schema)
    for file in small:
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def _all(file: Path) -> Iterator[pa.RecordBatch]:
    with parquet.ParquetFile(file) as source:
        yield from source.iter_batches(ROWS_A_READ)


def _write(file: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    """Write these rows; without rows there is no file."""
    writer: parquet.ParquetWriter | None = None
    try:
        for rows in batches:
            if rows.num_rows:
                writer = writer or parquet.ParquetWriter(file, schema, compression="zstd")
                writer.write_batch(rows.cast(schema) if rows.schema != schema else rows, row_group_size=1 << 20)
    finally:
        if writer is not None:
            writer.close()


def _new_name(kind: str) -> str:
    return f"{kind}-{os.urandom(8).hex()}.zstd.parquet"
