"""The lake: readers of every engine see committed data and nothing else."""

import fcntl
import json
import os
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from fairlead.pipeline import lake as module
from fairlead.pipeline import lake_files
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import ingest
from fairlead.pipeline.lake import Lake, LakeIsBusy, NoSuchTable, NotALake, Quarantined, SegmentEntry
from fairlead.pipeline.lake_files import BrokenLake
from tests.pipeline import kills
from tests.pipeline.journals import DAY_US, START_US, history_records, task_records, write_journal, write_segment

ENTRY = SegmentEntry(cluster="alpha", name="task.v1.h.000000000000.jsonl.zst", bytes=1, digest="d", rows=2)


def filled(spark: SparkSession, folder: Path) -> Lake:
    write_journal(folder / "journal")
    lake = Lake(folder / "lake")
    ingest.run(JobContext(spark=spark, lake=lake, journal=folder / "journal"))
    return lake


def test_reads_can_be_limited_by_time_and_namespace(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    for day in range(3):
        write_segment(journal, task_records(10, start_us=START_US + day * DAY_US, step_us=1), number=day)
    write_segment(journal, task_records(5, namespace_id="bank"), number=9)
    write_segment(journal, task_records(3, namespace_id="bank#tills:1.0"), number=10)
    write_segment(journal, task_records(1, namespace_id="bank2"), number=11)
    lake = Lake(tmp_path / "lake")
    ingest.run(JobContext(spark=spark, lake=lake, journal=journal))
    assert lake.read(spark, "task", since=START_US + DAY_US).count() == 20
    assert lake.read(spark, "task", since=START_US + DAY_US + 4, until=START_US + 2 * DAY_US).count() == 6
    assert lake.read(spark, "task", until=START_US + 2 * DAY_US + 1, namespace="shop").count() == 21
    assert lake.read(spark, "task", namespace="bank").count() == 8
    calendar_us = (-62_135_596_800_000_000, 253_402_300_800_000_000 - 1)
    assert lake.read(spark, "task", since=calendar_us[0], until=calendar_us[1]).count() == 39


def test_an_uncommitted_batch_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    lake = filled(spark, tmp_path)
    before = kills.table(lake.root, "task")
    with lake.locked():
        staged = lake.stage("task")
        lake.read(spark, "task").write.mode("overwrite").parquet(str(staged / "cluster=x" / "day=2026-01-01"))
    assert lake.read(spark, "task").count() == len(before)
    assert kills.table(lake.root, "task") == before
    with lake.locked():
        assert not staged.exists()


def test_an_unwritten_table_has_its_schema_and_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    write_segment(tmp_path / "journal", history_records(3), kind="history")
    lake = Lake(tmp_path / "lake")
    with pytest.raises(NotALake, match="no lake"):
        lake.read(spark, "task")
    ingest.run(JobContext(spark=spark, lake=lake, journal=tmp_path / "journal"))
    assert lake.read(spark, "task").count() == 0
    assert (lake.has("task"), lake.has("history")) == (False, True)


def test_a_derived_table_is_replaced_atomically(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with pytest.raises(NoSuchTable, match="'traffic'"):
        lake.read_derived(spark, "traffic")
    assert lake.write("traffic", spark.range(5), "one") == 5
    reader = lake.read_derived(spark, "traffic")
    assert lake.write("traffic", spark.range(7).selectExpr("id", "id % 2 AS half"), "two", partition_by=["half"]) == 7
    assert lake.read_derived(spark, "traffic").count() == 7
    assert lake.read_derived(spark, "traffic").columns == ["id", "half"]
    # A reader that began before the swap keeps its data.
    assert reader.count() == 5
    for run in ("three", "four"):
        lake.write("traffic", spark.range(1), run)
    assert len(list((lake.root / "_runs" / "traffic").iterdir())) == lake_files.RUNS_KEPT
    assert list((lake.root / "traffic").glob("*.parquet"))


def test_a_failing_run_leaves_the_table_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.write("traffic", spark.range(5), "one")
    killed = lake.root / "_staging" / "runs" / "traffic-killed"
    killed.mkdir()
    os.utime(killed, (1, 1))
    with pytest.raises(Exception, match="no good"):
        lake.write("traffic", spark.range(5).selectExpr("raise_error('no good') AS id"), "two")
    assert lake.read_derived(spark, "traffic").count() == 5
    assert not any((lake.root / "_staging" / "runs").iterdir())


def test_a_folder_that_is_not_a_lake_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotALake, match="not a folder"):
        Lake(tmp_path / "file")
    with pytest.raises(NotALake, match="has files, but is not a lake"):
        Lake(tmp_path)
    (tmp_path / "_lake.json").write_text("{")
    with pytest.raises(NotALake, match="damaged"):
        Lake(tmp_path)
    (tmp_path / "_lake.json").write_text('{"layout": 99}')
    with pytest.raises(NotALake, match="layout 99"):
        Lake(tmp_path)


def test_a_lake_with_another_schema_is_refused_with_the_difference(spark: SparkSession, tmp_path: Path) -> None:
    lake = filled(spark, tmp_path)
    file = lake.root / "task" / "_schema.json"
    schema = json.loads(file.read_text())
    schema["fields"] = [field for field in schema["fields"] if field["name"] != "kind"]
    schema["fields"][0]["type"] = "string"
    file.write_text(json.dumps(schema))
    with pytest.raises(NotALake, match="kind is missing, time_us is string, not bigint"):
        Lake(lake.root)


def test_lakes_of_older_and_newer_releases_are_read_and_extended(spark: SparkSession, tmp_path: Path) -> None:
    lake = filled(spark, tmp_path)
    before = lake.read(spark, "task").count()
    file = lake.root / "task" / "_schema.json"
    schema = json.loads(file.read_text())
    # An older release did not have the column `wait_us`, and a newer one has `colour`.
    schema["fields"] = [field for field in schema["fields"] if field["name"] != "wait_us"]
    schema["fields"].append({"name": "colour", "type": "string", "nullable": True, "metadata": {}})
    file.write_text(json.dumps(schema))
    for written in lake.table("task").rglob("*.parquet"):
        rows = parquet.ParquetFile(written).read().drop_columns(["wait_us"])
        parquet.write_table(rows.append_column("colour", rows.column("kind")), written)
        written.with_name(f".{written.name}.crc").unlink(missing_ok=True)
    later = Lake(lake.root)
    rows = later.read(spark, "task")
    assert rows.count() == before
    assert "colour" not in rows.columns
    assert {row["wait_us"] for row in rows.select("wait_us").distinct().collect()} == {None}
    write_segment(tmp_path / "journal", task_records(3), number=50)
    ingest.run(JobContext(spark=spark, lake=later, journal=tmp_path / "journal"))
    assert later.read(spark, "task").count() == before + 3
    names = [field["name"] for field in json.loads(file.read_text())["fields"]]
    assert {"wait_us", "colour"} <= set(names)


def test_a_damaged_manifest_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    lake = filled(spark, tmp_path)
    next(lake.root.glob("task/batch=*/_batch.json")).write_text("{")
    with pytest.raises(BrokenLake, match="_batch"):
        list(lake.segments("task"))


def test_only_one_process_writes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_WAIT_S_MAX", 0.2)
    lake = Lake(tmp_path / "lake")
    with lake.locked():
        pass
    with (lake.root / "_lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LakeIsBusy, match="another"), lake.locked():
            pass
    with lake.locked():
        pass


def test_a_kill_during_the_creation_of_a_lake_leaves_a_valid_lake(tmp_path: Path) -> None:
    (tmp_path / "._lake.json.0a1b2c3d").write_text("{")
    with Lake(tmp_path).locked():
        pass
    assert Lake(tmp_path).root == tmp_path


def test_the_quarantine_remembers_and_forgives(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with lake.locked():
        lake.quarantine(Quarantined(ENTRY, "broken"))
        lake.quarantine(Quarantined(ENTRY, "still broken"))
    assert list(lake.quarantined()) == [Quarantined(ENTRY, "still broken")]
    lake.release(ENTRY)
    lake.release(ENTRY)
    assert list(lake.quarantined()) == []
