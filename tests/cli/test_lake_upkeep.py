"""`fairlead lake compact` and `fairlead lake retain`."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from fairlead.cli.lake import JOURNAL_TABLES, lake
from fairlead.core.errors import FixRequest
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas import BRONZE
from tests.pipeline.upkeep.lakes import commit, rows, tasks


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(lake, [*arguments, "-o", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def filled(folder: Path) -> Lake:
    there = Lake(folder / "lake")
    # The days are in the past of any test run.
    for ago in (300, 299, 298):
        commit(there, "task", tasks(2), ago=ago)
    return there


def test_the_named_tables_are_those_of_the_lake() -> None:
    assert set(JOURNAL_TABLES) == set(BRONZE)


def test_compact_merges_batches(tmp_path: Path) -> None:
    there = filled(tmp_path)
    found = run("compact", "--lake", str(there.root), "--batches", "2")
    assert found["headline"] == "2 fewer batches"
    assert found["tables"][0]["rows rewritten"] == 6
    assert len(list(there.table("task").glob("batch=*"))) == 1


def test_retain_shows_what_it_would_remove_before_it_removes_it(tmp_path: Path) -> None:
    there = filled(tmp_path)
    run("retain", "--lake", str(there.root), "--keep", "task=30", "--dry-run")
    assert len(rows(there.root, "task")) == 6
    run("retain", "--lake", str(there.root), "--keep", "task=30")
    assert not list(there.table("task").resolve().rglob("*.parquet"))


@pytest.mark.parametrize("text", ["task", "task=", "task=-1", "task=1h", "traffic=30", "=30"])
def test_a_wrong_retention_is_named(tmp_path: Path, text: str) -> None:
    there = filled(tmp_path)
    with pytest.raises(FixRequest, match="give a table and a number of days, like task=90"):
        CliRunner().invoke(
            lake, ["retain", "--lake", str(there.root), "--keep", text], catch_exceptions=False, standalone_mode=False
        )


def test_publish_writes_both_formats(tmp_path: Path) -> None:
    there = filled(tmp_path)
    found = run(
        *("publish", "--lake", str(there.root), "--delta", str(tmp_path / "delta")),
        *("--iceberg", f"sqlite:///{tmp_path}/catalog.db", "--warehouse", str(tmp_path / "iceberg")),
    )
    assert found["headline"] == "2 commits"
    assert [(row["table"], row["format"], row["rows"]) for row in found["tables"]] == [
        ("task", "delta", 6),
        ("task", "iceberg", 6),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "give --delta or --iceberg"),
        (("--iceberg", "sqlite:///c.db"), "--iceberg and --warehouse need each other"),
        (("--delta", "d", "--table", "colour"), "--table colour: this lake has no such table; it has task"),
        (("--delta", "gopher://d"), "gopher://d/task can't be used"),
        (("--iceberg", "sqlite:////nowhere/c.db", "--warehouse", "w"), "the table 'task' can't be published"),
    ],
)
def test_a_wrong_place_is_named(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    there = filled(tmp_path)
    with pytest.raises(FixRequest, match=words):
        CliRunner().invoke(
            lake, ["publish", "--lake", str(there.root), *options], catch_exceptions=False, standalone_mode=False
        )


def test_publish_empties_a_table_that_lost_its_rows(tmp_path: Path) -> None:
    there = filled(tmp_path)
    delta = ("publish", "--lake", str(there.root), "--delta", str(tmp_path / "delta"))
    run(*delta)
    run("retain", "--lake", str(there.root), "--keep", "task=30")
    assert run(*delta)["headline"] == "1 commit"
    assert DeltaTable(str(tmp_path / "delta" / "task")).to_pyarrow_table().num_rows == 0
