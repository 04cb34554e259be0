"""SQL over the derived tables of a lake, by DuckDB in this process.

Derived tables are small beside the journal's: a query that Spark needs half a second of CPU to plan and to start takes
DuckDB milliseconds.
"""

import contextlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
from pyspark.sql.pandas.types import to_arrow_schema

from fairlead.pipeline.dictionary import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from fairlead.pipeline.lake import Lake

Row = dict[str, Any]

# Memory that the queries may use; DuckDB spills the rest to a temporary folder, which it removes.
MEMORY_MAX = "1GB"
# Rows of a long result that are in memory at a time.
PAGE_ROWS = 1_000
# Characters that DuckDB takes for a pattern in the path of a file.
_PATTERN = re.compile(r"[\[*?]")


class Queries:
    """Queries over the derived tables, each as its last complete run wrote it when this object was made."""

    def __init__(self, lake: "Lake", database: duckdb.DuckDBPyConnection) -> None:
        """Use this database, which `queries_on` opens."""
        self.lake = lake
        self._database = database

    def rows(self, query: str, **values: object) -> list[Row]:
        """Return the rows of a query; `$name` in it stands for a value. Callers bound the number of rows."""
        result = self._database.execute(query, values or None)
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def table(self, query: str) -> "pa.Table":
        """Return the rows of a query as an Arrow table."""
        return self._database.sql(query).to_arrow_table()

    def stream(self, query: str, **values: object) -> Iterator[Row]:
        """Yield the rows of a query. Read them all before the next query."""
        result = self._database.execute(query, values or None)
        names = [column[0] for column in result.description or ()]
        while page := result.fetchmany(PAGE_ROWS):
            yield from (dict(zip(names, row, strict=True)) for row in page)

    def one(self, query: str, **values: object) -> Row:
        """Return the only row of a query."""
        (row,) = self.rows(query, **values)
        return row

    def first(self, query: str, **values: object) -> Row | None:
        """Return the first row of a query, if it has any."""
        return next(iter(self.rows(query, **values)), None)

    def keep(self, name: str, query: str, **values: object) -> list[Row]:
        """Keep the rows of a query as a table for later queries, and return them."""
        self._database.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}", values or None)
        # A table keeps the order of its rows.
        return self.rows(f"FROM {name}")


@contextlib.contextmanager
def queries_on(lake: "Lake", *tables: str, with_names: bool = False) -> Iterator[Queries]:
    """Open a database with these tables of the lake, in the order of Spark: null is the lowest value.

    `with_names` puts the name of a namespace into `namespace_id`, in place of a column `namespace`.
    """
    with tempfile.TemporaryDirectory(prefix="fairlead-queries-") as folder:
        config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": MEMORY_MAX,
            "temp_directory": folder,
            "default_null_order": "nulls_first_on_asc_last_on_desc",
        }
        with duckdb.connect(config=config) as database:
            for table in tables:
                _add(database, lake, table, with_names=with_names)
            yield Queries(lake, database)


def literal_paths(files: Sequence[Path]) -> list[str]:
    """Return the paths in the form in which DuckDB takes none of their characters for a pattern."""
    return [_PATTERN.sub(r"[\g<0>]", str(file)) for file in files]


def _add(database: duckdb.DuckDBPyConnection, lake: "Lake", table: str, *, with_names: bool) -> None:
    files = sorted(lake.written(table).rglob("*.parquet"))
    if files:
        rows = database.read_parquet(literal_paths(files), hive_partitioning=False, union_by_name=True)
    else:
        # Spark writes no file for a table without rows.
        rows = database.from_arrow(to_arrow_schema(TABLES[table].schema).empty_table())
    if with_names and {"namespace", "namespace_id"} <= {*rows.columns}:
        rows = rows.project("* EXCLUDE (namespace) REPLACE (coalesce(namespace, namespace_id) AS namespace_id)")
    rows.create_view(table)
