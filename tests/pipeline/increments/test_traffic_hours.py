"""`traffic` and `placement` compute the hours that new records touch; their tables equal those computed at once."""

from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline.increments import origin
from fairlead.pipeline.job import Job, JobContext
from fairlead.pipeline.jobs import placement, traffic
from fairlead.pipeline.lake import Lake
from tests.depth import IS_DEEP
from tests.pipeline.increments.tables import assert_same_tables
from tests.pipeline.upkeep.lakes import TODAY, commit

HOUR_US = 3_600_000_000
DAY_US = int(datetime.combine(TODAY, datetime.min.time(), UTC).timestamp()) * 1_000_000
SEEDS = range(20) if IS_DEEP else (1,)
# Placement selects hours like traffic, and takes much longer.
JOBS: tuple[Job, ...] = (traffic, placement) if IS_DEEP else (traffic,)
TABLES = (*traffic.TABLES, *((placement.LOADS, *placement.TABLES) if IS_DEEP else ()))


def records(chance: Random, count: int, *, hours: int = 30) -> list[dict[str, Any]]:
    """Records of some hours from the day before the first day of the lake on, in any order."""
    return [
        {
            "time_us": DAY_US - 24 * HOUR_US + chance.randrange(hours * HOUR_US),
            "kind": (kind := chance.choice(("added", "matched", "backlog", "poll_empty"))),
            "task_list": chance.choice("xy"),
            "task_type": 1,
            "partition": chance.randrange(2),
            "host": "h",
            **({"wait_us": chance.randrange(1000), "was_sync": True} if kind == "matched" else {}),
            **({"tasks": chance.randrange(5), "age_us": 1, "pollers": 1} if kind == "backlog" else {}),
        }
        for _ in range(count)
    ]


def ingest(lake: Lake, batch: list[dict[str, Any]]) -> None:
    """Commit the records of each day as a batch."""
    for ago in (1, 0):
        first_us = DAY_US - ago * 24 * HOUR_US
        day = [record for record in batch if first_us <= record["time_us"] < first_us + 24 * HOUR_US]
        if day:
            commit(lake, "task", day, ago=ago)


@pytest.mark.parametrize("seed", SEEDS)
def test_hours_with_late_and_new_records_equal_a_whole_computation(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    chance = Random(seed)
    grown, whole = Lake(tmp_path / "grown"), Lake(tmp_path / "whole")
    for count, hours in ((300, 24), (20, 30), (3, 30)):
        batch = records(chance, count, hours=hours)
        for lake in (grown, whole):
            ingest(lake, batch)
        for job in JOBS:
            job.run(JobContext(spark, grown))
    said = traffic.run(JobContext(spark, grown))
    assert said == traffic.run(JobContext(spark, whole))
    for job in JOBS[1:]:
        job.run(JobContext(spark, whole))
    assert_same_tables(grown, whole, TABLES)
    # Nothing of the first two runs was computed twice as a whole.
    assert origin.origin_of(grown, "traffic") == origin.origin_of(whole, "traffic")
