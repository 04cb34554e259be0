"""Plans of runs by the batches of a lake and the origins of its tables; without Spark."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from fairlead.pipeline import derived
from fairlead.pipeline.increments import origin
from fairlead.pipeline.increments.changes import files_with, new_batches, touched_hours, touched_keys
from fairlead.pipeline.increments.origin import Origin, Plan, plan_run
from fairlead.pipeline.increments.touched import HOUR_US, Hours, Keys, Spans
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.lake_files import write_json
from fairlead.pipeline.upkeep.compaction import compact
from fairlead.pipeline.upkeep.retention import retain
from tests.pipeline.upkeep.lakes import TODAY, commit, history, tasks

TABLES = ("traffic", "traffic_lists")
NAMES: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    NAMES.clear()
    monkeypatch.setattr(origin, "namespace_names", lambda *_: dict(NAMES))


def plan(lake: Lake, *, window_s: float = 60.0, is_joint: bool = False, **narrowed: Any) -> Plan:
    context = JobContext(spark=None, lake=lake, **narrowed)  # type: ignore[arg-type]
    return plan_run(context, "task", TABLES, {"window_s": window_s}, is_joint=is_joint)


def write(lake: Lake, made: Origin, table: str, rows: int = 1) -> None:
    """Put a table in place as a run would."""
    with derived._staged(lake.root, table, "run") as staged:
        staged.mkdir(parents=True)
        parquet.write_table(pa.table({"namespace_id": ["shop"] * rows, "window_us": [0] * rows}), staged / "a.parquet")
        write_json(staged / "_origin.json", made.plain())
        derived._swap(lake.root, table, staged, "run")


def done(lake: Lake, **options: Any) -> Plan:
    """Plan a run, and write its tables."""
    found = plan(lake, **options)
    for table in TABLES:
        write(lake, found.origin, table)
    return found


def test_a_run_computes_all_at_first_and_then_only_new_batches(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    commit(lake, "task", tasks(20), ago=1)
    assert done(lake).is_whole
    assert plan(lake).is_unchanged
    commit(lake, "task", tasks(3))
    found = plan(lake)
    assert (found.is_whole, found.is_unchanged, [batch.rows for batch in found.batches]) == (False, False, [3])
    done(lake)
    assert plan(lake).is_unchanged


def test_other_parameters_or_a_part_of_the_data_make_a_run_whole(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    commit(lake, "task", tasks(20))
    done(lake)
    assert plan(lake, window_s=30.0).is_whole
    assert plan(lake, since_us=1).is_whole
    assert plan(lake, namespace="shop").is_whole
    # A run of a part of the data leaves tables from which no other run may go on.
    done(lake, until_us=1)
    assert plan(lake).is_whole


def test_many_new_rows_make_a_run_whole(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    commit(lake, "task", tasks(20))
    done(lake)
    commit(lake, "task", tasks(25))
    assert plan(lake).is_whole


def test_another_name_of_a_namespace_makes_a_run_whole_and_a_new_namespace_does_not(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    commit(lake, "task", tasks(20))
    NAMES["shop"] = "orders"
    done(lake)
    NAMES["other"] = "payments"
    assert plan(lake).is_unchanged
    NAMES["shop"] = "sales"
    assert plan(lake).is_whole
    # The rows of the table had no name when they were written.
    NAMES.clear()
    done(lake)
    NAMES["shop"] = "orders"
    assert plan(lake).is_whole


def test_after_a_kill_between_two_tables_a_run_continues_from_the_older_one(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    commit(lake, "task", tasks(20))
    done(lake)
    commit(lake, "task", tasks(2))
    write(lake, plan(lake).origin, "traffic")
    commit(lake, "task", tasks(1))
    assert sum(batch.rows for batch in plan(lake).batches) == 3
    # Where one table decides what of another one is computed, only a whole run is right.
    assert plan(lake, is_joint=True).is_whole


def test_a_compaction_hides_no_new_rows_and_shows_no_old_ones(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for _ in range(3):
        commit(lake, "task", tasks(10), ago=1)
    done(lake)
    late = {("alpha", commit(lake, "task", tasks(2), ago=2))}
    compact_all(lake)
    (batch,) = plan(lake).batches
    assert batch.rows == 2
    assert batch.segments == frozenset(late)
    (hour,) = touched_hours(plan(lake).batches, window_us=60_000_000)
    midnight = datetime.combine(TODAY - timedelta(days=2), datetime.min.time(), UTC)
    assert hour == int(midnight.timestamp()) * 1_000_000
    late |= {("alpha", commit(lake, "task", tasks(1), ago=1)) for _ in range(4)}
    compact_all(lake)
    (batch,) = plan(lake).batches
    assert batch.rows == 6
    assert batch.segments == frozenset(late)


def compact_all(lake: Lake) -> None:
    with lake.locked():
        assert compact(lake, "task", batches_min=2).batches == 1


def test_a_retention_that_removes_rows_makes_the_next_run_whole(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    commit(lake, "task", tasks(3), ago=9)
    commit(lake, "task", tasks(3))
    done(lake)
    for days, is_whole in ((9, False), (5, True)):
        with lake.locked():
            retain(lake, "task", before=TODAY - timedelta(days=days), today=TODAY)
        assert plan(lake).is_whole == is_whole


def test_the_files_with_a_workflow_id_are_found_by_its_name(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for name in "ab":
        commit(lake, "history", [row | {"workflow_id": name} for row in history(name, 3)])
    keys = touched_keys(new_batches(lake, "history", through=0), ("namespace_id", "workflow_id"))
    assert keys.to_pylist() == [{"namespace_id": "shop", "workflow_id": "b"}]
    found = files_with(lake, "history", keys)
    assert found is not None
    (file,) = found
    assert file.relative_to(lake.table("history").resolve()).parts[0] == "batch=000000000001"


def test_rows_are_touched_by_hour_key_or_span() -> None:
    rows = pa.RecordBatch.from_pylist(
        [
            {"window_us": HOUR_US - 1, "namespace_id": "a", "workflow_id": "b"},
            {"window_us": HOUR_US, "namespace_id": "ab", "workflow_id": ""},
            {"window_us": 3 * HOUR_US, "namespace_id": "a", "workflow_id": "b"},
        ]
    )
    assert Hours(frozenset({HOUR_US, 2 * HOUR_US})).mask(rows).to_pylist() == [False, True, False]
    names = ("namespace_id", "workflow_id")
    keys = pa.table({"namespace_id": ["a"], "workflow_id": ["b"]})
    assert Keys(names, keys).mask(rows).to_pylist() == [True, False, True]
    spans = pa.table({"namespace_id": ["a"], "span_first_us": [HOUR_US], "span_end_us": [3 * HOUR_US + 1]})
    assert Spans(("namespace_id",), spans).mask(rows).to_pylist() == [False, False, True]


def test_untouched_files_are_linked_and_small_ones_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present, staged = tmp_path / "present", tmp_path / "staged"
    present.mkdir()
    staged.mkdir()
    for hour in range(4):
        rows = pa.table({"window_us": [hour * HOUR_US, hour * HOUR_US + 1], "n": [hour, hour]})
        parquet.write_table(rows.replace_schema_metadata({"written": "by Spark"}), present / f"{hour}.parquet")
    touched = Hours(frozenset({HOUR_US}))
    parquet.write_table(pa.table({"window_us": [HOUR_US], "n": [9]}), staged / "new.parquet")
    derived._add_untouched(staged, present, touched)
    assert sorted(file.name for file in staged.iterdir()) == ["0.parquet", "2.parquet", "3.parquet", "new.parquet"]
    assert (staged / "2.parquet").samefile(present / "2.parquet")
    monkeypatch.setattr(derived, "SMALL_FILES_MAX", 3)
    derived._merge_small(staged)
    (merged,) = staged.iterdir()
    assert parquet.read_table(merged).sort_by("window_us")["n"].to_pylist() == [0, 0, 9, 2, 2, 3, 3]
    assert parquet.read_schema(merged).metadata[b"written"] == b"by Spark"
