"""The job `ingest`: each segment once, whole, or not at all."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fairlead.core.errors import FixRequest
from fairlead.journal import UnknownSchema
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.jobs import ingest
from fairlead.pipeline.lake import Lake, Quarantined
from fairlead.pipeline.schemas import BRONZE, differences
from fairlead.pipeline.sources.segments import NoJournal
from tests.pipeline import killing
from tests.pipeline.writing import frames_of, history_records, task_records, write_journal, write_segment

KILLS = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "sim" else 4


def run(spark: SparkSession, folder: Path) -> Summary:
    return ingest.run(JobContext(spark=spark, lake=Lake(folder / "lake"), journal=folder / "journal"))


def test_the_tables_hold_what_was_journaled_with_its_origin(spark: SparkSession, tmp_path: Path) -> None:
    total = write_journal(tmp_path / "journal")
    summary = run(spark, tmp_path)
    assert (summary.rows, summary.alarm) == ({"task": total, "history": 40}, None)

    lake = Lake(tmp_path / "lake")
    rows = lake.read(spark, "task")
    assert differences(expected=BRONZE["task"], found=rows.schema) == []
    assert rows.count() == total
    days = {(row.cluster, str(row.day)) for row in rows.select("cluster", "day").distinct().collect()}
    assert days == {(cluster, day) for cluster in ("alpha", "beta") for day in ("2026-01-01", "2026-01-02")}
    one = rows.where("cluster = 'beta' AND segment LIKE '%.000000000002.%'").orderBy("position").collect()
    assert [row.position for row in one] == list(range(271))
    assert (one[0]["pass"], one[0].wait_us, one[0].was_sync, one[0].partition) == (None, 500, True, 2)

    history = lake.read(spark, "history").where("cluster = 'alpha'").orderBy("position").first()
    assert history is not None
    assert (history.workflow_id, history.event_types, history.items[0].event_id) == ("order-0", [1, 5], 2)
    assert history.signals is None


def test_again_changes_nothing_and_late_segments_are_picked_up(spark: SparkSession, tmp_path: Path) -> None:
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    write_segment(journal, task_records(10), number=5)
    assert run(spark, tmp_path).rows["task"] == 10
    before = killing.table(lake, "task")
    assert run(spark, tmp_path).rows == {"task": 0, "history": 0}
    assert killing.table(lake, "task") == before

    write_segment(journal, task_records(20), number=3)
    write_segment(journal, task_records(1), number=1, cluster="late")
    summary = run(spark, tmp_path)
    assert (summary.rows["task"], summary.findings["segments_known"]) == (21, 1)
    assert len(killing.table(lake, "task")) == 31


def test_bad_segments_go_into_quarantine_whole_and_the_others_come_in(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    good = frames_of(task_records(500))
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 4
    write_segment(journal, good, number=0)
    write_segment(journal, good[:-7], number=1)
    write_segment(journal, bytes(flipped), number=2)
    write_segment(journal, frames_of(task_records(300, wait_us="long")), number=3)
    summary = run(spark, tmp_path)
    assert summary.rows["task"] == 500
    found = {entry["name"][-22:-10]: (entry["reason"], entry["rows"]) for entry in summary.findings["quarantined"]}
    assert found["000000000001"] == ("it ends within a frame (after 400 sound records)", 400)
    assert found["000000000002"][0].startswith("a frame is damaged")
    assert found["000000000003"][0].startswith("a line is no JSON object")
    assert summary.alarm is not None
    assert "and 2 more can't be read" in summary.alarm
    assert {row[-4] for row in killing.table(tmp_path / "lake", "task")} == {"task.v1.host-1.000000000000.jsonl.zst"}

    again = run(spark, tmp_path)
    assert (again.alarm, again.rows["task"], again.findings["quarantined_in_all"]) == (None, 0, 3)

    write_segment(journal, good, number=1)
    replaced = run(spark, tmp_path)
    assert (replaced.rows["task"], replaced.findings["quarantined_in_all"]) == (500, 2)


def test_a_kill_between_the_commit_and_the_pardon_leaves_no_false_quarantine(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_segment(tmp_path / "journal", task_records(10))
    lake = Lake(tmp_path / "lake")
    context = JobContext(spark=spark, lake=lake, journal=tmp_path / "journal")
    ingest.run(context)
    # As a segment is that was faulty, was replaced, and came in just before the end.
    (entry,) = lake.segments("task")
    lake.quarantine(Quarantined(entry, "it ends within a frame"))
    lake.quarantine(Quarantined(replace(entry, name="task.v1.host-1.000000000009.jsonl.zst"), "a frame is damaged"))
    summary = ingest.run(context)
    assert summary.findings["quarantined_in_all"] == 1
    assert [found.reason for found in lake.quarantined()] == ["a frame is damaged"]


def test_a_segment_that_changed_after_it_came_in_is_reported_and_not_read_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_segment(tmp_path / "journal", task_records(5))
    run(spark, tmp_path)
    write_segment(tmp_path / "journal", task_records(900))
    summary = run(spark, tmp_path)
    assert (summary.rows["task"], len(summary.findings["changed_after_ingest"])) == (0, 1)
    assert summary.alarm is not None


def test_cluster_names_come_back_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    for number, cluster in enumerate(("eu west=1", "ü%20", "7", "a:b")):
        write_segment(tmp_path / "journal", task_records(3 + number), cluster=cluster)
        write_segment(tmp_path / "journal", b"", cluster=cluster, number=9)
    summary = run(spark, tmp_path)
    counts = {
        row.cluster: row["count"]
        for row in Lake(tmp_path / "lake").read(spark, "task").groupBy("cluster").count().collect()
    }
    assert counts == {"eu west=1": 3, "ü%20": 4, "7": 5, "a:b": 6}
    assert {entry["cluster"] for entry in summary.findings["quarantined"]} == set(counts)


def test_what_is_no_journal_is_refused_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NoJournal, match="there is no journal"):
        run(spark, tmp_path)
    (tmp_path / "journal" / "alpha").mkdir(parents=True)
    with pytest.raises(NoJournal, match="nothing was sealed"):
        run(spark, tmp_path)
    write_segment(tmp_path / "journal", history_records(3), kind="history")
    write_segment(tmp_path / "journal", task_records(3), version=2)
    with pytest.raises(UnknownSchema, match="version 2"):
        run(spark, tmp_path)
    with pytest.raises(FixRequest, match="--journal"):
        ingest.run(JobContext(spark=spark, lake=Lake(tmp_path / "lake")))
    assert not (tmp_path / "lake").exists()


@pytest.mark.sim
@pytest.mark.timeout(3600)
def test_killed_at_random_moments_it_ends_with_the_tables_of_an_undisturbed_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 5, 'What it must show', 2: 20 times with `make sim`."""
    journal, undisturbed = tmp_path / "journal", Lake(tmp_path / "undisturbed")
    write_journal(journal, clusters=("alpha", "beta", "gamma"), segments=5)
    write_segment(journal, frames_of(task_records(500))[:-7], number=77)
    monkeypatch.setattr(ingest, "BATCH_SEGMENTS_MAX", killing.BATCH_SEGMENTS)
    ingest.run(JobContext(spark=spark, lake=undisturbed, journal=journal))
    expected = [killing.table(undisturbed.root, name) for name in ("task", "history")]
    assert all(expected)
    batches = killing.committed(undisturbed.root)
    assert batches > 4
    lakes = killing.kill_again_and_again("ingest", journal, tmp_path, times=KILLS, batches=batches, seed=KILLS)
    for lake in lakes:
        assert [killing.table(lake, name) for name in ("task", "history")] == expected
        assert [*Lake(lake).quarantined()] == [*undisturbed.quarantined()]
