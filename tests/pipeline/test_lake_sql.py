"""`fairlead lake`: SQL over the tables, with Parquet files as the pipeline lays them out."""

import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from fairlead.cli.lake import ROWS_SHOWN_MAX, lake
from fairlead.core.errors import FairleadError
from fairlead.pipeline.lake_sql import NoLake, WrongQuery, query, tables_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A lake with two batches of `task`, the older one without the column `namespace`, and a derived table."""
    root = tmp_path / "it's a lake"
    root.mkdir()
    (root / "_lake.json").write_text('{"layout": 1}')
    older, newer = (root / "task" / f"batch={number:012d}" / "cluster=active" / "day=2026-01-31" for number in (0, 1))
    for folder in (older, newer):
        folder.mkdir(parents=True)
    parquet.write_table(pa.table({"time_us": [1, 2], "kind": ["added", "matched"]}), older / "part.parquet")
    parquet.write_table(pa.table({"time_us": [3], "kind": ["added"], "namespace": ["orders"]}), newer / "part.parquet")
    run = root / "_runs" / "traffic" / "first"
    run.mkdir(parents=True)
    parquet.write_table(pa.table({"task_list": ["a", "b\x1b[2J"], "added": [10, 20]}), run / "part.parquet")
    (root / "traffic").symlink_to("_runs/traffic/first")
    (root / "fairness").mkdir()
    return root


def test_a_query_joins_tables_of_the_journal_and_of_jobs(root: Path) -> None:
    answer = query(root, "select (select count(*) from task), (select sum(added) from traffic)")
    assert list(answer.rows) == [(3, 30)]


def test_rows_of_older_files_have_nulls_in_newer_columns(root: Path) -> None:
    answer = query(root, "select time_us, namespace, cluster, day from task order by 1")
    assert answer.columns == ["time_us", "namespace", "cluster", "day"]
    day = date(2026, 1, 31)
    assert list(answer.rows) == [(1, None, "active", day), (2, None, "active", day), (3, "orders", "active", day)]


def test_the_number_of_a_batch_is_not_a_column(root: Path) -> None:
    assert "batch" not in query(root, "select * from task").columns


@pytest.mark.parametrize(
    "text",
    [
        "select * from read_csv('/etc/passwd')",
        "copy traffic to '/tmp/fairlead-lake-sql-leak.csv'",
        "set enable_external_access = true",
        "select * from nowhere",
        "selec 1",
    ],
)
def test_a_query_outside_of_the_tables_is_refused_with_their_names(root: Path, text: str) -> None:
    with pytest.raises(WrongQuery, match="tables of this lake: task, traffic"):
        query(root, text)


@pytest.mark.parametrize("text", ["", "  ", "-- a comment"])
def test_an_empty_query_is_refused(root: Path, text: str) -> None:
    with pytest.raises(WrongQuery, match="the query is empty"):
        query(root, text)


def test_infinity_is_null_in_json(root: Path) -> None:
    text = "select 'inf'::double as a, 'nan'::double as b, 1.5::double as c"
    assert json.loads(run("sql", "--lake", str(root), "-o", "json", text)) == {"a": None, "b": None, "c": 1.5}


def test_a_folder_that_is_not_a_lake_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoLake, match="is not a lake"):
        query(tmp_path, "select 1")
    (tmp_path / "_lake.json").write_text('{"layout": 1}')
    with pytest.raises(NoLake, match="no tables yet"):
        query(tmp_path, "select 1")


def test_a_table_has_its_files_and_bytes(root: Path) -> None:
    assert [(table.name, table.files, table.is_journal) for table in tables_of(root)] == [
        ("task", 2, True),
        ("traffic", 1, False),
    ]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(lake, list(arguments))
    if isinstance(result.exception, FairleadError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_people_get_a_table_without_control_characters(root: Path) -> None:
    output = run("sql", "--lake", str(root), "select * from traffic order by added")
    assert "2 rows" in output
    assert "\x1b" not in output


def test_people_see_the_first_rows_and_programs_all(root: Path) -> None:
    text = f"select * from range({ROWS_SHOWN_MAX + 1})"
    assert f"Only the first {ROWS_SHOWN_MAX} rows" in run("sql", "--lake", str(root), text)
    assert len(run("sql", "--lake", str(root), "-o", "json", text).splitlines()) == ROWS_SHOWN_MAX + 1
    assert run("sql", "--lake", str(root), "-o", "csv", text).splitlines()[:2] == ["range", "0"]


def test_json_has_an_object_for_each_row(root: Path) -> None:
    lines = run("sql", "--lake", str(root), "-o", "json", "select day, kind from task where time_us = 3").splitlines()
    assert [json.loads(line) for line in lines] == [{"day": "2026-01-31", "kind": "added"}]


def test_tables_are_listed_with_their_meaning(root: Path) -> None:
    listed = json.loads(run("tables", "--lake", str(root), "-o", "json"))
    assert [row["table"] for row in listed["tables"]] == ["task", "traffic"]
    described = json.loads(run("tables", "traffic", "--lake", str(root), "-o", "json"))["columns"]
    columns = {column.pop("column"): column for column in described}
    assert columns["added"] == {
        "type": "bigint",
        "unit": "tasks",
        "meaning": "tasks added in the window",
        "example": "1200",
    }
