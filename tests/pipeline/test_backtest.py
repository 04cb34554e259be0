"""The `backtest` job: its replay compared with the scaler itself, its recommendation with a plain search."""

from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from fairlead.cli.config import config as config_command
from fairlead.core.partitions import STICKY, TaskType
from fairlead.core.scaling import ScalerSettings
from fairlead.pipeline.arrow import LIMITS
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import backtest
from fairlead.pipeline.kernels.scaler import (
    CELLS_MAX,
    NUMBERS_MAX,
    Candidate,
    InvalidGrid,
    Model,
    blocks,
    effective,
    grid,
    replay,
)
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas_backtest import ARRIVALS, BACKTEST, BACKTEST_SETTINGS, BACKTEST_TIMELINE
from fairlead.pipeline.stages import backtest as stage
from fairlead.pipeline.stages.backtest import BUCKETS_A_ROW, BUCKETS_MAX, Span, arrivals, span_of
from fairlead.settings import DynamicSettings, InvalidSettings, Scope, scaler_settings
from fairlead.settings.dynamic import matching
from tests.depth import IS_DEEP
from tests.pipeline.oracle.backtest import Live, cluster_rows, queue_rows
from tests.pipeline.oracle.lakes import derived
from tests.pipeline.schemas import differences
from tests.pipeline.test_traffic import LakeOfFrames, frame_of, same
from tests.pipeline.upkeep.lakes import TODAY, commit, tasks

BUCKET_S = 5.0
Row = dict[str, Any]

SETTINGS = st.builds(
    ScalerSettings,
    upscale_rps=st.sampled_from((0.7, 1.0, 2.0, 10.0, 33.3)),
    downscale_factor=st.sampled_from((0.3, 0.75, 0.9)),
    upscale_sustained_s=st.sampled_from((0.0, 15.0, 30.0, 60.0)),
    downscale_sustained_s=st.sampled_from((0.0, 15.0, 60.0, 120.0)),
    interval_s=st.just(15.0),
    partitions_min=st.integers(1, 3),
    partitions_max=st.integers(3, 20),
)


def random_counts(seed: int, lists: int, buckets: int) -> Any:
    """Arrival counts that alternate between constant, jumping and zero."""
    random = np.random.default_rng(seed)
    levels = np.repeat(random.choice((0, 5, 20, 50, 100, 300, 1000), (lists, buckets // 12 + 1)), 12, axis=1)
    return random.poisson(levels[:, :buckets])


@given(
    seed=st.integers(0, 2**32),
    settings=st.lists(SETTINGS, min_size=1, max_size=5),
    initial=st.none() | st.integers(1, 8),
    buckets=st.integers(1, 200),
)
def test_the_replay_decides_as_the_scaler_itself_at_every_tick(
    seed: int, settings: list[ScalerSettings], initial: int | None, buckets: int
) -> None:
    counts = random_counts(seed, 2, buckets)
    model = Model(bucket_s=BUCKET_S, partition_rps=12.0, wait_s_max=1.0, initial=initial)
    done = replay(counts, settings, model, is_traced=True)
    for row in range(2):
        for column, one in enumerate(settings):
            live = Live(counts[row].tolist(), one, model)
            if live.ticks:
                assert done.write is not None
                assert done.read is not None
                writes, reads = done.write[:, row, column].tolist(), done.read[:, row, column].tolist()
                assert list(zip(writes, reads, strict=True)) == [tick[:2] for tick in live.ticks]
            changes = done.ups + done.downs + done.drains
            assert changes[row, column] == live.changes
            assert done.backlog_max[row, column] == pytest.approx(max(live.backlogs))
            assert done.backlog_mean[row, column] == pytest.approx(sum(live.backlogs) / buckets)
            assert done.late[row, column] == live.late
            assert done.partition_s[row, column] == pytest.approx(live.read_s)
            assert done.above_s[row, column] == pytest.approx(live.above_s)
            assert done.wait_s_mean[row, column] == pytest.approx(live.wait_sum / max(1, counts[row].sum()))


def test_the_size_of_a_replayed_block_is_bounded_for_any_time_range_and_number_of_task_queues() -> None:
    for lists, settings, buckets in ((1, 1, 1), (1000, 64, 100), (1000, 2, BUCKETS_MAX), (3, 1, 10 * BUCKETS_MAX)):
        pieces = list(blocks(lists, settings, numbers_each=buckets))
        assert [number for piece in pieces for number in range(piece.start, piece.stop)] == list(range(lists))
        most = max(piece.stop - piece.start for piece in pieces)
        assert most == 1 or (most * settings <= CELLS_MAX and most * buckets <= NUMBERS_MAX)
    assert len(list(blocks(64, 64, numbers_each=17_280))) == 1, "a day of 64 task lists is one piece"


def test_overshoot_counts_partitions_that_stay_after_the_load_ends() -> None:
    counts = np.array([[1000] * 12 + [0] * 12])
    settings = ScalerSettings(upscale_rps=20.0, upscale_sustained_s=0.0, downscale_sustained_s=30.0)
    done = replay(counts, [settings], Model(bucket_s=5.0, partition_rps=100.0, wait_s_max=1.0, initial=10))
    # Ten partitions are needed until 60 s. At 75, 90 and 105 s one is enough; the scaler lowers the count at 105 s.
    assert done.overshoot_max[0, 0] == 9
    assert done.overshoot_s[0, 0] == 3 * 9 * 15.0
    assert (done.ups[0, 0], done.downs[0, 0], done.drains[0, 0]) == (0, 1, 1)


def test_the_current_settings_come_first_in_the_grid_and_only_once() -> None:
    candidates = grid(DynamicSettings(), {"upscale_rps": [100.0, 200.0], "interval_s": [15.0]})
    assert candidates == [Candidate(200.0, 60.0, 120.0, 0.75, 15.0), Candidate(100.0, 60.0, 120.0, 0.75, 15.0)]


def test_a_candidate_has_the_values_that_the_server_would_use() -> None:
    # The sustained duration is at least one interval of the rate measurement.
    one = effective(DynamicSettings(), Candidate(50.0, 1.0, 0.0, 0.5, 15.0))
    assert (one.upscale_sustained_s, one.downscale_sustained_s, one.enabled) == (15.0, 0.0, True)
    with pytest.raises(InvalidSettings, match="partitionDownscaleFactor"):
        effective(DynamicSettings(), Candidate(50.0, 1.0, 0.0, 1.5, 15.0))


def test_grids_that_are_too_large_or_unknown_are_refused() -> None:
    with pytest.raises(InvalidGrid, match="more than 10,000"):
        grid(DynamicSettings(), {"upscale_rps": range(1, 200), "upscale_sustained_s": range(1, 200)})
    with pytest.raises(InvalidGrid, match="unknown settings in the grid: rps"):
        grid(DynamicSettings(), {"rps": [1.0]})
    with pytest.raises(InvalidGrid, match="not a multiple"):
        replay(np.zeros((1, 5), np.int64), [ScalerSettings(interval_s=7.0)], Model(5.0, 1.0, 1.0))


def records_of(counts: dict[str, list[int]], *, start_s: int = 1_000_000) -> list[Row]:
    """One added task per arrival, within its bucket; the cluster reports ticks until the last bucket ends."""
    random = Random(5)
    records: list[Row] = []
    base: Row = {"cluster": "c", "namespace_id": "n", "task_type": 2, "partition": 0, "host": "h"}
    for name, its in counts.items():
        for number, arrived in enumerate(its):
            for _ in range(arrived):
                time_us = round((start_s + number * BUCKET_S + random.random() * 4.9) * 1e6)
                records.append(base | {"kind": "added", "task_list": name, "time_us": time_us})
    edges_us = (start_s * 1_000_000, round((start_s + len(next(iter(counts.values()))) * BUCKET_S) * 1e6) - 1)
    return records + [base | {"kind": "poll_empty", "task_list": "x", "time_us": time_us} for time_us in edges_us]


@pytest.mark.parametrize(("buckets_a_row", "rows_at_once"), [(BUCKETS_A_ROW, 4096), (7, 3)])
def test_the_job_replays_every_task_queue_and_recommends_by_its_objective(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets_a_row: int, rows_at_once: int
) -> None:
    monkeypatch.setattr(stage, "BUCKETS_A_ROW", buckets_a_row)
    monkeypatch.setitem(LIMITS, "spark.sql.execution.arrow.maxRecordsPerBatch", str(rows_at_once))
    counts = {
        "steady": [30] * 96,
        "bursts": ([5] * 20 + [200] * 12) * 3,
        "quiet": [0] * 95 + [1],
    }
    choices = {"upscale_rps": (2.0, 10.0), "upscale_sustained_s": (15.0, 60.0), "downscale_sustained_s": (30.0,)}
    choices |= {"downscale_factor": (0.5, 0.75), "interval_s": (15.0, 30.0)}
    lake = LakeOfFrames(tmp_path / "lake", frame_of(spark, records_of(counts)).cache())
    options = choices | {
        "partition_rps": 12.0,
        "wait_s_max": 2.0,
        "late_share_max": 0.05,
        "changes_per_day_max": 5000.0,
    }
    summary = backtest.run(JobContext(spark, lake, options=options))

    base = DynamicSettings()
    candidates = grid(base, choices)
    model = Model(bucket_s=BUCKET_S, partition_rps=12.0, wait_s_max=2.0)
    expected = {
        (name, number): Live(its, effective(base, candidate), model)
        for name, its in counts.items()
        for number, candidate in enumerate(candidates)
    }
    limits = (0.05, 5000.0)
    queue = {"cluster": "c", "namespace_id": "n", "namespace": "n", "task_type": 2}
    its = queue_rows(expected, candidates, limits, span_s=96 * BUCKET_S)
    same(derived(lake, "backtest"), [queue | row for row in its], by=("task_list", "setting"))
    totals = [{"cluster": "c"} | row for row in cluster_rows(its, limits)]
    same(derived(lake, "backtest_settings"), totals, by=("setting",))
    found = {(row.task_list, row.setting): row for row in lake.read_derived(spark, "backtest").collect()}

    def merit(lives: list[Live]) -> tuple[bool, float, float]:
        late = sum(live.late for live in lives) / 3
        tasks = sum(sum(its) for its in counts.values()) / 3 if len(lives) > 1 else 1
        return (late / tasks > 0.05, late, round(sum(live.read_s for live in lives), 3))

    best = min(range(len(candidates)), key=lambda number: merit([expected[name, number] for name in counts]))
    chosen = lake.read_derived(spark, "backtest_settings").where("is_recommended").collect()
    assert len(chosen) == 1
    lives = [expected[name, chosen[0].setting] for name in counts]
    assert merit(lives) == merit([expected[name, best] for name in counts])
    assert summary.findings["clusters"]["c"]["recommended"]["upscale_rps"] == chosen[0].upscale_rps

    traced = [
        queue
        | {"task_list": name, "setting": number, "time_us": 1_000_000_000_000 + round((tick + 1) * every_s * 1e6)}
        | {"write": write, "read": read, "qps": qps, "backlog": backlog}
        for name in counts
        for number in {0, chosen[0].setting}
        for every_s in [candidates[number].interval_s]
        for tick, (write, read, qps, backlog) in enumerate(expected[name, number].ticks)
    ]
    same(derived(lake, "backtest_timeline"), traced, by=("task_list", "setting", "time_us"))

    for table, schema in (
        ("backtest", BACKTEST),
        ("backtest_settings", BACKTEST_SETTINGS),
        ("backtest_timeline", BACKTEST_TIMELINE),
    ):
        assert differences(expected=schema, found=lake.read_derived(spark, table).schema) == []

    file = Path(summary.findings["clusters"]["c"]["settings_file"])
    checked = CliRunner().invoke(config_command, ["validate", str(file)])
    assert checked.exit_code == 0, checked.output
    loaded = DynamicSettings(file=file)
    for name in counts:
        own = next(row for (its, _), row in found.items() if its == name and row.is_recommended)
        used = scaler_settings(loaded, Scope("n", name, TaskType.ACTIVITY))
        assert used == effective(base, candidates[own.setting]), name


def test_a_replay_of_a_longer_recording_waits_until_enough_records_are_new(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "BUCKETS_MAX", 3)
    lake = Lake(tmp_path / "lake")
    options: dict[str, Any] = {
        "upscale_rps": (1.0,),
        "upscale_sustained_s": (15.0,),
        "downscale_sustained_s": (30.0,),
        "downscale_factor": (0.5,),
        "interval_s": (15.0,),
    }

    def replay() -> dict[str, Any]:
        return backtest.run(JobContext(spark, lake, options=options)).findings

    midnight_us = int(datetime.combine(TODAY, datetime.min.time(), UTC).timestamp()) * 1_000_000

    def later(number: int) -> list[dict[str, Any]]:
        return [row | {"time_us": midnight_us + 20_000_000} for row in tasks(number)]

    commit(lake, "task", [*tasks(10), *later(90)])
    first = replay()
    assert (first["tasks"], first["tasks_left_out"]) == (90, 10)
    commit(lake, "task", later(5))
    assert replay() == first | {"records_not_replayed": 5}
    commit(lake, "task", later(1))
    last = replay()
    assert (last["tasks"], last.get("records_not_replayed")) == (96, None)


def test_the_settings_file_lists_only_task_queues_that_differ() -> None:
    best, other = Candidate(200.0, 60.0, 120.0, 0.75, 15.0), Candidate(100.0, 60.0, 120.0, 0.75, 15.0)
    document = backtest.settings_document(best, [({"namespace": "n", "taskQueueName": "x"}, other)])
    assert document[matching.PARTITION_UPSCALE_RPS.key] == [
        {"value": 200},
        {"value": 100, "constraints": {"namespace": "n", "taskQueueName": "x"}},
    ]
    assert document[matching.ADAPTIVE_SCALER_UPDATE_INTERVAL.key] == [{"value": "15s"}]
    assert document[matching.ENABLE_ADAPTIVE_SCALER.key] == [{"value": True}]


def test_arrivals_count_added_tasks_only(spark: SparkSession) -> None:
    tasks = frame_of(spark, records_of({"x": [2, 0, 1]}))
    span = span_of(tasks, bucket_us=5_000_000)
    assert span is not None
    assert (span.first, span.buckets, span.seconds, span.left_out) == (200_000, 3, 15.0, 0)
    (row,) = arrivals(tasks, span=span).collect()
    assert sorted((one.bucket, one.tasks) for one in row.arrivals) == [(200_000, 2), (200_002, 1)]


def test_a_row_has_the_arrivals_of_a_bounded_time_range(spark: SparkSession) -> None:
    tasks = frame_of(spark, records_of({"x": [1] * 10 + [0] * BUCKETS_A_ROW + [1]}))
    span = span_of(tasks, bucket_us=5_000_000)
    assert span is not None
    rows = arrivals(tasks, span=span).collect()
    assert len(rows) == 2
    assert {one.bucket - span.first for row in rows for one in row.arrivals} == {*range(10), BUCKETS_A_ROW + 10}


def test_task_queues_are_replayed_completely_wherever_the_batches_end() -> None:
    """The rows of one task queue and one trial are contiguous; a name may be missing."""
    span = Span(first=100, buckets=50, bucket_us=1)
    plan = [stage.Trial((number,), (ScalerSettings(),)) for number in range(2)]
    random = Random(3)
    expected: dict[tuple[str | None, int], list[int]] = {}
    rows = []
    for name in (None, "a", "b", "c"):
        for number in range(2):
            counts = expected[name, number] = [random.randrange(4) for _ in range(50)]
            for chunk in range(0, 50, 9):
                its = [{"bucket": 100 + n, "tasks": counts[n]} for n in range(chunk, min(50, chunk + 9)) if counts[n]]
                rows.append(
                    {"cluster": "c", "namespace_id": "n", "task_list": name, "task_type": None, "trial": number}
                    | {"arrivals": its}
                )
    schema = to_arrow_schema(ARRIVALS).append(pa.field("trial", pa.int64())).append(pa.field("setting", pa.int32()))
    table = pa.Table.from_pylist(rows, schema)
    for size in (1, 2, 5, 6, 7, len(rows)):
        found = {
            (name, piece.trial.numbers[0]): counts.tolist()
            for piece in stage._pieces(table.to_batches(size), plan, span)
            for name, counts in zip(piece.names.column("task_list").to_pylist(), piece.counts, strict=True)
        }
        assert found == expected, size


def test_sticky_task_queues_are_not_scaled(spark: SparkSession) -> None:
    tasks = frame_of(spark, records_of({STICKY: [2, 0, 1], "x": [1]}))
    span = span_of(tasks, bucket_us=5_000_000)
    assert span is not None
    assert [row.task_list for row in arrivals(tasks, span=span).collect()] == ["x"]


def test_only_the_last_part_of_a_longer_recording_is_replayed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "BUCKETS_MAX", 720)
    counts = [7] * 100 + [1] * 720
    lake = LakeOfFrames(tmp_path / "lake", frame_of(spark, records_of({"x": counts})))
    summary = backtest.run(JobContext(spark, lake, options={"upscale_rps": (100.0,), "interval_s": (15.0,)}))
    assert summary.findings["hours"] == 1.0
    assert summary.findings["hours_left_out"] == pytest.approx(100 * BUCKET_S / 3600)
    assert "--until" in summary.findings["hint"]
    times_us = lake.read_derived(spark, "backtest_timeline").where("setting = 0").orderBy("time_us").collect()
    assert [row.time_us // 60_000_000 for row in times_us] == [times_us[0].time_us // 60_000_000 + n for n in range(60)]
    assert {row.tasks for row in lake.read_derived(spark, "backtest").collect()} == {720}


def test_a_record_that_is_no_arrival_does_not_stretch_the_span(spark: SparkSession) -> None:
    records = records_of({"x": [2, 0, 1]})
    far = {**records[0], "kind": "config", "time_us": 4_102_444_800_000_000}
    span = span_of(frame_of(spark, [*records, far]), bucket_us=5_000_000)
    assert span is not None
    assert (span.first, span.buckets, span.left_out, span.arrivals) == (200_000, 3, 0, 3)


@pytest.mark.sim
def test_a_backtest_that_leaves_out_most_arrivals_reports_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lake written by an older release may hold a record with a time in the year 2100."""
    if not IS_DEEP:
        # A million buckets, the bound in production, take a minute to replay.
        monkeypatch.setattr(stage, "BUCKETS_MAX", 720)
    records = records_of({"x": [2, 0, 1]})
    far = {**records[0], "time_us": 4_102_444_800_000_000}
    lake = LakeOfFrames(tmp_path / "lake", frame_of(spark, [*records, far]))
    summary = backtest.run(JobContext(spark, lake, options={"upscale_rps": (100.0,), "interval_s": (15.0,)}))
    assert summary.findings["tasks_left_out"] == 3
    assert summary.alarm is not None
    assert summary.alarm.startswith("3 of 4 tasks were left out (75%)")


def test_the_settings_file_leaves_out_unknown_task_types(spark: SparkSession, tmp_path: Path) -> None:
    rows: list[Row] = [
        {"cluster": "c", "task_list": str(kind), "task_type": kind, "setting": 1, "is_recommended": True, "tasks": 1}
        for kind in (1, 9, None)
    ]
    tried = spark.createDataFrame([tuple(row.get(name) for name in BACKTEST.names) for row in rows], BACKTEST)
    lake = Lake(tmp_path)
    lake.write("backtest", tried, "run")
    found = backtest._exceptions(lake, {"cluster": "c", "setting": 0})
    assert [row["task_list"] for row in found] == ["1"]


def test_an_empty_recording_gives_empty_tables_and_no_recommendation(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeOfFrames(tmp_path / "lake", frame_of(spark, []))
    summary = backtest.run(JobContext(spark, lake, options={"upscale_rps": (100.0,), "interval_s": (15.0,)}))
    assert summary.rows == {"backtest": 0, "backtest_settings": 0, "backtest_timeline": 0}
    assert summary.findings["clusters"] == {}
