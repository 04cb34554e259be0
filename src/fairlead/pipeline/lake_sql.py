"""SQL over the tables of a lake, by DuckDB: without Spark, and without access to any other file."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.core.errors import FixRequest
from fairlead.pipeline.lake_files import read_json

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# Memory that a query may use; DuckDB spills the rest to a temporary folder, which it removes.
MEMORY_MAX = "1GB"


class NoDuckDB(FixRequest):
    """DuckDB is not installed."""


class NoLake(FixRequest):
    """The folder is not a lake, or has no tables."""


class WrongQuery(FixRequest):
    """DuckDB refuses the query."""


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table as files: `pattern` matches its Parquet files."""

    name: str
    pattern: str
    files: int
    bytes: int
    # Whether the table holds the journal's records, in batches; otherwise a job replaces it as a whole.
    is_journal: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """Columns of a query's result; `rows` can be read once."""

    columns: list[str]
    rows: Iterator[tuple[object, ...]]


def tables_of(root: Path) -> list[LakeTable]:
    """Return the tables of the lake that have files, by name."""
    if not (root / "_lake.json").is_file():
        raise NoLake(f"{root} is not a lake: give the folder that `fairlead pipeline` writes to")
    read_json(root / "_lake.json")
    found: list[LakeTable] = []
    for entry in sorted(root.iterdir()):
        if entry.name.startswith(("_", ".")) or not entry.is_dir():
            continue
        folder = entry.resolve()
        is_journal = any(folder.glob("batch=*"))
        files = list(folder.glob("batch=*/cluster=*/day=*/*.parquet" if is_journal else "**/*.parquet"))
        if files:
            size = sum(file.stat().st_size for file in files)
            below = "batch=*/cluster=*/day=*/*.parquet" if is_journal else "**/*.parquet"
            found.append(LakeTable(entry.name, str(folder / below), len(files), size, is_journal))
    return found


def connect(root: Path) -> "DuckDBPyConnection":
    """Open a database in memory with a view for each table. Queries can read the lake, and write nowhere."""
    if importlib.util.find_spec("duckdb") is None:
        raise NoDuckDB("SQL over a lake needs DuckDB: pip install 'fairlead[pipeline]'")
    import duckdb  # noqa: PLC0415 - optional

    tables = tables_of(root.absolute())
    if not tables:
        raise NoLake(f"{root}: this lake has no tables yet: run `fairlead pipeline ingest` first")
    database = duckdb.connect(config={"memory_limit": MEMORY_MAX})
    for table in tables:
        path = table.pattern.replace("'", "''")
        layout = "hive_partitioning = true, hive_types = {'cluster': VARCHAR, 'day': DATE}, union_by_name = true"
        source = f"read_parquet('{path}', {layout if table.is_journal else 'union_by_name = true'})"
        # The number of the batch is a part of the path, not a column of the table.
        columns = "* EXCLUDE (batch)" if table.is_journal else "*"
        # Names of tables in a lake are plain, and the path is quoted.
        database.execute(f'CREATE VIEW "{table.name}" AS SELECT {columns} FROM {source}')  # noqa: S608
    folder = str(root.resolve()).replace("'", "''")
    database.execute(f"SET allowed_directories = ['{folder}']; SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
    return database


def query(root: Path, text: str) -> Selection:
    """Run a query over the tables of the lake; raise `WrongQuery` with DuckDB's reason if it can't."""
    database = connect(root)
    import duckdb  # noqa: PLC0415 - optional

    try:
        result = database.execute(text)
        if result is None:
            raise WrongQuery("the query is empty: give a SELECT statement")
        columns = [column[0] for column in result.description or ()]
        # The first rows are computed here, so that most errors come before any output.
        first = result.fetchmany(1000) if columns else []
    except duckdb.Error as wrong:
        names = ", ".join(table.name for table in tables_of(root))
        raise WrongQuery(f"{str(wrong).strip()}\ntables of this lake: {names}") from wrong

    def rows() -> Iterator[tuple[object, ...]]:
        page = first
        while page:
            yield from page
            try:
                page = result.fetchmany(1000)
            except duckdb.Error as wrong:
                raise WrongQuery(str(wrong).strip()) from wrong

    return Selection(columns, rows())
