"""Watermarks: the time up to which each cluster's histories were delivered, on its own clock and on those of the
others.

The watermark of a stream is the latest time that it has delivered, on its own clock. The difference of two clusters'
clocks converts it to the clock of the other cluster. The difference is measured with runs that both clusters have: the
two times at which they journaled a run's first events differ by the difference of the clocks and by the lag of
replication, and the cluster that started the run journals it first. To leave out the lag, take the largest difference
among the runs that the holder started, but at most the smallest one among those that the other cluster started. If it
is unknown which cluster started a run, the median counts.
"""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.pipeline.kernels.reconcile.clocks import Clocks
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas import LONG, STRING, struct

# Span before the last run that two clusters share, in µs, over which the difference of their clocks is measured.
SYNC_US = 3_600_000_000
# Window, in µs, of the runs whose smallest difference counts: a longer window allows for a cluster that lagged longer.
LAG_US = 24 * SYNC_US

_RUN = ("namespace_id", "workflow_id", "run_id")
_ARRIVALS = struct(cluster=STRING, segment=STRING, arrived_us=LONG)


def read_clocks(
    history: DataFrame,
    *,
    now_us: int,
    until_us: int | None,
    increment: int | None = None,
    initial_versions: Mapping[str, int] | None = None,
) -> Clocks:
    """Return the clocks of all clusters. `history` holds all delivered batches; `until_us` is the time to judge at.

    `increment` and `initial_versions` say which cluster starts runs at a version.
    """
    latest = {
        row["cluster"]: row["us"] for row in history.groupBy("cluster").agg(F.max("time_us").alias("us")).collect()
    }
    cut = frozenset(name for name, time_us in latest.items() if until_us is not None and time_us >= until_us)
    own = {name: min(time_us, until_us or time_us) for name, time_us in latest.items()}
    starter = _owner(F.col("version"), increment or 1, initial_versions or {})
    others = {
        (row["holder"], row["other"]): own[row["other"]] + round(row["ahead_us"])
        for row in _differences(history, starter).collect()
    }
    return Clocks(now_us, own, others, cut)


def _owner(version: Column, increment: int, initial_versions: Mapping[str, int]) -> Column:
    """Return the cluster that writes at the version; an empty name if unknown."""
    return reduce(
        lambda owner, one: F.when(F.pmod(version, F.lit(increment)) == one[1] % increment, one[0]).otherwise(owner),
        initial_versions.items(),
        F.lit(""),
    )


def _differences(history: DataFrame, starter: Column) -> DataFrame:
    """Return, for each pair of clusters, by how much the holder's clock is ahead of the other's."""
    pair, starts_of = ["holder", "other"], [*_RUN, "starter"]
    starts = (
        history.where(F.col("first_event_id") == 1)
        .withColumn("starter", starter)
        .groupBy(*starts_of, "cluster")
        .agg(F.min("time_us").alias("time_us"))
    )
    left = starts.select(*starts_of, F.col("cluster").alias("holder"), F.col("time_us").alias("holder_us"))
    right = starts.select(*starts_of, F.col("cluster").alias("other"), F.col("time_us").alias("other_us"))
    shared = left.join(right, starts_of).where("holder != other")
    latest = shared.groupBy(*pair, "starter").agg(F.max("holder_us").alias("latest_us"))
    dated = shared.join(F.broadcast(latest), [*pair, "starter"])
    age_us, ahead_us = F.col("latest_us") - F.col("holder_us"), F.col("holder_us") - F.col("other_us")
    is_recent = age_us < SYNC_US
    by_holder = F.max(F.when(is_recent & (F.col("starter") == F.col("holder")), ahead_us))
    by_other = F.min(F.when((age_us < LAG_US) & (F.col("starter") == F.col("other")), ahead_us))
    middle = F.percentile(F.when(is_recent, ahead_us), F.lit(0.5))
    measured = dated.groupBy(*pair).agg(by_holder.alias("low"), by_other.alias("high"), middle.alias("middle"))
    return measured.select(*pair, F.coalesce(F.least("low", "high"), "middle").alias("ahead_us"))


def with_arrivals(history: DataFrame, spark: SparkSession, lake: Lake) -> DataFrame:
    """Add the time at which the row's segment arrived in the lake, by the clock of the pipeline."""
    rows = [(entry.cluster, entry.name, entry.arrived_us) for entry in lake.segments("history")]
    arrivals = spark.createDataFrame(rows, _ARRIVALS)
    return history.join(F.broadcast(arrivals), ["cluster", "segment"], "left")
