"""The streaming form of `ingest`: the same tables by the same stages."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline import stream
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.jobs import fairness, ingest, traffic
from fairlead.pipeline.lake import Lake, SegmentEntry
from fairlead.pipeline.sources import journal as source
from tests.depth import IS_DEEP
from tests.pipeline import kills
from tests.pipeline.increments.tables import assert_same_tables
from tests.pipeline.journals import START_US, frames_of, task_records, write_journal, write_segment
from tests.pipeline.upkeep.lakes import commit, tasks

KILLS = 20 if IS_DEEP else 1


def context(spark: SparkSession, folder: Path, lake: str = "lake", **options: object) -> JobContext:
    return JobContext(spark=spark, lake=Lake(folder / lake), journal=folder / "journal", options=options)


def test_a_stream_and_a_batch_write_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    total = write_journal(tmp_path / "journal")
    write_segment(tmp_path / "journal", frames_of(task_records(500))[:-7], number=77)
    write_segment(tmp_path / "journal", task_records(5, colour="red"), number=78, version=2)
    (copied,) = (tmp_path / "journal" / "alpha").glob("history.*")
    write_segment(tmp_path / "journal", copied.read_bytes(), kind="history", number=79)
    streamed = stream.run(context(spark, tmp_path, once=True))
    ingested = ingest.run(context(spark, tmp_path, "other"))
    assert streamed.rows == {"task": total, "history": 40}
    assert len(streamed.findings["quarantined"]) == 2
    assert streamed.findings["segments_duplicate"] == ["alpha/history.v1.host-1.000000000079.jsonl.zst"]
    assert streamed.alarm == ingested.alarm is not None
    # The alarm stays, regardless of which run put the segments into quarantine.
    assert stream.run(context(spark, tmp_path, once=True)).alarm == streamed.alarm
    for name in ("task", "history"):
        assert kills.table(tmp_path / "lake", name) == kills.table(tmp_path / "other", name)


def test_a_batch_job_between_two_streams_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    write_segment(tmp_path / "journal", task_records(10), number=5)
    stream.run(context(spark, tmp_path, once=True))
    write_segment(tmp_path / "journal", task_records(20), number=6)
    ingest.run(context(spark, tmp_path))
    # A late segment: its number and its records are older than those in the lake.
    write_segment(tmp_path / "journal", task_records(40, start_us=1_700_000_000_000_000), number=1)
    assert stream.run(context(spark, tmp_path, once=True)).rows["task"] == 40
    assert len(kills.table(tmp_path / "lake", "task")) == 70


def test_a_stream_merges_small_batches(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "COMPACT_BATCHES", 1)
    lake = Lake(tmp_path / "lake")
    for _ in range(8):
        commit(lake, "task", tasks(2))
    write_segment(tmp_path / "journal", task_records(10), number=5)
    stream.run(context(spark, tmp_path, once=True))
    assert len(list(lake.table("task").glob("batch=*"))) == 1
    assert lake.read(spark, "task").count() == 26
    assert stream.run(context(spark, tmp_path, once=True)).rows == {"task": 0, "history": 0}


def test_folders_whose_names_look_like_patterns_are_read_literally(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "a[1]{b}*?\\"
    total = write_journal(folder / "journal")
    assert stream.run(context(spark, folder, once=True)).rows == {"task": total, "history": 40}
    assert ingest.run(context(spark, folder, "other")).rows == {"task": total, "history": 40}
    for lake in (Lake(folder / "lake"), Lake(folder / "other")):
        rows = lake.read(spark, "task")
        assert rows.count() == lake.write("copy", rows, "run") == lake.read_derived(spark, "copy").count() == total


def test_the_contents_of_the_lake_are_listed_once_for_all_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "SEGMENTS_PER_MICRO_BATCH_MAX", 1)
    looked: list[str] = []

    class Watched(Lake):
        def segments(self, table: str) -> Iterator[SegmentEntry]:
            looked.append(table)
            return super().segments(table)

    for number in range(4):
        write_segment(tmp_path / "journal", task_records(10, partition=number), number=number)
    lake = Watched(tmp_path / "lake")
    options = {"once": True}
    summary = stream.run(JobContext(spark=spark, lake=lake, journal=tmp_path / "journal", options=options))
    assert (summary.rows["task"], summary.findings["batches"]) == (40, 4)
    assert sorted(looked) == ["history", "task"]


def test_the_stream_follows_the_journal_until_it_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    write_segment(tmp_path / "journal", task_records(10))
    is_wanted = threading.Event()
    is_wanted.set()
    answers: list[Summary] = []
    running = threading.Thread(
        target=lambda: answers.append(stream.run(context(spark, tmp_path, interval_s=0.5), is_wanted=is_wanted.is_set))
    )
    running.start()
    lake = Lake(tmp_path / "lake")
    try:
        for number in (1, 2):
            write_segment(tmp_path / "journal", task_records(10, partition=number), number=number)
            write_segment(tmp_path / "journal", task_records(5), number=0, cluster=f"new-{number}")
            while len(list(lake.segments("task"))) < 1 + 2 * number:
                threading.Event().wait(0.2)
    finally:
        is_wanted.clear()
        running.join()
    assert answers[0].rows["task"] == 40
    assert lake.read(spark, "task").count() == 40


def test_a_kill_during_the_start_does_not_prevent_the_next_start(spark: SparkSession, tmp_path: Path) -> None:
    """Spark rejects a checkpoint that contains its own draft of the first offset."""
    write_segment(tmp_path / "journal", task_records(10))
    offsets = tmp_path / "lake" / "_stream" / "task" / "offsets"
    with Lake(tmp_path / "lake").locked():
        offsets.mkdir(parents=True)
    for name in (".0.af8c4f08-46cb-40c7-bf12-319c9fca8dea.tmp", "..0.af8c4f08-46cb-40c7-bf12-319c9fca8dea.tmp.crc"):
        (offsets / name).touch()
    assert stream.run(context(spark, tmp_path, once=True)).rows["task"] == 10
    assert stream.run(context(spark, tmp_path, once=True)).rows["task"] == 0


@pytest.mark.sim
@pytest.mark.timeout(3600)
def test_a_stream_killed_at_random_moments_gives_the_tables_of_an_undisturbed_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make sim` kills it 20 times."""
    journal, undisturbed = tmp_path / "journal", Lake(tmp_path / "undisturbed")
    write_journal(journal, clusters=("alpha", "beta", "gamma"), segments=4)
    monkeypatch.setattr(source, "SEGMENTS_PER_MICRO_BATCH_MAX", kills.BATCH_SEGMENTS)

    def finish(lake: Path) -> None:
        stream.run(JobContext(spark=spark, lake=Lake(lake), journal=journal, options={"once": True}))

    finish(undisturbed.root)
    expected = [kills.table(undisturbed.root, name) for name in ("task", "history")]
    assert all(expected)
    batches = kills.committed(undisturbed.root)
    assert batches > 4
    lakes = kills.kill_again_and_again(
        "stream", journal, tmp_path, finish=finish, times=KILLS, batches=batches, seed=KILLS
    )
    for lake in lakes:
        assert [kills.table(lake, name) for name in ("task", "history")] == expected


def test_a_stream_keeps_the_tables_of_traffic_and_fairness_as_the_jobs_write_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    times_us = (START_US, START_US - 7_200_000_000)
    for number, start_us in enumerate(times_us):
        records = task_records(40, start_us=start_us, step_us=2_000_000, kind="added", fairness_key="a")
        write_segment(tmp_path / "journal", records, number=number)
        summary = stream.run(context(spark, tmp_path, once=True, tables_s=0.1))
        assert (summary.findings["tables_refreshed"] > 0, summary.findings["tables_failed"]) == (True, [])
    ingest.run(context(spark, tmp_path, "other"))
    for job in (traffic, fairness):
        job.run(context(spark, tmp_path, "other"))
    tables = (*traffic.TABLES, *fairness.TABLES)
    assert_same_tables(Lake(tmp_path / "lake"), Lake(tmp_path / "other"), tables)


def test_a_table_that_can_not_be_refreshed_does_not_end_the_stream(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_context: JobContext) -> Summary:
        raise OSError("disk full")

    write_segment(tmp_path / "journal", task_records(10))
    monkeypatch.setattr(traffic, "run", fail)
    failed = stream.run(context(spark, tmp_path, once=True, tables_s=0.1))
    assert (failed.rows["task"], failed.findings["tables_failed"]) == (10, ["disk full"])
    monkeypatch.undo()
    assert stream.run(context(spark, tmp_path, once=True, tables_s=0.1)).findings["tables_refreshed"] == 1
    assert Lake(tmp_path / "lake").has("fairness")
