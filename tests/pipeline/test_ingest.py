"""The job `ingest`: each segment once, complete or not at all."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fairlead.core.errors import FixRequest
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.jobs import ingest
from fairlead.pipeline.lake import Lake, Quarantined
from fairlead.pipeline.schemas import BRONZE
from fairlead.pipeline.sources.segments import NoJournal
from tests.depth import IS_DEEP
from tests.pipeline import kills
from tests.pipeline.journals import frames_of, task_records, write_journal, write_segment

KILLS = 20 if IS_DEEP else 1


def run(spark: SparkSession, folder: Path, **options: object) -> Summary:
    return ingest.run(JobContext(spark, Lake(folder / "lake"), journal=folder / "journal", options=options))


def test_the_tables_hold_what_was_journaled_with_its_origin(spark: SparkSession, tmp_path: Path) -> None:
    total = write_journal(tmp_path / "journal")
    summary = run(spark, tmp_path)
    assert (summary.rows, summary.alarm) == ({"task": total, "history": 40}, None)

    lake = Lake(tmp_path / "lake")
    rows = lake.read(spark, "task")
    assert rows.schema.simpleString() == BRONZE["task"].simpleString()
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


def test_a_second_ingest_changes_nothing_and_late_segments_are_ingested(spark: SparkSession, tmp_path: Path) -> None:
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    write_segment(journal, task_records(10), number=5)
    assert run(spark, tmp_path).rows["task"] == 10
    before = kills.table(lake, "task")
    assert run(spark, tmp_path).rows == {"task": 0, "history": 0}
    assert kills.table(lake, "task") == before

    write_segment(journal, task_records(20), number=3)
    write_segment(journal, task_records(1), number=1, cluster="late")
    summary = run(spark, tmp_path)
    assert (summary.rows["task"], summary.findings["segments_known"]) == (21, 1)
    assert len(kills.table(lake, "task")) == 31


def test_bad_segments_are_quarantined_completely_and_the_others_are_ingested(
    spark: SparkSession, tmp_path: Path
) -> None:
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
    assert found["000000000001"] == ("the segment ends within a frame (after 400 sound records)", 400)
    assert found["000000000002"][0].startswith("a frame is damaged")
    assert found["000000000003"][0].startswith("a line is not a JSON object")
    assert summary.alarm is not None
    assert "and 2 more can't be read" in summary.alarm
    assert {row[-4] for row in kills.table(tmp_path / "lake", "task")} == {"task.v1.host-1.000000000000.jsonl.zst"}

    again = run(spark, tmp_path)
    assert (again.rows["task"], again.findings["quarantined"], again.findings["quarantined_in_all"]) == (0, [], 3)
    # The alarm covers everything in quarantine, not only the additions of this run.
    assert again.alarm == summary.alarm

    write_segment(journal, frames_of(task_records(200)), number=1)
    replaced = run(spark, tmp_path)
    assert (replaced.rows["task"], replaced.findings["quarantined_in_all"]) == (200, 2)
    left = [f"{found.entry.cluster}/{found.entry.name}" for found in Lake(tmp_path / "lake").quarantined()]
    dismissed = run(spark, tmp_path, dismiss=left)
    assert (dismissed.alarm, dismissed.findings["quarantined_in_all"]) == (None, 2)
    write_segment(journal, b"worse", number=3)
    assert "000000000003" in str(run(spark, tmp_path).alarm)
    with pytest.raises(ingest.NotInQuarantine, match="beta/nothing"):
        run(spark, tmp_path, dismiss=["beta/nothing"])


def test_a_kill_between_the_commit_and_the_release_leaves_no_false_quarantine(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_segment(tmp_path / "journal", task_records(10))
    lake = Lake(tmp_path / "lake")
    context = JobContext(spark=spark, lake=lake, journal=tmp_path / "journal")
    ingest.run(context)
    # The state of a segment that was faulty, was replaced, and came in just before the run ended.
    (entry,) = lake.segments("task")
    lake.quarantine(Quarantined(entry, "the segment ends within a frame"))
    lake.quarantine(Quarantined(replace(entry, name="task.v1.host-1.000000000009.jsonl.zst"), "a frame is damaged"))
    summary = ingest.run(context)
    assert summary.findings["quarantined_in_all"] == 1
    assert [found.reason for found in lake.quarantined()] == ["a frame is damaged"]


def test_a_segment_that_changed_after_its_ingest_is_reported_and_not_read_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_segment(tmp_path / "journal", task_records(5))
    run(spark, tmp_path)
    write_segment(tmp_path / "journal", task_records(900))
    summary = run(spark, tmp_path)
    assert (summary.rows["task"], len(summary.findings["changed_after_ingest"])) == (0, 1)
    assert summary.alarm is not None


def test_cluster_names_are_read_as_they_were_written(spark: SparkSession, tmp_path: Path) -> None:
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


def test_a_folder_that_is_not_a_journal_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(NoJournal, match="there is no journal"):
        run(spark, tmp_path)
    (tmp_path / "journal" / "alpha").mkdir(parents=True)
    with pytest.raises(NoJournal, match="nothing was sealed"):
        run(spark, tmp_path)
    with pytest.raises(FixRequest, match="--journal"):
        ingest.run(JobContext(spark=spark, lake=Lake(tmp_path / "lake")))
    assert not (tmp_path / "lake").exists()


@pytest.mark.sim
@pytest.mark.timeout(3600)
def test_an_ingest_killed_at_random_moments_gives_the_tables_of_an_undisturbed_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make sim` kills it 20 times."""
    journal, undisturbed = tmp_path / "journal", Lake(tmp_path / "undisturbed")
    write_journal(journal, clusters=("alpha", "beta", "gamma"), segments=5)
    write_segment(journal, frames_of(task_records(500))[:-7], number=77)
    monkeypatch.setattr(ingest, "BATCH_SEGMENTS_MAX", kills.BATCH_SEGMENTS)

    def finish(lake: Path) -> None:
        ingest.run(JobContext(spark=spark, lake=Lake(lake), journal=journal))

    finish(undisturbed.root)
    expected = [kills.table(undisturbed.root, name) for name in ("task", "history")]
    assert all(expected)
    batches = kills.committed(undisturbed.root)
    assert batches > 4
    lakes = kills.kill_again_and_again(
        "ingest", journal, tmp_path, finish=finish, times=KILLS, batches=batches, seed=KILLS
    )
    for lake in lakes:
        assert [kills.table(lake, name) for name in ("task", "history")] == expected
        assert [*Lake(lake).quarantined()] == [*undisturbed.quarantined()]
