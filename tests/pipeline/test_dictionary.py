"""The dictionary has every column that the jobs write, and docs/tables.md is the dictionary."""

import json
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, BooleanType, DataType, DateType, DoubleType, StringType, StructType

from fairlead.cli.pipeline.command import JOBS
from fairlead.pipeline import (
    schemas_backtest,
    schemas_fairness,
    schemas_histories,
    schemas_placement,
    schemas_reconcile,
    schemas_traffic,
)
from fairlead.pipeline.dictionary import TABLES, Column, Table, documented
from fairlead.pipeline.dictionary.page import render
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas import BRONZE

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"
# Schemas of intermediate data, which no reader of the lake sees.
INTERNAL = {
    "ARRIVALS", "REPLAYED", "CANDIDATES", "RECORDS", "FLATTENED", "LISTS", "HASHED", "PARTIAL", "ITEM", "BATCH",
    "RUN_BATCHES", "HISTORY_TASKS", "FINDING", "COPY", "PAIR", "SEND", "LOST_SIGNAL", "JUDGED", "FOUND",
    "FAIRNESS_LEVELS", "STATES",
}  # fmt: skip


def test_the_page_is_the_dictionary() -> None:
    assert PAGE.read_text() == render(), "run: fairlead lake docs > docs/tables.md"


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_column_of_a_table_has_a_meaning(table: Table) -> None:
    assert all(column.meaning for column in documented(table).values())
    assert table.job in JOBS


def test_a_column_without_a_meaning_is_an_error() -> None:
    with pytest.raises(KeyError, match="added"):
        documented(Table("traffic", "traffic", "a window", schemas_traffic.TRAFFIC))


def test_every_table_of_the_schemas_is_in_the_dictionary() -> None:
    modules = (
        schemas_backtest, schemas_fairness, schemas_histories, schemas_placement, schemas_reconcile, schemas_traffic
    )  # fmt: skip
    declared = {
        name.lower()
        for module in modules
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, StructType) and name not in INTERNAL
    }
    assert declared | set(BRONZE) == set(TABLES)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_example_has_the_type_of_its_column(table: Table) -> None:
    for name, column in documented(table).items():
        kind = table.schema[name].dataType if name in table.schema.names else StringType()
        assert _fits(column, kind), f"{table.name}.{name}: {column.example} is not {kind.simpleString()}"


def _fits(column: Column, kind: DataType) -> bool:
    value = json.loads(column.example)
    if isinstance(kind, ArrayType):
        return isinstance(value, list)
    if isinstance(kind, StructType):
        return isinstance(value, dict) and set(value) <= set(kind.names)
    if isinstance(kind, BooleanType):
        return isinstance(value, bool)
    if isinstance(kind, StringType | DateType):
        return isinstance(value, str)
    return isinstance(value, float if isinstance(kind, DoubleType) else int) and not isinstance(value, bool)


def test_a_written_table_has_the_meanings_in_its_files(spark: SparkSession, tmp_path: Path) -> None:
    schema = schemas_traffic.TRAFFIC
    row = dict.fromkeys(schema.names) | {"cluster": "active", "namespace_id": "n", "added": 3}
    Lake(tmp_path / "lake").write("traffic", spark.createDataFrame([row], schema), "first")
    file = next((tmp_path / "lake" / "traffic").glob("*.parquet"))
    written = parquet.read_metadata(file).metadata[b"org.apache.spark.sql.parquet.row.metadata"]
    comments = {field["name"]: field["metadata"].get("comment") for field in json.loads(written)["fields"]}
    assert comments["added"] == "tasks added in the window (tasks)"
    assert comments["namespace"] == documented(TABLES["traffic"])["namespace"].meaning
