"""The changes of a journal table since an earlier run: new batches, and what their rows touch.

A batch has a number that is never used again, and a compaction keeps the numbers of the batches that it merges. So all
batches above a number are what was ingested since.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from fairlead.pipeline.increments.touched import HOUR_US
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.lake_files import read_json
from fairlead.pipeline.queries import MEMORY_MAX, literal_paths

# How DuckDB reads the files of a journal table: the cluster and the day are in their paths.
_LAYOUT = "hive_partitioning = true, hive_types = {'cluster': VARCHAR, 'day': DATE}, union_by_name = true"
# Columns that queries on new rows name, for batches that have none.
_EMPTY = (
    "cluster", "namespace_id", "workflow_id", "run_id", "task_list", "task_type", "kind", "time_us", "first_event_id",
    "version",
)  # fmt: skip
_NOTHING = f"SELECT {', '.join(f'NULL AS {column}' for column in _EMPTY)} WHERE false"
# Maximum number of files that a query names.
FILES_NAMED_MAX = 1_000
REVISION_FILE = "_revision.json"
# Key of a merged batch's manifest: pairs of a batch's number and the number of its segments, in the order of the
# manifest's segments.
MERGED = "merged"


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch that an earlier run did not read. Of a merged batch, only the rows of `segments` are new."""

    folder: Path
    rows: int
    segments: frozenset[tuple[str, str]] | None = None

    @property
    def files(self) -> list[Path]:
        """The Parquet files of the batch."""
        return sorted(self.folder.glob("cluster=*/day=*/*.parquet"))


def revision_of(lake: Lake, table: str) -> str:
    """Return the revision of a journal table, which changes whenever rows are removed from it."""
    try:
        return str(read_json(lake.table(table).resolve() / REVISION_FILE)["revision"])
    except FileNotFoundError:
        return ""


def batch_numbers(lake: Lake, table: str) -> dict[int, int]:
    """Return the numbers of the table's batches, each with the number of rows that were ingested."""
    manifests = lake.table(table).resolve().glob("batch=*/_batch.json")
    return {
        int(file.parent.name.removeprefix("batch=")): _rows(read_json(file)["segments"]) for file in sorted(manifests)
    }


def new_batches(lake: Lake, table: str, *, through: int) -> list[NewBatch]:
    """Return the batches with a number above `through`."""
    found = []
    for file in sorted(lake.table(table).resolve().glob("batch=*/_batch.json")):
        if int(file.parent.name.removeprefix("batch=")) <= through:
            continue
        manifest = read_json(file)
        segments = _new_segments(manifest, through)
        is_all = len(segments) == len(manifest["segments"])
        names = None if is_all else frozenset((entry["cluster"], entry["name"]) for entry in segments)
        found.append(NewBatch(file.parent, _rows(segments), names))
    return found


def _new_segments(manifest: Mapping[str, Any], through: int) -> list[Mapping[str, Any]]:
    """Return the segments of a batch that were ingested after the batch `through`."""
    segments: list[Mapping[str, Any]] = manifest["segments"]
    # An older release did not record which batches it merged: then all rows count as new.
    merged = manifest.get(MERGED) or [[int(manifest["batch"]), len(segments)]]
    first, new = 0, []
    for number, count in merged:
        if number > through:
            new += segments[first : first + count]
        first += count
    return new


def touched_hours(batches: Sequence[NewBatch], *, window_us: int) -> frozenset[int]:
    """Return the hours, by their beginnings, in which the windows of new records begin."""
    hour = f"(time_us - time_us % $window_us) // {HOUR_US} * {HOUR_US}"
    rows = _distinct(batches, f"{hour} AS hour", window_us=window_us)
    return frozenset(rows.column("hour").to_pylist())


def touched_keys(batches: Sequence[NewBatch], columns: Sequence[str]) -> pa.Table:
    """Return the combinations of values of these columns that the new records have."""
    return _distinct(batches, ", ".join(columns))


def files_with(lake: Lake, table: str, keys: pa.Table) -> list[Path] | None:
    """Return the files of a journal table that have rows with one of these combinations of values.

    None means all files: there are more than a query should name.
    """
    files = sorted(lake.table(table).resolve().glob("batch=*/cluster=*/day=*/*.parquet"))
    columns = ", ".join(keys.column_names)
    with duckdb.connect(config={"memory_limit": MEMORY_MAX}) as database:
        database.register("keys", keys)
        # Only the columns of the keys are read.
        database.read_parquet(literal_paths(files), filename=True, union_by_name=True).create_view("rows")
        query = f"SELECT DISTINCT filename FROM rows SEMI JOIN keys USING ({columns})"  # noqa: S608 - our own names
        found = [Path(name) for (name,) in database.execute(query).fetchall()]
    return sorted(found) if len(found) <= FILES_NAMED_MAX else None


def clusters_of_namespaces(lake: Lake, table: str) -> dict[str, list[str]]:
    """Return the clusters with rows of each namespace, in order."""
    files = sorted(lake.table(table).resolve().glob("batch=*/cluster=*/day=*/*.parquet"))
    if not files:
        return {}
    query = f"SELECT DISTINCT namespace_id, cluster FROM read_parquet($files, {_LAYOUT}) ORDER BY ALL"  # noqa: S608 - our own name
    found: dict[str, list[str]] = {}
    with duckdb.connect(config={"memory_limit": MEMORY_MAX}) as database:
        for namespace_id, cluster in database.execute(query, {"files": literal_paths(files)}).fetchall():
            found.setdefault(namespace_id, []).append(cluster)
    return found


def hours_in(lake: Lake, table: str, times: Sequence[str], keys: pa.Table, *, window_us: int) -> frozenset[int]:
    """Return the hours in which windows of a derived table's rows with these keys begin; `times` are expressions."""
    files = sorted(lake.written(table).glob("*.parquet"))
    if not files:
        return frozenset()
    columns = ", ".join(keys.column_names)
    parts = " UNION ALL ".join(f"SELECT {time} AS time_us FROM touched" for time in times)  # noqa: S608 - our own names
    with duckdb.connect(config={"memory_limit": MEMORY_MAX}) as database:
        database.register("keys", keys)
        database.read_parquet(literal_paths(files), hive_partitioning=False, union_by_name=True).create_view("rows")
        query = f"""
            WITH touched AS (FROM rows SEMI JOIN keys USING ({columns})), times AS ({parts})
            SELECT DISTINCT (time_us - time_us % $window_us) // {HOUR_US} * {HOUR_US} FROM times
            WHERE time_us IS NOT NULL
        """  # noqa: S608 - our own names
        return frozenset(hour for (hour,) in database.execute(query, {"window_us": window_us}).fetchall())


def view_of(database: duckdb.DuckDBPyConnection, batches: Sequence[NewBatch], name: str) -> None:
    """Create a view with the new rows of these batches; a batch without rows has no file."""
    parts = []
    for place, batch in enumerate(batches):
        if not batch.files:
            continue
        condition = ""
        if batch.segments is not None:
            segments = pa.table({"segment": pa.array(sorted({segment for _, segment in batch.segments}), pa.string())})
            database.register(f"{name}_{place}", segments)
            condition = f" SEMI JOIN {name}_{place} USING (segment)"
        parts.append(f"SELECT * FROM read_parquet({_quoted(batch.files)}, {_LAYOUT}){condition}")  # noqa: S608 - paths are quoted
    database.execute(f"CREATE VIEW {name} AS {' UNION ALL BY NAME '.join(parts or [_NOTHING])}")


def view_of_table(database: duckdb.DuckDBPyConnection, lake: Lake, table: str) -> None:
    """Create a view with all rows of a journal table, of the same name."""
    files = sorted(lake.table(table).resolve().glob("batch=*/cluster=*/day=*/*.parquet"))
    rows = f"SELECT * FROM read_parquet({_quoted(files)}, {_LAYOUT})" if files else _NOTHING  # noqa: S608 - paths are quoted
    database.execute(f"CREATE VIEW {table} AS {rows}")


def _quoted(files: Sequence[Path]) -> str:
    """Return a list of paths for a query: a view can't have parameters."""
    paths = ", ".join(f"'{path.replace(chr(39), chr(39) * 2)}'" for path in literal_paths(files))
    return f"[{paths}]"


def _distinct(batches: Sequence[NewBatch], columns: str, **values: object) -> pa.Table:
    """Return the distinct values of expressions over the rows of new batches."""
    with duckdb.connect(config={"memory_limit": MEMORY_MAX}) as database:
        view_of(database, batches, "rows")
        return database.sql(f"SELECT DISTINCT {columns} FROM rows", params=values or None).to_arrow_table()  # noqa: S608 - our own names


def _rows(segments: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(entry["rows"]) for entry in segments)
