"""Reads the derived tables of a lake without Spark."""

from typing import Any

from pyarrow import parquet

from fairlead.pipeline.lake import Lake


def derived(lake: Lake, table: str) -> list[dict[str, Any]]:
    """All rows of a table."""
    files = sorted(lake.written(table).rglob("*.parquet"))
    return [row for file in files for row in parquet.ParquetFile(file).read().to_pylist()]
