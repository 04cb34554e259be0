"""Traffic of each partition and each task queue, by window."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import STICKY
from fairlead.pipeline.schemas_traffic import TRAFFIC, TRAFFIC_LISTS
from fairlead.pipeline.stages.percentiles import PERCENTILES, column_name, percentiles_of

TASK_QUEUE = ("cluster", "namespace_id", "task_list", "task_type")
WINDOW_S = 60.0
# Bounds of a window in seconds; one worker must sort all waits of a window in memory.
WINDOW_S_MIN, WINDOW_S_MAX = 0.001, 3600.0
_SUMS = ("added", "matched", "matched_at_once", "matched_forwarded", "forwarded", "polls_empty", "backlog")


class InvalidWindow(FixRequest):
    """The window is shorter than a millisecond, or longer than an hour."""


def window_us_of(window_s: float) -> int:
    """Return the length of a window in whole microseconds."""
    if not WINDOW_S_MIN <= window_s <= WINDOW_S_MAX:
        raise InvalidWindow(f"windows of {window_s} s: give at least a millisecond, and at most an hour")
    return round(window_s * 1e6)


def with_window(tasks: DataFrame, window_s: float) -> DataFrame:
    """Add the beginning of each record's window; windows are aligned to the epoch, so all runs have the same ones."""
    return tasks.withColumn("window_us", F.col("time_us") - F.pmod("time_us", F.lit(window_us_of(window_s))))


def of_task_queues(tasks: DataFrame) -> DataFrame:
    """Drop the records of sticky task queues, which are journaled under one common name.

    Sticky task queues belong to one worker each and are never partitioned: there is nothing to scale, place or share.
    """
    return tasks.where(F.col("task_list") != STICKY)


def partition_flows(tasks: DataFrame, *, window_s: float = WINDOW_S) -> DataFrame:
    """Return the sums and the sorted waits of each partition and window, from which both tables are computed.

    `sorted_us` has the waits of the matched tasks. Records without a task queue are counted in rows without one.
    One pass over the records; the waits of a task queue are merged from those of its partitions.
    """
    # Python workers import this module without needing the journal, which loads slowly.
    from fairlead.journal import Happening  # noqa: PLC0415

    is_reported = F.col("kind") == "backlog"
    is_one = F.col("task_list") != STICKY
    reported_us = F.when(is_reported, F.col("time_us"))
    wait_us = F.when(F.col("kind") == "matched", F.col("wait_us"))
    return (
        with_window(tasks, window_s)
        .groupBy(*TASK_QUEUE, "partition", "window_us")
        .agg(
            *_counts(),
            F.max_by("tasks", F.when(is_one, reported_us)).alias("backlog"),
            F.max(F.when(is_reported & is_one, F.col("tasks"))).alias("backlog_max"),
            (F.max(F.when(is_reported, F.col("age_us"))) / 1e6).alias("backlog_age_s_max"),
            F.avg(F.when(is_reported & is_one, F.col("pollers"))).alias("pollers_mean"),
            F.count(F.lit(1)).alias("records"),
            F.count_if(~F.col("kind").isin(*map(str, Happening))).alias("records_unknown"),
            F.sort_array(F.collect_list(wait_us)).alias("sorted_us"),
        )
    )


def partition_traffic(flows: DataFrame, *, window_s: float = WINDOW_S) -> DataFrame:
    """Return one row for each partition and window with any record.

    The common rows of sticky task queues have no backlog: each report covers only one of the queues.
    """
    named = flows.where(F.col("task_list").isNotNull())
    return named.transform(_with_rates, window_s=window_s).select(*TRAFFIC.names)


def list_traffic(flows: DataFrame, *, window_s: float = WINDOW_S) -> DataFrame:
    """Return the totals of each task queue, with waits over all tasks and the skew between its partitions.

    Skew counts all partitions with any record in the window, even with polls only.
    """
    mean = F.avg("added")
    sums = (
        flows.where(F.col("task_list").isNotNull())
        .groupBy(*TASK_QUEUE, "window_us")
        .agg(
            *(F.sum(name).alias(name) for name in _SUMS),
            F.sum("backlog_max").alias("backlog_max"),
            F.max("backlog_age_s_max").alias("backlog_age_s_max"),
            F.sum("pollers_mean").alias("pollers_mean"),
            F.count(F.lit(1)).alias("partitions"),
            F.try_divide(F.max("added"), mean).alias("skew"),
            F.try_divide(F.stddev_pop("added"), mean).alias("skew_deviation"),
            F.sort_array(F.flatten(F.collect_list("sorted_us"))).alias("sorted_us"),
        )
    )
    return sums.transform(_with_rates, window_s=window_s).select(*TRAFFIC_LISTS.names)


def with_waits(flows: DataFrame, tasks: DataFrame, by: Sequence[str]) -> DataFrame:
    """Add the percentiles of the tasks' waits, in µs, to each group of flows.

    Waits are aggregated separately from the counts, since collecting lists disables Spark's fast aggregation. They are
    sorted lists, since Spark's own exact percentiles build a hash table of all waits of a group. Without both measures,
    the job took twice the time.
    """
    waits = (
        tasks.where(F.col("kind") == "matched")
        .groupBy(*by)
        .agg(F.sort_array(F.collect_list("wait_us")).alias("sorted_us"))
        .select(*by, percentiles_of(F.col("sorted_us")).alias("waits_us"))
    )
    joined = flows.join(waits, on=[flows[name].eqNullSafe(waits[name]) for name in by], how="left")
    return joined.select(*(flows[name] for name in flows.columns), "waits_us")


def percentiles_s(waits_us: Column) -> list[Column]:
    """Return columns like `wait_s_p95` from an array of percentiles in µs."""
    return [(waits_us[index] / 1e6).alias(column_name("wait_s", share)) for index, share in enumerate(PERCENTILES)]


def _counts() -> list[Column]:
    kind = F.col("kind")
    is_match = kind == "matched"
    return [
        F.count_if(kind == "added").alias("added"),
        F.count_if(is_match).alias("matched"),
        F.count_if(is_match & F.col("was_sync")).alias("matched_at_once"),
        F.count_if(is_match & F.col("was_forwarded")).alias("matched_forwarded"),
        F.count_if(kind == "forwarded").alias("forwarded"),
        F.count_if(kind == "poll_empty").alias("polls_empty"),
    ]


def _with_rates(flows: DataFrame, *, window_s: float) -> DataFrame:
    matched, empty = F.col("matched"), F.col("polls_empty")
    return flows.select(
        *(name for name in flows.columns if name != "sorted_us"),
        *percentiles_s(percentiles_of(F.col("sorted_us"))),
        (F.col("added") / window_s).alias("write_qps"),
        (matched / window_s).alias("dispatch_qps"),
        F.try_divide("matched_at_once", matched).alias("at_once_share"),
        F.try_divide("matched_forwarded", matched).alias("forwarded_share"),
        F.try_divide(empty, empty + matched).alias("idle_share"),
    )
