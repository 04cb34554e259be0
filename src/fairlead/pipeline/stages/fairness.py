"""Dispatches against fair shares: shares, starved keys and floods, for each task queue and window.

The fair share is max-min fair: dispatches are divided by weight, no key gets more than its demand, and what a key does
not need is divided among the others. So a key with little demand does not count as unfairly treated, and a task queue
without a backlog is fair with any shares of its keys.

The demand of a key is its added tasks plus its backlog at the start of the window. Both are computed from the records,
of which some may have been dropped. So a backlog counts as empty as soon as the partitions report an empty backlog, or
the key has no record for `CARRIED_WINDOWS_MAX` windows.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from fairlead.core.fairness.verdicts import CHANCE, FLOOD_FROM, FLOOD_WORK_FROM, NOISE, STARVED_BELOW
from fairlead.core.fairness.weights import WEIGHT_DEFAULT, WEIGHT_MIN
from fairlead.pipeline.schemas_fairness import FAIRNESS, FAIRNESS_KEYS, FAIRNESS_LEVELS
from fairlead.pipeline.stages.traffic import (
    TASK_QUEUE,
    WINDOW_S,
    of_task_queues,
    percentiles_s,
    window_us_of,
    with_waits,
    with_window,
)

CARRIED_WINDOWS_MAX = 60
# Minimum number of tasks that a key must miss over all windows of a flood to count as its victim. By chance, a key
# misses as many once in 1,000 times: a key with a fair share of two tasks per minute sometimes gets none in a minute.
MISSED_MIN = 7.0
STARVED_KEYS_SHOWN = 20

_BY_WINDOW = (*TASK_QUEUE, "window_us")
_ROWS = "array<struct<window_us: long, backlog_before: long, added: long, dispatched: long>>"
_KEY = (*TASK_QUEUE, "fairness_key")


def key_fairness(tasks: DataFrame, *, window_s: float = WINDOW_S) -> DataFrame:
    """Return one row for each task queue, window and key with demand."""
    return fairness_of(key_levels(tasks, window_s=window_s), tasks, window_s=window_s)


def key_levels(tasks: DataFrame, *, window_s: float = WINDOW_S, before: DataFrame | None = None) -> DataFrame:
    """Return the tasks and the backlog of each key and window with a record.

    `before` has such rows from before the records, with which the backlogs begin: the rows of `CARRIED_WINDOWS_MAX` + 1
    windows are enough. A row without a key says that the task queue reported an empty backlog.
    """
    named = _named(tasks, window_s)
    flows, empty = _key_flows(named), _reported_empty(named)
    if before is not None:
        flows = flows.unionByName(_seeds(before))
        empty = empty.unionByName(before.where("is_empty").select(*_BY_WINDOW, "is_empty"))
    levels = _with_levels(flows, reported_empty=empty, window_us=window_us_of(window_s))
    marks = empty.where("is_empty").select(*_BY_WINDOW, "is_empty")
    return levels.select(*FAIRNESS_LEVELS.names[:-1]).unionByName(marks, allowMissingColumns=True)


def fairness_of(levels: DataFrame, tasks: DataFrame, *, window_s: float = WINDOW_S) -> DataFrame:
    """Return the rows of `key_fairness` from the levels of these records."""
    keys = (
        levels.where(F.col("fairness_key").isNotNull())
        .transform(_with_waiting, window_us=window_us_of(window_s))
        .transform(_with_due)
        .transform(_with_verdicts)
    )
    waited = with_waits(keys, _named(tasks, window_s), (*_BY_WINDOW, "fairness_key"))
    return waited.select(*keys.columns, *percentiles_s(F.col("waits_us"))).select(*FAIRNESS_KEYS.names)


def _named(tasks: DataFrame, window_s: float) -> DataFrame:
    named = with_window(of_task_queues(tasks), window_s)
    return named.withColumn("fairness_key", F.coalesce("fairness_key", F.lit("")))


def _seeds(before: DataFrame) -> DataFrame:
    """Return the last backlog of each key as added tasks of its last window."""
    last = F.max_by(F.struct("left", "weight"), "window_us").alias("last")
    its = before.where(F.col("fairness_key").isNotNull()).groupBy(*_KEY)
    return (
        its.agg(last, F.max("window_us").alias("window_us"))
        .where(F.col("last.left") > 0)
        .select(
            *_BY_WINDOW,
            "fairness_key",
            F.col("last.left").alias("added"),
            F.lit(0).cast("long").alias("dispatched"),
            F.col("last.weight").alias("weight"),
        )
    )


def window_fairness(keys: DataFrame) -> DataFrame:
    """Return one row for each task queue and window, from the rows of its keys."""
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
        F.slice(worst["fairness_key"], 1, STARVED_KEYS_SHOWN).alias("starved_keys"),
        F.max_by("fairness_key", most).alias("flood_key"),
        F.max(F.when(F.col("is_flood"), beyond)).alias("flood_tasks"),
        F.max_by("added", most).alias("flood_added"),
    )
    return rows.select(*FAIRNESS.names)


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


def _reported_empty(named: DataFrame) -> DataFrame:
    """Return the windows with backlog reports, and whether all their partitions last reported an empty backlog."""
    return (
        named.where(F.col("kind") == "backlog")
        .groupBy(*_BY_WINDOW, "partition")
        .agg(F.max_by("tasks", "time_us").alias("tasks"))
        .groupBy(*_BY_WINDOW)
        .agg((F.sum("tasks") == 0).alias("is_empty"))
    )


def _with_levels(flows: DataFrame, *, reported_empty: DataFrame, window_us: int) -> DataFrame:
    """Add each key's backlog at the start and at the end of the window, and the end of the time that it waited."""
    begun = Window.partitionBy(*_KEY, "era", "silences").orderBy("window_us")
    its = Window.partitionBy(*_KEY).orderBy("window_us")
    was_silent = F.col("window_us") - F.lag("window_us").over(its) > (CARRIED_WINDOWS_MAX + 1) * window_us
    so_far = begun.rowsBetween(Window.unboundedPreceding, 0)
    # Tasks from before the first record make the sum negative: from then on, count from its lowest value.
    level = F.col("level") - F.least(F.lit(0), F.min("level").over(so_far))
    end_us = F.least(
        F.coalesce(F.lead("window_us").over(its), F.col("last_us") + window_us),
        F.col("empty_us") + window_us,
        F.col("window_us") + (CARRIED_WINDOWS_MAX + 1) * window_us,
    )
    return (
        flows.join(_eras(flows, reported_empty), on=list(_BY_WINDOW), how="inner")
        .withColumn("was_silent", was_silent)
        .withColumn("silences", F.count_if("was_silent").over(its.rowsBetween(Window.unboundedPreceding, 0)))
        .withColumn("level", F.sum(F.col("added") - F.col("dispatched")).over(so_far))
        .withColumn("left", level)
        .withColumn("backlog_before", F.coalesce(F.lag("left").over(begun), F.lit(0).cast("long")))
        .withColumn("end_us", end_us)
    )


def _with_waiting(levels: DataFrame, *, window_us: int) -> DataFrame:
    """Add rows for the windows in which a key only waited."""
    waited_us = F.when(
        (F.col("left") > 0) & (F.col("end_us") > F.col("window_us") + window_us),
        F.sequence(F.col("window_us") + window_us, F.col("end_us") - window_us, F.lit(window_us)),
    )
    reported = levels.withColumn("waited_us", waited_us)
    # One projection: a union of two queries would compute all rows twice.
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
    return reported.select(*TASK_QUEUE, "fairness_key", "weight", rows).select(
        *TASK_QUEUE, "fairness_key", "weight", "row.*"
    )


def _eras(flows: DataFrame, reported_empty: DataFrame) -> DataFrame:
    """Return, for each window of a task queue: how often the queue was empty before it, when it is next empty, and the
    last window.
    """
    its = Window.partitionBy(*TASK_QUEUE).orderBy("window_us")
    # Sorted backwards: for a frame that ends with the last row, Spark would compute the sum again for each row.
    backwards = Window.partitionBy(*TASK_QUEUE).orderBy(F.desc("window_us"))
    empty_us = F.when(F.col("is_empty"), F.col("window_us"))
    marks = flows.select(*_BY_WINDOW, F.expr("false").alias("is_empty")).unionByName(reported_empty)
    return (
        marks.groupBy(*_BY_WINDOW)
        .agg(F.max("is_empty").alias("is_empty"))
        .select(
            *_BY_WINDOW,
            F.count_if("is_empty").over(its.rowsBetween(Window.unboundedPreceding, -1)).alias("era"),
            F.min(empty_us).over(backwards.rowsBetween(Window.unboundedPreceding, 0)).alias("empty_us"),
            F.max("window_us").over(Window.partitionBy(*TASK_QUEUE)).alias("last_us"),
        )
    )


def _with_due(flows: DataFrame) -> DataFrame:
    """Divide the dispatches by weight: keys are sorted by the point at which they would be satisfied."""
    everything = Window.partitionBy(*_BY_WINDOW)
    turn = F.col("demand") / F.col("weight")
    before = everything.orderBy(turn, "fairness_key").rowsBetween(Window.unboundedPreceding, -1)
    backwards = everything.orderBy(F.desc(turn), F.desc("fairness_key"))
    onward = backwards.rowsBetween(Window.unboundedPreceding, 0)
    # The dispatches needed to satisfy this key: all earlier keys get their demand, and all later ones as much per
    # weight as this key.
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
        # Sums of weights are rounded: a key that is satisfied exactly must not fail because of that.
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
