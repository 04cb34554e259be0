"""Replays the scaler over recorded arrivals under many settings, and recommends one of them.

Spark counts the arrivals; then the kernel replays each batch of task queues at once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from fairlead.core.scaling import ScalerSettings
from fairlead.pipeline.kernels.scaler import (
    LEAD,
    STATE_NUMBERS,
    Counts,
    Model,
    Replay,
    Values,
    blocks,
    buckets_per_tick,
    replay,
)
from fairlead.pipeline.schemas_backtest import ARRIVALS, BACKTEST_TIMELINE, STATES
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

# The key of one replay.
_REPLAY = (*TASK_QUEUE, "trial")
# Values traced per task queue, setting and bucket: write partitions, read partitions and backlog, each twice, since
# they are copied when stacked.
_TRACED = 6


@dataclass(frozen=True, slots=True)
class Span:
    """The recorded time range that is replayed, in whole buckets since the epoch; `left_out` buckets came before it.

    `arrivals` is the number of all added tasks, replayed or not. Replays that continue begin after `begin` buckets;
    the states after `checkpoint` buckets are kept for the next run, if that is not 0.
    """

    first: int
    buckets: int
    bucket_us: int
    left_out: int = 0
    arrivals: int = 0
    begin: int = 0
    checkpoint: int = 0

    @property
    def seconds(self) -> float:
        """Length of the replayed time range."""
        return self.buckets * self.bucket_us / 1e6

    @property
    def continued_us(self) -> int:
        """Time from which replays that continue need the arrivals."""
        return (self.first + self.begin - LEAD) * self.bucket_us

    @property
    def left_out_s(self) -> float:
        """Length of the recording before the replayed time range."""
        return self.left_out * self.bucket_us / 1e6


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


def is_too_long(first: int, last: int) -> bool:
    """Whether a recording with these first and last buckets is longer than a replay."""
    return last - first >= BUCKETS_MAX


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


def replayed(
    lists: DataFrame, plan: Sequence[Trial], *, model: Model, span: Span, states: DataFrame | None = None
) -> DataFrame:
    """Return the results of every setting for every task queue, with the states that the next run continues.

    Task queues with `states` continue from them; their `lists` begin at `Span.continued_us`.
    """
    kernel = partial(_replay_batches, plan=tuple(plan), model=model, span=span)
    return _spread(lists, plan, states).mapInArrow(kernel, STATES)


def timeline(
    lists: DataFrame, plan: Sequence[Trial], *, model: Model, span: Span, states: DataFrame | None = None
) -> DataFrame:
    """Return the partitions over time under each setting; meant for a few settings.

    Task queues with `states` have only the times after `Span.begin`.
    """
    kernel = partial(_trace_batches, plan=tuple(plan), model=model, span=span, every_s=timeline_step_s(span))
    return _spread(lists, plan, states).mapInArrow(kernel, BACKTEST_TIMELINE)


def timeline_step_s(span: Span) -> float:
    """Return the seconds between two points of a timeline."""
    return min(TIMELINE_S, span.seconds / TIMELINE_STEPS_MIN)


def _spread(lists: DataFrame, plan: Sequence[Trial], states: DataFrame | None) -> DataFrame:
    """Distribute each pair of task queue and trial over all workers, sorted: there is little data, but much work.

    The arrivals of a pair come first, then its states in the order of the settings.
    """
    spark = lists.sparkSession
    workers = int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    numbers = spark.range(len(plan)).withColumnRenamed("id", "trial")
    of_arrivals = [F.lit(None).cast(STATES[name].dataType).alias(name) for name in ("setting", "state")]
    rows = lists.crossJoin(numbers).select(*_REPLAY, "arrivals", *of_arrivals)
    if states is not None:
        pairs = [(setting, number) for number, trial in enumerate(plan) for setting in trial.numbers]
        trial_of = F.broadcast(spark.createDataFrame(pairs, "setting int, trial long"))
        empty = F.array().cast(ARRIVALS["arrivals"].dataType).alias("arrivals")
        rows = rows.unionByName(states.join(trial_of, "setting").select(*_REPLAY, empty, "setting", "state"))
    # Null is the lowest setting.
    return rows.repartition(workers, *_REPLAY).sortWithinPartitions(*_REPLAY, "setting")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Task queues that are replayed at once under one trial: one row of `names` and of `counts` [row, bucket] each.

    `state` [row, setting, number] is where they continue after `begin` buckets.
    """

    trial: Trial
    names: pa.RecordBatch
    counts: Counts
    begin: int = 0
    state: Values | None = None


def _pieces(
    batches: Iterable[pa.RecordBatch], plan: Sequence[Trial], span: Span, *, traced: int = 0
) -> Iterator[_Piece]:
    """Yield the task queues of one trial that are replayed at once.

    `traced` is the maximum number of values stored per task queue, setting and bucket beside the arrivals.
    """
    for batch in _whole(batches):
        begins = _begins(batch)
        replay_of = np.cumsum(begins) - 1
        firsts = np.flatnonzero(begins)
        numbers = batch.column("trial").to_numpy()[firsts]
        is_state = batch.column("setting").is_valid().to_numpy(zero_copy_only=False)
        continues = np.logical_or.reduceat(is_state, firsts)
        for number, is_continued in product(np.unique(numbers), (False, True)):
            trial = plan[int(number)]
            replays = np.flatnonzero((numbers == number) & (continues == is_continued))
            begin, lead = (span.begin, LEAD) if is_continued else (0, 0)
            buckets = span.buckets - begin + lead
            numbers_each = buckets * (1 + traced * len(trial.numbers)) + STATE_NUMBERS * len(trial.numbers)
            for piece in blocks(len(replays), len(trial.numbers), numbers_each=numbers_each):
                some = replays[piece]
                named = batch.select(list(TASK_QUEUE)).take(pa.array(firsts[some]))
                is_some = np.isin(replay_of, some)
                places = np.flatnonzero(is_some & ~is_state)
                counts = _dense(
                    batch.column("arrivals").take(pa.array(places)),
                    np.searchsorted(some, replay_of[places]),
                    shape=(len(some), buckets),
                    first=span.first + begin - lead,
                )
                if not is_continued:
                    yield _Piece(trial, named, counts)
                    continue
                states = batch.column("state").take(pa.array(np.flatnonzero(is_some & is_state))).flatten()
                shape = (len(some), len(trial.numbers), STATE_NUMBERS)
                yield _Piece(trial, named, counts, begin, states.to_numpy().reshape(shape))


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


def _dense(arrivals_of: pa.ListArray, places: npt.NDArray[np.int64], *, shape: tuple[int, int], first: int) -> Counts:
    """Return the arrivals as an array [task queue, bucket] from the bucket `first` on; `places` has the task queue of
    each row.
    """
    # Column-major, because the replay iterates over buckets.
    counts = np.zeros(shape, np.int64, order="F")
    flat = arrivals_of.flatten()
    lists = np.repeat(places, arrivals_of.value_lengths().to_numpy())
    counts[lists, flat.field("bucket").to_numpy() - first] = flat.field("tasks").to_numpy()
    return counts


def _replay_batches(
    batches: Iterable[pa.RecordBatch], *, plan: Sequence[Trial], model: Model, span: Span
) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(STATES)
    for piece in _pieces(batches, plan, span):
        trial, rows = piece.trial, piece.names.num_rows
        done = replay(
            piece.counts, trial.settings, model, begin=piece.begin, state=piece.state,
            checkpoint=span.checkpoint or None,
        )  # fmt: skip
        columns = _named(piece.names, len(trial.numbers)) | {
            "setting": np.tile(np.array(trial.numbers, np.int32), rows),
            "tasks": np.repeat(done.tasks, len(trial.numbers)),
            **{name: values.ravel() for name, values in _outcome(done).items()},
            "state": _listed(done.state, rows * len(trial.numbers)),
        }
        yield pa.RecordBatch.from_pydict(columns, schema)


def _listed(state: Values | None, rows: int) -> pa.Array:
    if state is None:
        return pa.nulls(rows, pa.list_(pa.float64()))
    ends = np.arange(rows + 1, dtype=np.int32) * STATE_NUMBERS
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(state.ravel()))


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
    for piece in _pieces(batches, plan, span, traced=_TRACED):
        trial, rows = piece.trial, piece.names
        done = replay(piece.counts, trial.settings, model, is_traced=True, begin=piece.begin, state=piece.state)
        if done.qps is None or done.write is None or done.read is None or done.backlog is None:
            # The time range is shorter than one interval: the scaler never ran.
            continue
        interval_s = trial.settings[0].interval_s
        step = max(1, round(every_s / interval_s))
        begun = piece.begin // buckets_per_tick(interval_s, model.bucket_s)
        # The first point after those of the earlier runs.
        ticks = np.arange((begun + step) // step * step - 1 - begun, len(done.qps), step)
        times_us = span.first * span.bucket_us + np.round((begun + ticks + 1) * interval_s * 1e6).astype(np.int64)
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
