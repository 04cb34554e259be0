import sqlite3
from collections.abc import Callable
from typing import Any

# A power of two. Longer statements are no faster.
ROWS_A_STATEMENT_MAX = 256


def values_clause(rows: int, columns: int) -> str:
    """`VALUES (?, ?), (?, ?), ...`"""
    return "VALUES " + ", ".join(["(" + ", ".join(["?"] * columns) + ")"] * rows)


def execute_rows(
    writer: sqlite3.Connection, statement: Callable[[int], str], values: list[Any], columns: int
) -> list[tuple[Any, ...]]:
    """Run a statement of many rows over values that are one after the other, and return all that it finds.

    Many rows each: a call of SQLite costs more than a row, and gives up Python's lock.
    """
    found: list[tuple[Any, ...]] = []
    start = 0
    while start < len(values):
        rows_left = (len(values) - start) // columns
        # The largest power of two that fits: few statements to prepare, and few to run.
        rows = min(1 << (rows_left.bit_length() - 1), ROWS_A_STATEMENT_MAX)
        end = start + rows * columns
        found += writer.execute(statement(rows), values[start:end]).fetchall()
        start = end
    return found
