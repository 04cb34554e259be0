"""`backtest` continues its replays; its tables equal those of replays from the start."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from fairlead.core.scaling import ScalerSettings
from fairlead.pipeline.increments import replays
from fairlead.pipeline.increments.origin import origin_of
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import backtest
from fairlead.pipeline.kernels.scaler import LEAD, Model, replay
from fairlead.pipeline.lake import Lake
from tests.depth import IS_DEEP
from tests.pipeline.increments.tables import assert_same_tables
from tests.pipeline.increments.test_traffic_hours import DAY_US, HOUR_US, ingest

SEEDS = range(20) if IS_DEEP else (1,)
OPTIONS: dict[str, Any] = {
    "upscale_rps": (0.02, 0.05),
    "upscale_sustained_s": (15.0,),
    "downscale_sustained_s": (60.0,),
    "downscale_factor": (0.5,),
    "interval_s": (15.0, 10.0),
    "partition_rps": 0.05,
}


def arrivals(chance: Random, queues: str, count: int, *, first_hour: float, hours: float) -> list[dict[str, Any]]:
    """Tasks that are added to these queues, many of them at the same time."""
    bursts = [first_hour + chance.random() * hours for _ in range(1 + count // 20)]
    return [
        {
            "time_us": DAY_US + round((chance.choice(bursts) + chance.random() * 0.02) * HOUR_US),
            "kind": "added",
            "task_list": chance.choice(queues),
            "task_type": 1,
            "partition": 0,
            "host": "h",
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_continued_replays_equal_those_from_the_start(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(replays, "CLOSED_S", 600.0)
    chance = Random(seed)
    first = {"time_us": DAY_US - 4 * HOUR_US, "kind": "added", "task_list": "x", "task_type": 1, "partition": 0}
    grown, whole = Lake(tmp_path / "grown"), Lake(tmp_path / "whole")
    batches = [
        [{**first, "host": "h"}, *arrivals(chance, "xyz", 300, first_hour=-4, hours=2)],
        # Later tasks, not of all task queues.
        arrivals(chance, "xy", 60, first_hour=-1.9, hours=0.5),
        # A new task queue, and late tasks of a known one.
        [*arrivals(chance, "xw", 40, first_hour=-1, hours=0.5), *arrivals(chance, "y", 5, first_hour=-3, hours=1)],
    ]
    begins, found = [], None
    for batch in batches:
        for lake in (grown, whole):
            ingest(lake, batch)
        found = backtest.run(JobContext(spark, grown, options=OPTIONS))
        origin = origin_of(grown, backtest.PARTIAL)
        assert origin is not None
        begins.append(origin.facts["span"]["begin"])
    assert begins[0] == 0 < begins[1] < begins[2]
    # A run that ends between two tables leaves states of which the other tables know nothing.
    batch = arrivals(chance, "xz", 20, first_hour=-0.4, hours=0.2)
    for lake in (grown, whole):
        ingest(lake, batch)
    with monkeypatch.context() as patched:
        patched.setattr(backtest, "with_verdicts", _fail)
        with pytest.raises(KeyboardInterrupt):
            backtest.run(JobContext(spark, grown, options=OPTIONS))
    found = backtest.run(JobContext(spark, grown, options=OPTIONS))
    expected = backtest.run(JobContext(spark, whole, options=OPTIONS))
    assert_same_tables(grown, whole, backtest.TABLES)
    its = {"clusters": None}
    assert found is not None
    assert found.findings | its == expected.findings | its
    assert found.rows == expected.rows


def _fail(*_values: object, **_named: object) -> None:
    raise KeyboardInterrupt


def test_a_replay_from_a_state_equals_one_from_the_start() -> None:
    random = np.random.default_rng(1)
    counts = np.asfortranarray(random.poisson(random.choice([0.2, 4.0, 30.0], (3, 240))).astype(np.int64))
    settings = [
        ScalerSettings(upscale_rps=rps, upscale_sustained_s=15.0, downscale_sustained_s=30.0, interval_s=15.0)
        for rps in (0.5, 2.0)
    ]
    model = Model(bucket_s=5.0, partition_rps=1.0, wait_s_max=1.0)
    expected = replay(counts, settings, model, is_traced=True, checkpoint=180)
    begun = replay(counts[:, :130], settings, model, checkpoint=120)
    found = replay(
        counts[:, 120 - LEAD :], settings, model, is_traced=True, begin=120, state=begun.state, checkpoint=180
    )
    for name in ("ups", "late", "backlog_mean", "wait_s_mean", "partition_s", "tasks", "state"):
        assert np.array_equal(getattr(found, name), getattr(expected, name), equal_nan=True), name
    assert found.write is not None
    assert expected.write is not None
    assert np.array_equal(found.write, expected.write[40:])
    assert expected.ups.sum() > 3
