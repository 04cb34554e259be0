"""Continues the replays of an earlier run at their last kept state, with the arrivals since then.

A replay's state is kept for a time that lies `CLOSED_S` before the end of the recording. Task queues with new arrivals
before that time, and new ones, are replayed from the start.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.core.partitions import STICKY
from fairlead.pipeline.increments.changes import NewBatch, view_of
from fairlead.pipeline.increments.selection import day_of, of_keys
from fairlead.pipeline.increments.spans import NEVER_US
from fairlead.pipeline.increments.touched import Spans, joined
from fairlead.pipeline.kernels.scaler import Model, buckets_per_tick
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import MEMORY_MAX, queries_on
from fairlead.pipeline.stages.backtest import Span, Trial, arrivals, is_too_long
from fairlead.pipeline.stages.traffic import TASK_QUEUE

# Seconds between a kept state and the end of the recording. A record that is late by less than this needs no replay
# from the start.
CLOSED_S = 3600.0
_QUEUE = ", ".join(TASK_QUEUE)


@dataclass(frozen=True)
class Continuation:
    """Replays up to the end of `span`. They continue from kept states; those of the task queues in `anew` do not."""

    span: Span
    anew: pa.Table

    def arrivals(self, tasks: DataFrame) -> DataFrame:
        """Return the arrivals that the replays need, like `stages.backtest.arrivals`."""
        begin_us = self.span.continued_us
        recent = tasks.where((F.col("day") >= day_of(begin_us)) & (F.col("time_us") >= begin_us))
        if not self.anew.num_rows:
            return arrivals(recent, span=self.span)
        its = of_keys(tasks, self.anew, TASK_QUEUE)
        return arrivals(self._of_others(recent).unionByName(its), span=self.span)

    def states(self, outcomes: DataFrame) -> DataFrame:
        """Return the states of the task queues that continue."""
        states = outcomes.select(*TASK_QUEUE, "setting", "state")
        return self._of_others(states) if self.anew.num_rows else states

    def traced(self, lake: Lake, table: str) -> Spans:
        """Return the rows of the timeline that change; `table` has all task queues."""
        with queries_on(lake, table) as queries:
            keys = queries.table(f"SELECT DISTINCT {_QUEUE} FROM {table}")  # noqa: S608 - our own names
        end_us = (self.span.first + self.span.begin) * self.span.bucket_us
        is_anew = pc.is_in(joined(keys, TASK_QUEUE), value_set=joined(self.anew, TASK_QUEUE))
        firsts = pc.if_else(is_anew, pa.scalar(0, pa.int64()), pa.scalar(end_us + 1, pa.int64()))
        ends = pa.array([NEVER_US] * keys.num_rows, pa.int64())
        keys = keys.append_column("span_first_us", firsts).append_column("span_end_us", ends)
        return Spans(TASK_QUEUE, keys, "time_us")

    def _of_others(self, rows: DataFrame) -> DataFrame:
        known = F.broadcast(rows.sparkSession.createDataFrame(self.anew))
        return rows.join(known, list(TASK_QUEUE), "left_anti")


def new_arrivals(batches: Sequence[NewBatch], *, bucket_us: int) -> pa.Table:
    """Return the number of added tasks of each task queue in new batches, and their first and last buckets."""
    with duckdb.connect(config={"memory_limit": MEMORY_MAX}) as database:
        view_of(database, batches, "records")
        query = f"""
            SELECT {_QUEUE}, CAST(min(time_us // $bucket_us) AS BIGINT) AS first_bucket,
                   CAST(max(time_us // $bucket_us) AS BIGINT) AS last_bucket, count(*) AS arrivals
            FROM records WHERE kind = 'added' AND task_list <> $sticky GROUP BY ALL
        """  # noqa: S608 - our own names
        return database.sql(query, params={"bucket_us": bucket_us, "sticky": STICKY}).to_arrow_table()


def continuation(lake: Lake, known: Span, news: pa.Table, table: str) -> Continuation | None:
    """Return how new arrivals continue the replays of the time range `known`; None if all must be replayed anew.

    `table` has the states after `known.checkpoint` buckets.
    """
    # A null key would not be found in the tables.
    if not known.checkpoint or known.left_out or any(news[name].null_count for name in TASK_QUEUE):
        return None
    first, last = pc.min(news["first_bucket"]).as_py(), pc.max(news["last_bucket"]).as_py()
    if first < known.first or is_too_long(known.first, last):
        return None
    with queries_on(lake, table) as queries:
        there = queries.table(f"SELECT DISTINCT {_QUEUE} FROM {table}")  # noqa: S608 - our own names
    is_late = pc.less(news["first_bucket"], known.first + known.checkpoint).combine_chunks()
    is_known = pc.is_in(joined(news, TASK_QUEUE), value_set=joined(there, TASK_QUEUE))
    anew = news.filter(pc.or_(is_late, pc.invert(is_known))).select(list(TASK_QUEUE))
    span = replace(
        known,
        buckets=max(known.buckets, last - known.first + 1),
        arrivals=known.arrivals + pc.sum(news["arrivals"]).as_py(),
        begin=known.checkpoint,
    )
    return Continuation(span, anew)


def with_checkpoint(span: Span, plan: Sequence[Trial], model: Model) -> Span:
    """Return the same span with the number of buckets after which states are kept: a tick of all trials."""
    step = math.lcm(*(buckets_per_tick(trial.settings[0].interval_s, model.bucket_s) for trial in plan))
    closed = span.buckets - math.ceil(CLOSED_S / model.bucket_s)
    return replace(span, checkpoint=max(span.begin, closed // step * step, 0))
