"""Compares derived tables of two lakes row by row."""

import math
from collections.abc import Sequence
from typing import Any

import duckdb

from fairlead.pipeline.lake import Lake


def rows_of(lake: Lake, table: str) -> list[tuple[Any, ...]]:
    """All rows of a derived table in one order, with columns in the order of their names."""
    with duckdb.connect() as database:
        files = [str(file) for file in sorted(lake.written(table).glob("*.parquet"))]
        rows = database.read_parquet(files, union_by_name=True)
        names = ", ".join(f'"{name}"' for name in sorted(rows.columns))
        return database.sql(f"SELECT {names} FROM rows ORDER BY ALL").fetchall()


def assert_same_tables(one: Lake, other: Lake, tables: Sequence[str]) -> None:
    """Raise an error if a table differs; sums of the same numbers may differ in their last digits."""
    for table in tables:
        found, expected = rows_of(one, table), rows_of(other, table)
        assert len(found) == len(expected), table
        for row, wanted in zip(found, expected, strict=True):
            assert all(map(is_same, row, wanted)), (table, row, wanted)


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, floats but for their last digits."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)
