"""Replays the scaler over recorded arrivals under many settings, and recommends one of them.

Spark counts the arrivals; then the kernel replays each batch of task queues at once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from fairlead.core.scaling import ScalerSettings
from fairlead.pipeline.kernels.scaler import Candidate, Counts, Model, Replay, blocks, replay
from fairlead.pipeline.schemas_backtest import (
    ARRIVALS,
    BACKTEST,
    BACKTEST_SETTINGS,
    BACKTEST_TIMELINE,
    CANDIDATES,
    REPLAYED,
)
from fairlead.pipeline.stages.traffic import TASK_QUEUE, of_task_queues

# Maximum number of buckets replayed: eight weeks of 5 s. A worker holds one number per bucket for each task queue. Of
# longer recordings, only the end is replayed.
BUCKETS_MAX = 1_000_000
# Number of buckets whose arrivals are in one row: Java builds each row as objects, and for many task queues at a time.
BUCKETS_A_ROW = 4096
# Maximum number of settings that one row replays. More settings make more rows, which other Spark workers can replay.
SETTINGS_AT_ONCE = 64
# Seconds between two points of a timeline, and its minimum number of points if the recording is short.
TIMELINE_S = 60.0
TIMELINE_STEPS_MIN = 60

_DAY_S = 86_400.0
# The key of one replay.
_REPLAY = (*TASK_QUEUE, "trial")
# Values traced per task queue, setting and bucket: write partitions, read partitions and backlog, each twice, since
# they are copied when stacked.
_TRACED = 6
_SUMS = ("tasks", "changes", "ups", "downs", "drains", "late", "above_s", "partition_hours", "overshoot_hours")
_PEAKS = ("partitions_max", "overshoot_max", "backlog_max", "wait_s_max")


@dataclass(frozen=True, slots=True)
class Span:
    """The recorded time range that is replayed, in whole buckets since the epoch; `left_out` buckets came before it.

    `arrivals` is the number of all added tasks, replayed or not.
    """

    first: int
    buckets: int
    bucket_us: int
    left_out: int = 0
    arrivals: int = 0

    @property
    def seconds(self) -> float:
        """Length of the replayed time range."""
        return self.buckets * self.bucket_us / 1e6

    @property
    def left_out_s(self) -> float:
        """Length of the recording before the replayed time range."""
        return self.left_out * self.bucket_us / 1e6


@dataclass(frozen=True, slots=True)
class Objective:
    """The criterion for recommending a setting: few partition-hours, with few late tasks and few changes."""

    late_share_max: float = 0.01
    changes_per_day_max: float = 96.0

    def __str__(self) -> str:
        return (
            f"the fewest partition-hours with at most {self.late_share_max:.2%} of the tasks late and at most "
            f"{self.changes_per_day_max:g} changes per day; if no setting achieves that, the fewest late tasks"
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """Candidate settings that are replayed in one pass, each with its number. All have the same interval."""

    numbers: tuple[int, ...]
    settings: tuple[ScalerSettings, ...]


def trials(settings: Sequence[tuple[int, ScalerSettings]]) -> list[Trial]:
    """Group numbered settings by interval, in pieces that are replayed at once."""
    by_interval: dict[float, list[tuple[int, ScalerSettings]]] = {}
    for number, one in settings:
        by_interval.setdefault(one.interval_s, []).append((number, one))
    return [
        Trial(*zip(*its[first : first + SETTINGS_AT_ONCE], strict=True))
        for its in by_interval.values()
        for first in range(0, len(its), SETTINGS_AT_ONCE)
    ]


def arrivals(tasks: DataFrame, *, span: Span) -> DataFrame:
    """Return the added tasks by task queue and bucket of the replayed time range, in one or more rows for each task
    queue.
    """
    return (
        _added(tasks)
        .where(F.col("time_us") >= span.first * span.bucket_us)
        .groupBy(*TASK_QUEUE, F.expr(f"time_us div {span.bucket_us}").alias("bucket"))
        .agg(F.count(F.lit(1)).alias("tasks"))
        .groupBy(*TASK_QUEUE, F.expr(f"bucket div {BUCKETS_A_ROW}"))
        .agg(F.collect_list(F.struct("bucket", "tasks")).alias("arrivals"))
        .select(*ARRIVALS.names)
    )


def _added(tasks: DataFrame) -> DataFrame:
    return of_task_queues(tasks).where(F.col("kind") == "added")


def span_of(tasks: DataFrame, *, bucket_us: int) -> Span | None:
    """Return the range from the first to the last arrival, shortened at its start if too long; None without arrivals.

    Records of other kinds don't count: they are not replayed.
    """
    arrived = _added(tasks).agg(
        F.min("time_us").alias("first"), F.max("time_us").alias("last"), F.count("*").alias("arrivals")
    )
    row = arrived.first()
    if row is None or row["first"] is None:
        return None
    recorded, last = row["first"] // bucket_us, row["last"] // bucket_us
    first = max(recorded, last - BUCKETS_MAX + 1)
    return Span(first, last - first + 1, bucket_us, left_out=first - recorded, arrivals=row["arrivals"])


def replayed(lists: DataFrame, plan: Sequence[Trial], *, model: Model, span: Span) -> DataFrame:
    """Return the results of every setting for every task queue."""
    kernel = partial(_replay_batches, plan=tuple(plan), model=model, span=span)
    return _spread(lists, len(plan)).mapInArrow(kernel, REPLAYED)


def timeline(lists: DataFrame, plan: Sequence[Trial], *, model: Model, span: Span) -> DataFrame:
    """Return the partitions over time under each setting; meant for a few settings."""
    every_s = min(TIMELINE_S, span.seconds / TIMELINE_STEPS_MIN)
    kernel = partial(_trace_batches, plan=tuple(plan), model=model, span=span, every_s=every_s)
    return _spread(lists, len(plan)).mapInArrow(kernel, BACKTEST_TIMELINE)


def _spread(lists: DataFrame, trials_count: int) -> DataFrame:
    """Distribute each pair of task queue and trial over all workers, sorted: there is little data, but much work."""
    spark = lists.sparkSession
    workers = int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    numbers = spark.range(trials_count).withColumnRenamed("id", "trial")
    return lists.crossJoin(numbers).repartition(workers, *_REPLAY).sortWithinPartitions(*_REPLAY)


def _pieces(
    batches: Iterable[pa.RecordBatch], plan: Sequence[Trial], span: Span, *, traced: int = 0
) -> Iterator[tuple[Trial, pa.RecordBatch, Counts]]:
    """Yield the task queues of one trial that are replayed at once, one row each, with their arrivals [row, bucket].

    `traced` is the maximum number of values stored per task queue, setting and bucket beside the arrivals.
    """
    for batch in _whole(batches):
        begins = _begins(batch)
        replay_of = np.cumsum(begins) - 1
        firsts = np.flatnonzero(begins)
        numbers = batch.column("trial").to_numpy()[firsts]
        for number in np.unique(numbers):
            trial = plan[int(number)]
            replays = np.flatnonzero(numbers == number)
            numbers_each = span.buckets * (1 + traced * len(trial.numbers))
            for piece in blocks(len(replays), len(trial.numbers), numbers_each=numbers_each):
                some = replays[piece]
                named = batch.select(list(TASK_QUEUE)).take(pa.array(firsts[some]))
                places = np.flatnonzero(np.isin(replay_of, some))
                arrivals_of = batch.column("arrivals").take(pa.array(places))
                yield trial, named, _dense(arrivals_of, np.searchsorted(some, replay_of[places]), len(some), span)


def _whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, with all rows of a replay in one batch."""
    begun: pa.RecordBatch | None = None
    for batch in batches:
        rows = batch if begun is None else pa.concat_batches([begun, batch])
        last = int(np.flatnonzero(_begins(rows))[-1])
        if last:
            yield rows.slice(0, last)
        begun = rows.slice(last)
    if begun is not None:
        yield begun


def _begins(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return which rows are the first of a replay."""
    begins = np.ones(rows.num_rows, np.bool_)
    begins[1:] = False
    for name in _REPLAY:
        its, before = rows.column(name).slice(1), rows.column(name).slice(0, rows.num_rows - 1)
        differs = pc.coalesce(pc.not_equal(its, before), pc.xor(its.is_null(), before.is_null()))
        begins[1:] |= differs.to_numpy(zero_copy_only=False)
    return begins


def _dense(arrivals_of: pa.ListArray, places: npt.NDArray[np.int64], task_lists: int, span: Span) -> Counts:
    """Return the arrivals as an array [task queue, bucket]; `places` has the task queue of each row."""
    # Column-major, because the replay iterates over buckets.
    counts = np.zeros((task_lists, span.buckets), np.int64, order="F")
    flat = arrivals_of.flatten()
    lists = np.repeat(places, arrivals_of.value_lengths().to_numpy())
    counts[lists, flat.field("bucket").to_numpy() - span.first] = flat.field("tasks").to_numpy()
    return counts


def _replay_batches(
    batches: Iterable[pa.RecordBatch], *, plan: Sequence[Trial], model: Model, span: Span
) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(REPLAYED)
    for trial, rows, counts in _pieces(batches, plan, span):
        done = replay(counts, trial.settings, model)
        columns = _named(rows, len(trial.numbers)) | {
            "setting": np.tile(np.array(trial.numbers, np.int32), rows.num_rows),
            "tasks": np.repeat(counts.sum(axis=1), len(trial.numbers)),
            **{name: values.ravel() for name, values in _outcome(done).items()},
        }
        yield pa.RecordBatch.from_pydict(columns, schema)


def _outcome(done: Replay) -> dict[str, Any]:
    return {
        "changes": done.ups + done.downs + done.drains,
        "ups": done.ups,
        "downs": done.downs,
        "drains": done.drains,
        "above_s": done.above_s,
        "partitions_max": done.partitions_max,
        "partition_hours": done.partition_s / 3600,
        "overshoot_hours": done.overshoot_s / 3600,
        "overshoot_max": done.overshoot_max,
        "backlog_max": done.backlog_max,
        "backlog_mean": done.backlog_mean,
        "wait_s_max": done.wait_s_max,
        "wait_s_mean": done.wait_s_mean,
        "late": done.late,
    }


def _trace_batches(
    batches: Iterable[pa.RecordBatch], *, plan: Sequence[Trial], model: Model, span: Span, every_s: float
) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(BACKTEST_TIMELINE)
    for trial, rows, counts in _pieces(batches, plan, span, traced=_TRACED):
        done = replay(counts, trial.settings, model, is_traced=True)
        if done.qps is None or done.write is None or done.read is None or done.backlog is None:
            # The time range is shorter than one interval: the scaler never ran.
            continue
        interval_s = trial.settings[0].interval_s
        step = max(1, round(every_s / interval_s))
        ticks = np.arange(step - 1, len(done.qps), step)
        times_us = span.first * span.bucket_us + np.round((ticks + 1) * interval_s * 1e6).astype(np.int64)
        # From [ticks, task queues, settings] to rows ordered by task queue, setting and time.
        cells = rows.num_rows * len(trial.numbers)
        yield pa.RecordBatch.from_pydict(
            {
                **_named(rows, len(trial.numbers) * len(ticks)),
                "setting": np.tile(np.repeat(np.array(trial.numbers, np.int32), len(ticks)), rows.num_rows),
                "time_us": np.tile(times_us, cells),
                "qps": np.repeat(done.qps[ticks].T, len(trial.numbers), axis=0).ravel(),
                "write": done.write[ticks].transpose(1, 2, 0).ravel(),
                "read": done.read[ticks].transpose(1, 2, 0).ravel(),
                "backlog": done.backlog[ticks].transpose(1, 2, 0).ravel(),
            },
            schema,
        )


def _named(rows: pa.RecordBatch, times: int) -> dict[str, Any]:
    places = pa.array(np.repeat(np.arange(rows.num_rows), times))
    return {name: rows.column(name).take(places) for name in TASK_QUEUE}


def with_verdicts(
    outcomes: DataFrame, candidates: Sequence[Candidate], *, span: Span, objective: Objective
) -> DataFrame:
    """Return each task queue with each setting, and which setting is recommended for it."""
    changes_per_day = F.col("changes") * (_DAY_S / span.seconds)
    return (
        outcomes.join(_candidates(outcomes, candidates), on="setting", how="inner")
        .withColumn("changes_per_day", changes_per_day)
        .transform(_judged, by=TASK_QUEUE, objective=objective)
        .select(*BACKTEST.names)
    )


def overall(backtest: DataFrame, *, objective: Objective) -> DataFrame:
    """Return each setting for all task queues of a cluster together, and which one is recommended."""
    settings = tuple(CANDIDATES.names)
    tasks = F.greatest(F.sum("tasks"), F.lit(1))
    return (
        backtest.groupBy("cluster", *settings)
        .agg(
            F.count(F.lit(1)).alias("task_lists"),
            *(F.sum(name).alias(name) for name in _SUMS),
            *(F.max(name).alias(name) for name in _PEAKS),
            F.sum("backlog_mean").alias("backlog_mean"),
            (F.sum(F.col("wait_s_mean") * F.col("tasks")) / tasks).alias("wait_s_mean"),
            F.max("changes_per_day").alias("changes_per_day"),
        )
        .transform(_judged, by=("cluster",), objective=objective)
        .select(*BACKTEST_SETTINGS.names)
    )


def _judged(outcomes: DataFrame, *, by: Sequence[str], objective: Objective) -> DataFrame:
    """Apply the objective to the settings of each group."""
    is_within = (F.col("late_share") <= objective.late_share_max) & (
        F.col("changes_per_day") <= objective.changes_per_day_max
    )
    outside = ~F.col("is_within")
    order: list[Column] = [
        outside,
        F.when(outside, F.col("late_share")),
        F.when(outside, F.col("changes_per_day")),
        # Rounded, because sums of the same hours may differ by the order of addition.
        F.round("partition_hours", 6),
        F.col("changes"),
        F.round("above_s", 6),
        F.col("setting"),
    ]
    return (
        outcomes.withColumn("late_share", F.col("late") / F.greatest("tasks", F.lit(1)))
        .withColumn("is_within", is_within)
        .withColumn("is_recommended", F.row_number().over(Window.partitionBy(*by).orderBy(*order)) == 1)
    )


def _candidates(frame: DataFrame, candidates: Sequence[Candidate]) -> DataFrame:
    rows = [(number, *(float(value) for value in one)) for number, one in enumerate(candidates)]
    return F.broadcast(frame.sparkSession.createDataFrame(rows, CANDIDATES))
