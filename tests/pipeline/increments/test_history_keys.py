"""`histories` and `reconcile` compute the workflow ids with new events; their tables equal those computed at once."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import histories, reconcile
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.synth.histories import HistoryShape, write_histories
from fairlead.pipeline.upkeep.compaction import compact
from tests.depth import IS_DEEP
from tests.history.recordings import NAMES, load
from tests.pipeline.histories_world import records_of
from tests.pipeline.increments.arrivals import arrive, records_in, shuffled
from tests.pipeline.increments.tables import assert_same_tables

SEEDS = range(10) if IS_DEEP else (1,)
# Most records come first, and late ones of any run in later batches.
SHARES = (0.9, 0.06, 0.04)


@pytest.mark.parametrize("seed", SEEDS)
def test_clusters_are_compared_as_if_all_events_had_come_at_once(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    manifest = write_histories(tmp_path / "journal", HistoryShape(runs=150, seed=seed))
    options: dict[str, Any] = {
        "grace": manifest.grace_s,
        "increment": manifest.increment,
        "initial_version": tuple(f"{name}={version}" for name, version in manifest.initial_versions.items()),
    }
    batches = shuffled(records_in(tmp_path / "journal"), Random(seed), SHARES)
    grown, whole = Lake(tmp_path / "grown"), Lake(tmp_path / "whole")
    summaries = []
    for number, batch in enumerate(batches):
        for lake in (grown, whole):
            arrive(lake, batch, number=number)
        summaries.append(reconcile.run(JobContext(spark, grown, options=options)))
    with grown.locked():
        compact(grown, "history", batches_min=2)
    # Without new records, and after a compaction, the verdicts stay.
    again = reconcile.run(JobContext(spark, grown, options=options))
    expected = reconcile.run(JobContext(spark, whole, options=options))
    assert_same_tables(grown, whole, ("verdicts", "pairs", "repair_plan"))
    assert summaries[-1].rows == again.rows == expected.rows
    assert again.findings["verdicts"] == expected.findings["verdicts"]


TABLES = (*histories.BY_RUN, *histories.BY_TIME, *histories.BY_TYPE)


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_are_read_as_if_all_events_had_come_at_once(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    records: list[tuple[str, Any]] = []
    for number in range(40):
        events = load(chance.choice([name for name in NAMES if name != "reset"]))
        cuts = chance.sample(range(1, len(events) + 1), k=len(events) // 2)
        # Each history at another time, so that some windows are touched and others are not.
        shift_us = chance.randrange(48) * 3_600_000_000
        for event in events:
            event.event_time.FromMicroseconds(event.event_time.ToMicroseconds() + shift_us)
        its = records_of(events, run_id=f"run-{number}", workflow_id=f"order-{number}", cuts=cuts)
        records += (("alpha", record) for record in its)
    grown, whole = Lake(tmp_path / "grown"), Lake(tmp_path / "whole")
    summaries = []
    for number, batch in enumerate(shuffled(records, chance, SHARES)):
        for lake in (grown, whole):
            arrive(lake, batch, number=number)
        summaries.append(histories.run(JobContext(spark, grown)))
    expected = histories.run(JobContext(spark, whole))
    assert_same_tables(grown, whole, TABLES)
    assert summaries[-1] == expected
    assert expected.rows["workflows"] > 30
