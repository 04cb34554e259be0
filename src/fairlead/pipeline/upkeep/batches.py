"""The committed batches of a journal table, as files: their manifests, sizes and rows."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from fairlead.core.errors import GiveUp
from fairlead.pipeline.dictionary.comments import comments_of
from fairlead.pipeline.lake_files import ROW_GROUP_BYTES, read_json
from fairlead.pipeline.schemas import BRONZE

# Rows that are read, filtered and written at a time; a history's row can have a payload of megabytes.
ROWS_A_READ = 4_096
# Columns that are in the path of a file and not in it.
PATH_COLUMNS = ("cluster", "day")
# Key of a Parquet file's metadata in which Spark keeps the columns' comments.
_SPARK_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"


class NewerColumns(GiveUp):
    """A file has columns that this release does not know and would lose."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a journal table, in a folder `batch=<number>`."""

    folder: Path
    number: int
    bytes: int
    files: int

    def parts(self) -> dict[Path, list[Path]]:
        """Return the files by their partition, a path like `cluster=east/day=2026-01-31`."""
        found: dict[Path, list[Path]] = defaultdict(list)
        for file in sorted(self.folder.glob("cluster=*/day=*/*.parquet")):
            found[file.parent.relative_to(self.folder)].append(file)
        return found

    def manifest(self) -> Any:
        """Return the manifest, with an arrival time for each segment."""
        file = self.folder / "_batch.json"
        plain = read_json(file)
        # Batches of older releases have no arrival time: use the file's modification time.
        arrived = {"arrived_us": file.stat().st_mtime_ns // 1000}
        return plain | {"segments": [arrived | entry for entry in plain["segments"]]}


def batches_of(table: Path) -> list[Batch]:
    """Return the batches in a table's folder, in the order of their numbers."""
    found = []
    for folder in sorted(table.glob("batch=*")):
        sizes = [file.stat().st_size for file in folder.glob("cluster=*/day=*/*.parquet")]
        found.append(Batch(folder, int(folder.name.removeprefix("batch=")), sum(sizes), len(sizes)))
    return found


def arrow_schema(table: str) -> pa.Schema:
    """Return the columns of a journal table's files, with their comments; the cluster and the day are in the path."""
    comments = comments_of(table)
    schema = StructType(
        [
            StructField(field.name, field.dataType, metadata={"comment": comments[field.name]})
            for field in BRONZE[table].fields
            if field.name not in PATH_COLUMNS
        ]
    )
    return to_arrow_schema(schema).with_metadata({_SPARK_SCHEMA: schema.json()})


def rows_of(files: Sequence[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these files with the columns of the schema; missing columns are null."""
    for file in files:
        check_columns(file, schema)
        with parquet.ParquetFile(file) as source:
            # By row group, whose bytes are bounded: rows of a history can have megabytes each.
            for group in range(source.num_row_groups):
                for rows in source.iter_batches(ROWS_A_READ, row_groups=[group]):
                    yield in_schema(rows, schema)


def check_columns(file: Path, schema: pa.Schema) -> None:
    """Raise an error if a file has columns whose values would be lost."""
    unknown = [name for name in parquet.read_schema(file).names if name not in schema.names]
    if unknown:
        raise NewerColumns(
            f"{file} has columns that this release does not know ({', '.join(unknown)}): use the newest release"
        )


def in_schema(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with the columns of the schema; missing columns are null."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def write_rows(file: Path, rows: Iterator[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write rows to a new Parquet file with the lake's settings; return their number. Without rows there is no file."""
    count = 0
    writer: parquet.ParquetWriter | None = None
    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    try:
        for batch in rows:
            if not batch.num_rows:
                continue
            if writer is None:
                file.parent.mkdir(parents=True, exist_ok=True)
                writer = parquet.ParquetWriter(file, schema, compression="zstd")
            pending.append(batch)
            pending_bytes += batch.nbytes
            count += batch.num_rows
            if pending_bytes >= ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(pending))
                pending, pending_bytes = [], 0
        if writer is not None and pending:
            writer.write_table(pa.Table.from_batches(pending))
    finally:
        if writer is not None:
            writer.close()
    return count
