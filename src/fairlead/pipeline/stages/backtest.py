"""The scaler replayed over recorded arrivals, under many settings, and which of them is recommended.

Arrivals are counted natively; then every batch of task lists is replayed at once by the kernel.
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
from fairlead.pipeline.stages.traffic import TASK_LIST, of_task_lists

# Eight weeks in buckets of 5 s: the arrivals of a task list are an array of so many numbers in a worker. Of a longer
# time the last part is replayed.
BUCKETS_MAX = 1_000_000
# Within so many buckets they are in one row. Java puts that together as objects, of many task lists at a time.
BUCKETS_A_ROW = 4096
# Settings that are replayed at once; more of them are other rows, which other workers may take.
SETTINGS_AT_ONCE = 64
# What is traced is told of every minute, and of a short time in at least so many steps.
TIMELINE_S = 60.0
TIMELINE_STEPS_MIN = 60

_DAY_S = 86_400.0
# What one replay is of.
_REPLAY = (*TASK_LIST, "trial")
# Partitions to write and read, and backlog: as they are traced, and put together.
_TRACED = 6
_SUMS = ("tasks", "changes", "ups", "downs", "drains", "late", "above_s", "partition_hours", "overshoot_hours")
_PEAKS = ("partitions_max", "overshoot_max", "backlog_max", "wait_s_max")


@dataclass(frozen=True, slots=True)
class Span:
    """The recorded time that is replayed, in whole buckets counted from the epoch, and how many came before it."""

    first: int
    buckets: int
    bucket_us: int
    left_out: int = 0

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.buckets * self.bucket_us / 1e6

    @property
    def left_out_s(self) -> float:
        """How much was recorded before it, and is too much to be replayed."""
        return self.left_out * self.bucket_us / 1e6


@dataclass(frozen=True, slots=True)
class Objective:
    """What a good setting is: few partition-hours, with few tasks late and few changes."""

    late_share_max: float = 0.01
    changes_per_day_max: float = 96.0

    def __str__(self) -> str:
        return (
            f"the fewest partition-hours with at most {self.late_share_max:.2%} of the tasks late and at most "
            f"{self.changes_per_day_max:g} changes a day; where no setting has that, the fewest late tasks"
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings that are replayed together: their numbers, and what the server's scaler would get. One interval each."""

    numbers: tuple[int, ...]
    settings: tuple[ScalerSettings, ...]


def trials(settings: Sequence[tuple[int, ScalerSettings]]) -> list[Trial]:
    """Group numbered settings by their interval, in pieces that are replayed at once."""
    by_interval: dict[float, list[tuple[int, ScalerSettings]]] = {}
    for number, one in settings:
        by_interval.setdefault(one.interval_s, []).append((number, one))
    return [
        Trial(*zip(*its[first : first + SETTINGS_AT_ONCE], strict=True))
        for its in by_interval.values()
        for first in range(0, len(its), SETTINGS_AT_ONCE)
    ]


def arrivals(tasks: DataFrame, *, span: Span) -> DataFrame:
    """How many tasks each task list was given in each bucket of the time that is replayed, in one row or several."""
    return (
        of_task_lists(tasks)
        .where((F.col("kind") == "added") & (F.col("time_us") >= span.first * span.bucket_us))
        .groupBy(*TASK_LIST, F.expr(f"time_us div {span.bucket_us}").alias("bucket"))
        .agg(F.count(F.lit(1)).alias("tasks"))
        .groupBy(*TASK_LIST, F.expr(f"bucket div {BUCKETS_A_ROW}"))
        .agg(F.collect_list(F.struct("bucket", "tasks")).alias("arrivals"))
        .select(*ARRIVALS.names)
    )


def span_of(tasks: DataFrame, *, bucket_us: int) -> Span | None:
    """The time up to the last record, from the first, or from as early as can be replayed; None if there is none."""
    row = tasks.agg(F.min("time_us").alias("first"), F.max("time_us").alias("last")).first()
    if row is None or row["first"] is None:
        return None
    recorded, last = row["first"] // bucket_us, row["last"] // bucket_us
    first = max(recorded, last - BUCKETS_MAX + 1)
    return Span(first=first, buckets=last - first + 1, bucket_us=bucket_us, left_out=first - recorded)


def replayed(lists: DataFrame, plan: Sequence[Trial], *, model: Model, span: Span) -> DataFrame:
    """What every setting does with every task list."""
    kernel = partial(_replay_batches, plan=tuple(plan), model=model, span=span)
    return _spread(lists, len(plan)).mapInArrow(kernel, REPLAYED)


def timeline(lists: DataFrame, plan: Sequence[Trial], *, model: Model, span: Span) -> DataFrame:
    """Partitions over time under each setting; meant for a few settings."""
    every_s = min(TIMELINE_S, span.seconds / TIMELINE_STEPS_MIN)
    kernel = partial(_trace_batches, plan=tuple(plan), model=model, span=span, every_s=every_s)
    return _spread(lists, len(plan)).mapInArrow(kernel, BACKTEST_TIMELINE)


def _spread(lists: DataFrame, trials_count: int) -> DataFrame:
    """Each task list for each trial, its rows one after the other, over all workers: little data, and long work."""
    spark = lists.sparkSession
    workers = int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    numbers = spark.range(trials_count).withColumnRenamed("id", "trial")
    return lists.crossJoin(numbers).repartition(workers, *_REPLAY).sortWithinPartitions(*_REPLAY)


def _pieces(
    batches: Iterable[pa.RecordBatch], plan: Sequence[Trial], span: Span, *, traced: int = 0
) -> Iterator[tuple[Trial, pa.RecordBatch, Counts]]:
    """The task lists of one trial that are replayed at once, a row for each, with their arrivals [row, bucket].

    `traced` is how many numbers are kept of each task list, setting and bucket beside the arrivals, at most.
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
                named = batch.select(list(TASK_LIST)).take(pa.array(firsts[some]))
                places = np.flatnonzero(np.isin(replay_of, some))
                arrivals_of = batch.column("arrivals").take(pa.array(places))
                yield trial, named, _dense(arrivals_of, np.searchsorted(some, replay_of[places]), len(some), span)


def _whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, with all rows of a replay in one batch."""
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
    """Which rows are the first of a replay."""
    begins = np.ones(rows.num_rows, np.bool_)
    begins[1:] = False
    for name in _REPLAY:
        its, before = rows.column(name).slice(1), rows.column(name).slice(0, rows.num_rows - 1)
        differs = pc.coalesce(pc.not_equal(its, before), pc.xor(its.is_null(), before.is_null()))
        begins[1:] |= differs.to_numpy(zero_copy_only=False)
    return begins


def _dense(arrivals_of: pa.ListArray, places: npt.NDArray[np.int64], task_lists: int, span: Span) -> Counts:
    """The arrivals of so many task lists, of which each row is one by its place."""
    # Bucket by bucket in memory, as they are gone through.
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
            # Shorter than one interval: the scaler never looked.
            continue
        interval_s = trial.settings[0].interval_s
        step = max(1, round(every_s / interval_s))
        ticks = np.arange(step - 1, len(done.qps), step)
        times_us = span.first * span.bucket_us + np.round((ticks + 1) * interval_s * 1e6).astype(np.int64)
        # From [ticks, task lists, settings] to rows that go by task list, then by setting, then by time.
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
    return {name: rows.column(name).take(places) for name in TASK_LIST}


def with_verdicts(
    outcomes: DataFrame, candidates: Sequence[Candidate], *, span: Span, objective: Objective
) -> DataFrame:
    """Each task list with each setting, and which setting is recommended for it."""
    changes_per_day = F.col("changes") * (_DAY_S / span.seconds)
    return (
        outcomes.join(_candidates(outcomes, candidates), on="setting", how="inner")
        .withColumn("changes_per_day", changes_per_day)
        .transform(_judged, by=TASK_LIST, objective=objective)
        .select(*BACKTEST.names)
    )


def overall(backtest: DataFrame, *, objective: Objective) -> DataFrame:
    """Each setting for all task lists of a cluster, and which is recommended for all."""
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
    """Apply the objective among the settings of each group."""
    is_within = (F.col("late_share") <= objective.late_share_max) & (
        F.col("changes_per_day") <= objective.changes_per_day_max
    )
    outside = ~F.col("is_within")
    order: list[Column] = [
        outside,
        F.when(outside, F.col("late_share")),
        F.when(outside, F.col("changes_per_day")),
        # Sums of the same hours in another order must not decide.
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
