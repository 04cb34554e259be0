import sqlite3
from collections.abc import Callable
from typing import Any

# Maximum number of rows of a statement, a power of two; statements with more rows are no faster.
ROWS_A_STATEMENT_MAX = 256


def values_clause(rows: int, columns: int) -> str:
    """The clause `VALUES (?, ?), (?, ?), ...`."""
    return "VALUES " + ", ".join(["(" + ", ".join(["?"] * columns) + ")"] * rows)


def execute_rows(
    writer: sqlite3.Connection, statement: Callable[[int], str], values: list[Any], columns: int
) -> list[tuple[Any, ...]]:
    """Execute a statement for many rows, given as a flat list of values, and return all rows that it returns.

    Each call takes many rows, because a call of SQLite releases the GIL and costs more than a row.
    """
    found: list[tuple[Any, ...]] = []
    start = 0
    while start < len(values):
        rows_left = (len(values) - start) // columns
        # Use powers of two as numbers of rows, so that few different statements are prepared.
        rows = min(1 << (rows_left.bit_length() - 1), ROWS_A_STATEMENT_MAX)
        end = start + rows * columns
        found += writer.execute(statement(rows), values[start:end]).fetchall()
        start = end
    return found
