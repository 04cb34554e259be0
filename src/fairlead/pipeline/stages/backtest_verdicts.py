"""Judges replayed settings by an objective, and recommends one of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from fairlead.pipeline.kernels.scaler import Candidate
from fairlead.pipeline.schemas_backtest import BACKTEST, BACKTEST_SETTINGS, CANDIDATES
from fairlead.pipeline.stages.backtest import Span
from fairlead.pipeline.stages.traffic import TASK_QUEUE

_DAY_S = 86_400.0
_SUMS = ("tasks", "changes", "ups", "downs", "drains", "late", "above_s", "partition_hours", "overshoot_hours")
_PEAKS = ("partitions_max", "overshoot_max", "backlog_max", "wait_s_max")


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
