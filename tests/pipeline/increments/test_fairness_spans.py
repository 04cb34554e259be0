"""`fairness` computes the windows that new records can change; its tables equal those of a lake computed at once."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import fairness
from fairlead.pipeline.lake import Lake
from tests.depth import IS_DEEP
from tests.pipeline.increments.tables import assert_same_tables
from tests.pipeline.increments.test_traffic_hours import DAY_US, HOUR_US, ingest

SEEDS = range(20) if IS_DEEP else (1,)
MINUTE_US = 60_000_000


def records(chance: Random, count: int, *, first_hour: float, hours: float) -> list[dict[str, Any]]:
    """Records of some keys in two task queues, whose backlogs go on for long and are sometimes reported empty."""
    found = []
    for _ in range(count):
        kind = chance.choice(("added", "added", "matched", "backlog"))
        record: dict[str, Any] = {
            "time_us": DAY_US + round((first_hour + chance.random() * hours) * HOUR_US),
            "kind": kind,
            "task_list": chance.choice("xy"),
            "task_type": 1,
            "partition": 0,
            "host": "h",
        }
        if kind == "backlog":
            record |= {"tasks": chance.choice((0, 3)), "age_us": 1, "pollers": 1}
            if chance.random() < 0.8:
                continue
        else:
            record |= {"fairness_key": chance.choice("abc"), "weight": chance.choice((1.0, 2.0))}
            record |= {"wait_us": chance.randrange(1000), "was_sync": True} if kind == "matched" else {}
        found.append(record)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_windows_after_late_and_new_records_equal_a_whole_computation(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    chance = Random(seed)
    grown, whole = Lake(tmp_path / "grown"), Lake(tmp_path / "whole")
    batches = [
        records(chance, 300, first_hour=-6, hours=6),
        # New records after a silence of half an hour, for which backlogs wait.
        records(chance, 30, first_hour=0.5, hours=0.5),
        # Late records, and a silence after which backlogs count as gone.
        [*records(chance, 8, first_hour=-5, hours=2), *records(chance, 20, first_hour=3, hours=0.3)],
    ]
    summaries = []
    for batch in batches:
        for lake in (grown, whole):
            ingest(lake, batch)
        summaries.append(fairness.run(JobContext(spark, grown)))
    expected = fairness.run(JobContext(spark, whole))
    assert_same_tables(grown, whole, ("fairness_keys", "fairness", "fairness_partial"))
    assert summaries[-1].rows == expected.rows
