"""Data that `ingest` can read but must not trust: copies, unknown names, newer schemas, wrong clocks."""

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fairlead.journal import SCHEMA_VERSION
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.jobs import ingest
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.sources import segments as sources
from tests.pipeline.journals import START_US, history_records, task_records, write_segment

YEAR_2100_US = 4_102_444_800_000_000
HOUR_US = 3_600_000_000


def run(spark: SparkSession, folder: Path, **options: object) -> Summary:
    return ingest.run(JobContext(spark, Lake(folder / "lake"), journal=folder / "journal", options=options))


def test_the_same_segment_under_another_name_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    first = write_segment(journal, task_records(20), number=1)
    write_segment(journal, first.read_bytes(), number=2)
    # The same bytes from another cluster are another segment.
    write_segment(journal, first.read_bytes(), number=1, cluster="beta")
    summary = run(spark, tmp_path)
    assert (summary.rows["task"], summary.findings["segments_duplicate"]) == (
        40,
        ["alpha/task.v1.host-1.000000000002.jsonl.zst"],
    )
    first.rename(first.with_name("task.v1.host-2.000000000009.jsonl.zst"))
    again = run(spark, tmp_path)
    assert (again.rows["task"], len(again.findings["segments_duplicate"]), again.alarm) == (0, 2, None)


def test_unknown_fields_and_kinds_are_counted_and_the_rest_is_read(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    write_segment(journal, [*task_records(7, colour="red"), *task_records(3), *task_records(2, kind="parked")])
    items = [{"event_id": 2, "version": 1, "shade": 3}]
    write_segment(journal, history_records(4, items=items, colour=1), kind="history")
    write_segment(journal, task_records(1), kind="unheard")
    summary = run(spark, tmp_path)
    assert summary.rows == {"task": 12, "history": 4}
    assert summary.findings["unknown_fields"] == {"colour": 11, "items.shade": 4}
    assert summary.findings["unknown_kinds"] == {"parked": 2}
    assert summary.findings["unknown_segments"] == ["alpha/unheard.v1.host-1.000000000000.jsonl.zst"]
    # The next run still counts them, because they are in the lake.
    again = run(spark, tmp_path)
    assert (again.findings["unknown_kinds"], again.findings["segments_of_unknown_kind"]) == ({"parked": 2}, 1)


def test_a_segment_of_a_newer_schema_waits_and_blocks_no_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal"
    write_segment(journal, task_records(5), number=1)
    write_segment(journal, task_records(8), number=2, version=SCHEMA_VERSION + 1)
    summary = run(spark, tmp_path)
    assert summary.rows["task"] == 5
    assert f"version {SCHEMA_VERSION + 1}; this release reads {SCHEMA_VERSION}" in str(summary.alarm)
    assert run(spark, tmp_path).alarm == summary.alarm
    # A later release reads the newer segment.
    monkeypatch.setattr(ingest, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    monkeypatch.setattr(sources, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    later = run(spark, tmp_path)
    assert (later.rows["task"], later.findings["quarantined_in_all"], later.alarm) == (8, 0, None)


@pytest.mark.parametrize(
    "time_us", [YEAR_2100_US, 0, time.time_ns() // 1000 + 26 * HOUR_US], ids=["2100", "1970", "ahead"]
)
def test_a_segment_with_an_implausible_time_goes_into_quarantine_with_the_reason(
    spark: SparkSession, tmp_path: Path, time_us: int
) -> None:
    journal = tmp_path / "journal"
    write_segment(journal, [*task_records(5), *task_records(1, start_us=time_us)], number=1)
    # A clock that is some hours ahead is plausible.
    ahead_us = time.time_ns() // 1000 + 12 * HOUR_US
    write_segment(journal, [*task_records(1, start_us=START_US), *task_records(1, start_us=ahead_us)], number=2)
    summary = run(spark, tmp_path)
    assert summary.rows["task"] == 2
    assert [found["name"][-22:-10] for found in summary.findings["quarantined"]] == ["000000000001"]
    assert "a record's time is implausible: before 2010, or more than a day after it was read" in str(summary.alarm)


def test_an_alarm_survives_the_kill_of_the_run_that_found_the_damage(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal"
    write_segment(journal, b"torn", number=1)
    write_segment(journal, task_records(5), number=2)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ingest, "_findings", killed)
        with pytest.raises(KeyboardInterrupt):
            run(spark, tmp_path)
    summary = run(spark, tmp_path)
    assert summary.findings["quarantined"] == []
    assert "000000000001" in str(summary.alarm)


def test_the_lake_has_the_arrival_time_of_each_segment(spark: SparkSession, tmp_path: Path) -> None:
    before_us = time.time_ns() // 1000
    write_segment(tmp_path / "journal", task_records(5))
    run(spark, tmp_path)
    (entry,) = Lake(tmp_path / "lake").segments("task")
    assert before_us <= entry.arrived_us <= time.time_ns() // 1000
