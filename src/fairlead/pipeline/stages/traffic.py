"""What went through each partition and each task list, window by window."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import STICKY
from fairlead.pipeline.schemas_traffic import TRAFFIC, TRAFFIC_LISTS

TASK_LIST = ("cluster", "namespace_id", "task_list", "task_type")
WINDOW_S = 60.0
# The waits of all tasks of a window are sorted in the memory of one worker.
WINDOW_S_MIN, WINDOW_S_MAX = 0.001, 3600.0
_SUMS = ("added", "matched", "matched_at_once", "matched_forwarded", "forwarded", "polls_empty", "backlog")
_PERCENTILES = (0.5, 0.95, 0.99)


class InvalidWindow(FixRequest):
    """A window of time is shorter than a millisecond, or longer than an hour."""


def window_us_of(window_s: float) -> int:
    """The length of a window in whole microseconds."""
    if not WINDOW_S_MIN <= window_s <= WINDOW_S_MAX:
        raise InvalidWindow(f"windows of {window_s} s: give at least a millisecond, and at most an hour")
    return round(window_s * 1e6)


def with_window(tasks: DataFrame, window_s: float) -> DataFrame:
    """Name each record's window by its beginning; windows are counted from the epoch, the same in every run."""
    return tasks.withColumn("window_us", F.col("time_us") - F.pmod("time_us", F.lit(window_us_of(window_s))))


def of_task_lists(tasks: DataFrame) -> DataFrame:
    """The records of task lists that a name is of. Sticky ones, of a worker each, are journaled under one name.

    They are never partitioned and serve a worker in the order of its tasks: nothing is to be scaled, placed or shared.
    """
    return tasks.where(F.col("task_list") != STICKY)


def partition_traffic(tasks: DataFrame, *, window_s: float = WINDOW_S) -> DataFrame:
    """One row for each partition and window in which anything was recorded.

    Of sticky task lists together nobody knows how much waits: each told of its own tasks and polls alone.
    """
    is_told = F.col("kind") == "backlog"
    is_one = F.col("task_list") != STICKY
    told_us = F.when(is_told, F.col("time_us"))
    by = (*TASK_LIST, "partition", "window_us")
    named = with_window(tasks.where(F.col("task_list").isNotNull()), window_s)
    flows = named.groupBy(*by).agg(
        *_counts(),
        F.max_by("tasks", F.when(is_one, told_us)).alias("backlog"),
        F.max(F.when(is_told & is_one, F.col("tasks"))).alias("backlog_max"),
        (F.max(F.when(is_told, F.col("age_us"))) / 1e6).alias("backlog_age_s_max"),
        F.avg(F.when(is_told & is_one, F.col("pollers"))).alias("pollers_mean"),
    )
    return with_waits(flows, named, by).transform(_with_rates, window_s=window_s).select(*TRAFFIC.names)


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
    named = with_window(tasks.where(F.col("task_list").isNotNull()), window_s)
    return with_waits(sums, named, by).transform(_with_rates, window_s=window_s).select(*TRAFFIC_LISTS.names)


def with_waits(flows: DataFrame, tasks: DataFrame, by: Sequence[str]) -> DataFrame:
    """Each group of flows with the percentiles of its tasks' waits in µs, exact and in between two where need be.

    Apart from what is counted, since lists keep Spark from its quick way of counting; and by sorted lists, since its
    own exact percentiles put every wait into a hash table of its group: the two together took twice the time.
    """
    waits = (
        tasks.where(F.col("kind") == "matched")
        .groupBy(*by)
        .agg(F.sort_array(F.collect_list("wait_us")).alias("sorted_us"))
        .select(*by, _percentiles(F.col("sorted_us")).alias("waits_us"))
    )
    joined = flows.join(waits, on=[flows[name].eqNullSafe(waits[name]) for name in by], how="left")
    return joined.select(*(flows[name] for name in flows.columns), "waits_us")


def _percentiles(ordered: Column) -> Column:
    """The percentiles of a sorted array, as an array; null if it is empty."""

    def at(share: Column) -> Column:
        place = (F.size(ordered) - 1) * share
        below, above = F.floor(place), F.ceil(place)
        between = (above - place) * F.get(ordered, below) + (place - below) * F.get(ordered, above)
        return F.when(below == above, F.get(ordered, below).cast("double")).otherwise(between)

    return F.when(F.size(ordered) > 0, F.transform(F.array(*map(F.lit, _PERCENTILES)), at))


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
