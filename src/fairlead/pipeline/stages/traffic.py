"""What went through each partition and each task list, window by window."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fairlead.core.errors import FixRequest
from fairlead.pipeline.schemas_traffic import TRAFFIC, TRAFFIC_LISTS

TASK_LIST = ("cluster", "namespace_id", "task_list", "task_type")
WINDOW_S = 60.0
_SUMS = ("added", "matched", "matched_at_once", "matched_forwarded", "forwarded", "polls_empty", "backlog")
_PERCENTILES = (0.5, 0.95, 0.99)


class InvalidWindow(FixRequest):
    """A window of time is shorter than a millisecond."""


def window_us_of(window_s: float) -> int:
    """The length of a window in whole microseconds."""
    if not 0.001 <= window_s < float("inf"):
        raise InvalidWindow(f"windows of {window_s} s: give at least a millisecond")
    return round(window_s * 1e6)


def with_window(tasks: DataFrame, window_s: float) -> DataFrame:
    """Name each record's window by its beginning; windows are counted from the epoch, the same in every run."""
    return tasks.withColumn("window_us", F.col("time_us") - F.pmod("time_us", F.lit(window_us_of(window_s))))


def partition_traffic(tasks: DataFrame, *, window_s: float = WINDOW_S) -> DataFrame:
    """One row for each partition and window in which anything was recorded."""
    is_told = F.col("kind") == "backlog"
    told_us = F.when(is_told, F.col("time_us"))
    flows = (
        with_window(tasks.where(F.col("task_list").isNotNull()), window_s)
        .groupBy(*TASK_LIST, "partition", "window_us")
        .agg(
            *_counts(),
            _waits(),
            F.max_by("tasks", told_us).alias("backlog"),
            F.max(F.when(is_told, F.col("tasks"))).alias("backlog_max"),
            (F.max(F.when(is_told, F.col("age_us"))) / 1e6).alias("backlog_age_s_max"),
            F.avg(F.when(is_told, F.col("pollers"))).alias("pollers_mean"),
        )
    )
    return flows.transform(_with_rates, window_s=window_s).select(*TRAFFIC.names)


def list_traffic(tasks: DataFrame, partitions: DataFrame, *, window_s: float = WINDOW_S) -> DataFrame:
    """The rows of the partitions together, with waits over all tasks and the skew between the partitions.

    Skew is among the partitions of which anything was heard in the window: one that only polls came to counts, too.
    """
    by = (*TASK_LIST, "window_us")
    mean = F.avg("added")
    sums = partitions.groupBy(*by).agg(
        *(F.sum(name).alias(name) for name in _SUMS),
        F.sum("backlog_max").alias("backlog_max"),
        F.max("backlog_age_s_max").alias("backlog_age_s_max"),
        F.sum("pollers_mean").alias("pollers_mean"),
        F.count(F.lit(1)).alias("partitions"),
        F.try_divide(F.max("added"), mean).alias("skew"),
        F.try_divide(F.stddev_pop("added"), mean).alias("skew_deviation"),
    )
    is_match = (F.col("kind") == "matched") & F.col("task_list").isNotNull()
    waits = with_window(tasks.where(is_match), window_s).groupBy(*by).agg(_waits())
    joined = sums.join(waits, on=[sums[name].eqNullSafe(waits[name]) for name in by], how="left")
    return (
        joined.select(*(sums[name] for name in sums.columns), "waits_us")
        .transform(_with_rates, window_s=window_s)
        .select(*TRAFFIC_LISTS.names)
    )


def percentiles_s(waits_us: Column, percentiles: Sequence[float] = _PERCENTILES) -> list[Column]:
    """Columns like `wait_s_p95` of an array of percentiles in µs."""
    return [(waits_us[index] / 1e6).alias(f"wait_s_p{share * 100:g}") for index, share in enumerate(percentiles)]


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


def _waits() -> Column:
    waits_us = F.when(F.col("kind") == "matched", F.col("wait_us"))
    return F.percentile(waits_us, list(_PERCENTILES)).alias("waits_us")


def _with_rates(flows: DataFrame, *, window_s: float) -> DataFrame:
    matched, empty = F.col("matched"), F.col("polls_empty")
    return flows.select(
        *(name for name in flows.columns if name != "waits_us"),
        *percentiles_s(F.col("waits_us")),
        (F.col("added") / window_s).alias("write_qps"),
        (matched / window_s).alias("dispatch_qps"),
        F.try_divide("matched_at_once", matched).alias("at_once_share"),
        F.try_divide("matched_forwarded", matched).alias("forwarded_share"),
        F.try_divide(empty, empty + matched).alias("idle_share"),
    )
