"""Retention removes old days, and never a part of a run."""

from datetime import timedelta
from pathlib import Path

import pytest

from fairlead.pipeline.lake import Lake
from fairlead.pipeline.upkeep.compaction import compact
from fairlead.pipeline.upkeep.retention import Retained, TooShort, retain
from tests.pipeline.upkeep.lakes import TODAY, commit, day, history, rows, tasks


def retained(lake: Lake, table: str, *, days: int, is_dry_run: bool = False) -> Retained:
    with lake.locked():
        return retain(lake, table, before=TODAY - timedelta(days=days), today=TODAY, is_dry_run=is_dry_run)


def test_rows_of_old_days_are_removed_and_the_others_stay(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for ago in (10, 9, 8, 3):
        commit(lake, "task", tasks(ago), ago=ago)
    found = retained(lake, "task", days=8)
    assert (found.before, found.rows_removed, found.files_removed, found.files_rewritten) == (day(8), 19, 2, 0)
    assert {row[0] for row in rows(lake.root, "task", "day")} == {day(8), day(3)}
    assert retained(lake, "task", days=8).rows_removed == 0


def test_a_dry_run_removes_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    commit(lake, "task", tasks(4), ago=10)
    commit(lake, "task", tasks(1), ago=1)
    assert retained(lake, "task", days=5, is_dry_run=True).rows_removed == 4
    assert len(rows(lake.root, "task")) == 5


def test_an_open_run_keeps_its_whole_history(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    commit(lake, "history", [*history("long", 2), *history("short", 3)], ago=20)
    commit(lake, "history", history("other"), ago=19, cluster="beta")
    commit(lake, "history", history("long"), ago=0, cluster="beta")
    found = retained(lake, "history", days=7)
    assert (found.rows_removed, found.files_removed, found.files_rewritten) == (4, 1, 1)
    left = rows(lake.root, "history", "run_id, day, cluster")
    assert left == [("long", day(20), "alpha"), ("long", day(20), "alpha"), ("long", day(0), "beta")]


def test_a_reset_run_keeps_the_events_of_the_run_that_it_begins_with(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    commit(lake, "history", [*history("base", 2), *history("other", 1)], ago=20)
    commit(lake, "history", history("reset", 2, tree_id="base"), ago=1)
    assert retained(lake, "history", days=7).rows_removed == 1
    assert {row[0] for row in rows(lake.root, "history", "run_id")} == {"base", "reset"}


def test_an_open_run_that_sleeps_for_longer_keeps_its_history(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    commit(lake, "history", [*history("sleeps", 2, is_open=True), *history("done", 3)], ago=90)
    assert retained(lake, "history", days=7).rows_removed == 3
    assert {row[0] for row in rows(lake.root, "history", "run_id")} == {"sleeps"}


def test_a_kept_row_keeps_every_column(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    nested = {"items": [{"event_id": 1, "version": 2}], "event_types": [1, 10], "signals": ["", "a"], "payload": "x"}
    commit(lake, "history", [*[row | nested for row in history("long")], *history("done")], ago=20)
    commit(lake, "history", history("long"), ago=0)
    before = [row for row in rows(lake.root, "history", "* EXCLUDE (batch)") if "long" in row]
    assert retained(lake, "history", days=7).files_rewritten == 1
    assert rows(lake.root, "history", "* EXCLUDE (batch)") == before


def test_removed_segments_are_not_ingested_again_and_their_numbers_not_used_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    names = {commit(lake, "task", tasks(1), ago=ago) for ago in (9, 10)}
    retained(lake, "task", days=5)
    assert {entry.name for entry in lake.segments("task")} == names
    commit(lake, "task", tasks(1))
    assert sorted(folder.name for folder in lake.table("task").glob("batch=*")) == [
        "batch=000000000000",
        "batch=000000000001",
        "batch=000000000002",
    ]
    with lake.locked():
        compact(lake, "task", batches_min=2)
    assert len(list(lake.segments("task"))) == 3


def test_days_that_records_still_arrive_for_cannot_be_removed(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    commit(lake, "task", tasks(1))
    with pytest.raises(TooShort, match="keep at least 2 days"):
        retained(lake, "task", days=1)
