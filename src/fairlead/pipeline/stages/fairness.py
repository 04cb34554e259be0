"""Who got what against what was due: shares, starved keys and floods, for each task list window by window.

What is due is the max-min fair share: dispatched tasks are dealt out by weight, nobody gets more than it has, and what
one key leaves is dealt out among the others. So a key with little to do is not counted as treated badly, and a task
list that keeps up is fair, whatever the shares of its keys are.

What a key has is what it added and what it had left from before. Both are from the records alone, and records may be
dropped: so a backlog counts as gone when the partitions told that they hold nothing, or when nothing was heard of the
key for `CARRIED_WINDOWS_MAX` windows.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from fairlead.core.fairness.weights import WEIGHT_DEFAULT, WEIGHT_MIN
from fairlead.pipeline.schemas_fairness import FAIRNESS, FAIRNESS_KEYS
from fairlead.pipeline.stages.traffic import (
    TASK_LIST,
    WINDOW_S,
    of_task_lists,
    percentiles_s,
    window_us_of,
    with_waits,
    with_window,
)

CARRIED_WINDOWS_MAX = 60
# A key is starved that waited all through a window and got less than this of what was due, which was at least a task.
STARVED_BELOW = 0.1
# A key is a flood that made this much of all the work there was, and got beyond its own due this much of what starved
# keys did not get, both beyond chance. In a burst of all, somebody gets most, and nobody floods.
FLOOD_WORK_FROM = 1 / 3
FLOOD_FROM = 0.5
# Standard deviations that a count of few tasks may be off by chance.
CHANCE = 3.0
# Who is due two tasks a minute sometimes gets none in one. A key is the victim of a flood that missed so many by it, in
# all of its windows, that it is chance once in a thousand times.
MISSED_MIN = 7.0
STARVED_KEYS_TOLD = 20
# What is this close to a bound is on it: two keys that flooded alike are exactly at half, and sums are rounded.
NOISE = 1e-9

_BY_WINDOW = (*TASK_LIST, "window_us")
_ROWS = "array<struct<window_us: long, backlog_before: long, added: long, dispatched: long>>"
_KEY = (*TASK_LIST, "fairness_key")


def key_fairness(tasks: DataFrame, *, window_s: float = WINDOW_S) -> DataFrame:
    """One row for each task list, window and key that had work."""
    named = with_window(of_task_lists(tasks), window_s)
    named = named.withColumn("fairness_key", F.coalesce("fairness_key", F.lit("")))
    keys = (
        _key_flows(named)
        .transform(_with_backlog, told_empty=_told_empty(named), window_us=window_us_of(window_s))
        .transform(_with_due)
        .transform(_with_verdicts)
    )
    waited = with_waits(keys, named, (*_BY_WINDOW, "fairness_key"))
    return waited.select(*keys.columns, *percentiles_s(F.col("waits_us"))).select(*FAIRNESS_KEYS.names)


def window_fairness(keys: DataFrame) -> DataFrame:
    """The keys of a task list and window together."""
    ratio = F.col("ratio")
    missed = F.when(F.col("is_starved"), F.col("fair") - F.col("dispatched"))
    beyond = F.col("dispatched") - F.col("fair")
    worst = F.sort_array(F.collect_list(F.when(F.col("is_starved"), F.struct(missed, "fairness_key"))), asc=False)
    most = F.when(F.col("is_flood"), F.struct(beyond, "fairness_key"))
    rows = keys.groupBy(*_BY_WINDOW).agg(
        F.count(F.lit(1)).alias("keys"),
        F.sum("dispatched").alias("dispatched"),
        F.try_divide(F.sum(ratio) * F.sum(ratio), F.count(ratio) * F.sum(ratio * ratio)).alias("jain"),
        F.count_if("is_starved").alias("starved"),
        F.coalesce(F.sum(missed), F.lit(0.0)).alias("starved_tasks"),
        F.slice(worst["fairness_key"], 1, STARVED_KEYS_TOLD).alias("starved_keys"),
        F.max_by("fairness_key", most).alias("flood_key"),
        F.max(F.when(F.col("is_flood"), beyond)).alias("flood_tasks"),
        F.max_by("added", most).alias("flood_added"),
    )
    return rows.select(*FAIRNESS.names)


def floods(windows: DataFrame, keys: DataFrame) -> DataFrame:
    """The floods that have victims, each with all its windows."""
    flooded = windows.where(F.col("flood_key").isNotNull()).select(*_BY_WINDOW, "flood_key", "flood_tasks")
    of_flood = (*TASK_LIST, "flood_key")
    victims = (
        keys.where("is_starved")
        .join(flooded, on=list(_BY_WINDOW), how="inner")
        .groupBy(*of_flood, "fairness_key")
        .agg(F.sum(F.col("fair") - F.col("dispatched")).alias("missed"))
        .where(F.col("missed") >= MISSED_MIN)
        .groupBy(*of_flood)
        .agg(F.count(F.lit(1)).alias("victims"), F.sum("missed").alias("tasks_missed"))
    )
    return (
        flooded.groupBy(*of_flood)
        .agg(
            F.count(F.lit(1)).alias("windows"),
            F.sum("flood_tasks").alias("tasks_beyond_due"),
            F.min("window_us").alias("first_us"),
            F.max("window_us").alias("last_us"),
        )
        .join(victims, on=list(of_flood), how="inner")
    )


def starved(keys: DataFrame) -> DataFrame:
    """The keys that starved, each with all its windows."""
    return (
        keys.where("is_starved")
        .groupBy(*TASK_LIST, "fairness_key")
        .agg(F.count(F.lit(1)).alias("windows"), F.sum(F.col("fair") - F.col("dispatched")).alias("tasks_missed"))
    )


def _key_flows(named: DataFrame) -> DataFrame:
    is_match = F.col("kind") == "matched"
    weighed_us = F.when(F.col("weight").isNotNull(), F.col("time_us"))
    weight = F.coalesce(F.max_by("weight", weighed_us), F.lit(WEIGHT_DEFAULT))
    return (
        named.where(F.col("kind").isin("added", "matched"))
        .groupBy(*_BY_WINDOW, "fairness_key")
        .agg(
            F.count_if(F.col("kind") == "added").alias("added"),
            F.count_if(is_match).alias("dispatched"),
            F.greatest(weight, F.lit(WEIGHT_MIN)).alias("weight"),
        )
    )


def _told_empty(named: DataFrame) -> DataFrame:
    """The windows in which partitions told their backlog, and whether all that did had none when they last did."""
    return (
        named.where(F.col("kind") == "backlog")
        .groupBy(*_BY_WINDOW, "partition")
        .agg(F.max_by("tasks", "time_us").alias("tasks"))
        .groupBy(*_BY_WINDOW)
        .agg((F.sum("tasks") == 0).alias("is_empty"))
    )


def _with_backlog(flows: DataFrame, *, told_empty: DataFrame, window_us: int) -> DataFrame:
    """What each key had left when a window began, and rows also for windows in which it only waited."""
    begun = Window.partitionBy(*_KEY, "era", "silences").orderBy("window_us")
    its = Window.partitionBy(*_KEY).orderBy("window_us")
    was_silent = F.col("window_us") - F.lag("window_us").over(its) > (CARRIED_WINDOWS_MAX + 1) * window_us
    so_far = begun.rowsBetween(Window.unboundedPreceding, 0)
    # The sum falls below 0 by what was there before the first record: from then on it is counted from its lowest.
    level = F.col("level") - F.least(F.lit(0), F.min("level").over(so_far))
    end_us = F.least(
        F.coalesce(F.lead("window_us").over(its), F.col("last_us") + window_us),
        F.col("empty_us") + window_us,
        F.col("window_us") + (CARRIED_WINDOWS_MAX + 1) * window_us,
    )
    waited_us = F.when(
        (F.col("left") > 0) & (F.col("end_us") > F.col("window_us") + window_us),
        F.sequence(F.col("window_us") + window_us, F.col("end_us") - window_us, F.lit(window_us)),
    )
    told = (
        flows.join(_eras(flows, told_empty), on=list(_BY_WINDOW), how="inner")
        .withColumn("was_silent", was_silent)
        .withColumn("silences", F.count_if("was_silent").over(its.rowsBetween(Window.unboundedPreceding, 0)))
        .withColumn("level", F.sum(F.col("added") - F.col("dispatched")).over(so_far))
        .withColumn("left", level)
        .withColumn("backlog_before", F.coalesce(F.lag("left").over(begun), F.lit(0).cast("long")))
        .withColumn("end_us", end_us)
        .withColumn("waited_us", waited_us)
    )
    # In one go: to bring the rows together from two would be to count all of them twice.
    own = F.struct("window_us", "backlog_before", "added", "dispatched")
    none = F.lit(0).cast("long")
    waiting = F.transform(
        "waited_us",
        lambda waited_us: F.struct(
            waited_us.alias("window_us"),
            F.col("left").alias("backlog_before"),
            none.alias("added"),
            none.alias("dispatched"),
        ),
    )
    rows = F.explode(F.concat(F.array(own), F.coalesce(waiting, F.array().cast(_ROWS)))).alias("row")
    return told.select(*TASK_LIST, "fairness_key", "weight", rows).select(*TASK_LIST, "fairness_key", "weight", "row.*")


def _eras(flows: DataFrame, told_empty: DataFrame) -> DataFrame:
    """For each window of a task list: how often it was told empty before, when next, and its last window."""
    its = Window.partitionBy(*TASK_LIST).orderBy("window_us")
    # Backwards: of a frame that ends with the last row Spark adds up all of it for each row anew.
    backwards = Window.partitionBy(*TASK_LIST).orderBy(F.desc("window_us"))
    empty_us = F.when(F.col("is_empty"), F.col("window_us"))
    marks = flows.select(*_BY_WINDOW, F.expr("false").alias("is_empty")).unionByName(told_empty)
    return (
        marks.groupBy(*_BY_WINDOW)
        .agg(F.max("is_empty").alias("is_empty"))
        .select(
            *_BY_WINDOW,
            F.count_if("is_empty").over(its.rowsBetween(Window.unboundedPreceding, -1)).alias("era"),
            F.min(empty_us).over(backwards.rowsBetween(Window.unboundedPreceding, 0)).alias("empty_us"),
            F.max("window_us").over(Window.partitionBy(*TASK_LIST)).alias("last_us"),
        )
    )


def _with_due(flows: DataFrame) -> DataFrame:
    """Deal out what was dispatched, by weight: keys are served in the order in which they would be satisfied."""
    everything = Window.partitionBy(*_BY_WINDOW)
    turn = F.col("demand") / F.col("weight")
    before = everything.orderBy(turn, "fairness_key").rowsBetween(Window.unboundedPreceding, -1)
    backwards = everything.orderBy(F.desc(turn), F.desc("fairness_key"))
    onward = backwards.rowsBetween(Window.unboundedPreceding, 0)
    # With what a key has left of its demand for each unit of weight, all after it could be given as much.
    reached = F.coalesce(F.sum("demand").over(before), F.lit(0)) + F.col("demand") / F.col("weight") * F.sum(
        "weight"
    ).over(onward)
    is_satisfied = F.col("is_satisfied")
    given = F.coalesce(F.sum(F.when(is_satisfied, F.col("demand"))).over(everything), F.lit(0))
    unsatisfied_weight = F.sum(F.when(~is_satisfied, F.col("weight"))).over(everything)
    demand = F.greatest(F.col("backlog_before") + F.col("added"), F.col("dispatched"))
    return (
        flows.withColumn("demand", demand)
        .where(F.col("demand") > 0)
        .withColumn("total", F.sum("dispatched").over(everything))
        # Sums of weights are rounded: a key that is satisfied exactly must not fail by that.
        .withColumn("is_satisfied", reached <= F.col("total") * (1 + NOISE))
        .withColumn(
            "fair",
            F.when(is_satisfied, F.col("demand").cast("double")).otherwise(
                F.col("weight") * (F.col("total") - given) / unsatisfied_weight
            ),
        )
        .withColumn("weight_share", F.col("weight") / F.sum("weight").over(everything))
        .withColumn("share", F.try_divide("dispatched", "total"))
        .withColumn("ratio", F.try_divide("dispatched", "fair"))
    )


def _with_verdicts(keys: DataFrame) -> DataFrame:
    everything = Window.partitionBy(*_BY_WINDOW)
    fair, dispatched = F.col("fair"), F.col("dispatched")
    is_due_a_task = fair >= 1 - NOISE
    is_starved = (F.col("backlog_before") > 0) & is_due_a_task & (dispatched < STARVED_BELOW * fair * (1 - NOISE))
    missed: Column = F.sum(F.when(F.col("is_starved"), fair - dispatched)).over(everything)
    work = F.sum("demand").over(everything)
    chance = CHANCE * F.sqrt(F.lit(FLOOD_WORK_FROM * (1 - FLOOD_WORK_FROM)) * work)
    has_much = F.col("demand") >= FLOOD_WORK_FROM * work + chance
    got_much = dispatched - fair >= F.greatest(FLOOD_FROM * missed, CHANCE * F.sqrt(missed)) * (1 - NOISE)
    is_flood = (missed > 0) & has_much & got_much
    return keys.withColumn("is_starved", is_starved).withColumn("is_flood", F.coalesce(is_flood, F.expr("false")))
