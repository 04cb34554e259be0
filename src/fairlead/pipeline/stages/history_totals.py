"""Totals of all runs: waits, failures, traffic and actions, from the rows of runs, activities and workflow tasks."""

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from fairlead.core.partitions import TaskType
from fairlead.pipeline.schemas_histories import ACTIONS, FAILURES, HISTORY_TASKS, HISTORY_TRAFFIC, WAITS
from fairlead.pipeline.stages.percentiles import with_percentiles
from fairlead.pipeline.stages.traffic import window_us_of

# Maximum number of rows of `failures`, the most frequent ones, of example workflow ids in each, and of characters of a
# message's class.
FAILURES_MAX = 10_000
EXAMPLES_MAX = 5
CLASS_CHARACTERS_MAX = 200
# Patterns of the varying parts of a message, with their replacements; they mean the same in Python's `re`.
MESSAGE_PARTS = (
    ("[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<id>"),
    ("0x[0-9a-fA-F]+|[0-9a-fA-F]{16,}", "<id>"),
    ('"[^"]*"', "<text>"),
    ("[0-9]+", "<n>"),
)
TASK = ("cluster", "namespace_id", "task_list", "task_type")
_FAILURE = ("cluster", "namespace_id", "source", "type", "failure_type", "message_class")


def tasks(flattened: DataFrame, activities: DataFrame) -> DataFrame:
    """Return the workflow tasks and the activities of the runs without a problem, one row each."""
    known = flattened.where("problem is null").withColumn("task", F.explode("workflow_task_rows"))
    of_workflows = known.select(
        "cluster",
        "namespace_id",
        F.col("task.task_list").alias("task_list"),
        F.lit(int(TaskType.WORKFLOW)).alias("task_type"),
        F.col("workflow_type").alias("type"),
        *(F.col(f"task.{name}").alias(name) for name in ("build_id", "scheduled_us", "started_us")),
        F.when(F.col("task.started_us").isNotNull(), F.lit(1)).cast("long").alias("tries"),
    )
    of_activities = activities.select(
        "cluster",
        "namespace_id",
        "task_list",
        F.lit(int(TaskType.ACTIVITY)).alias("task_type"),
        F.col("activity_type").alias("type"),
        *("build_id", "scheduled_us", "started_us"),
        F.col("attempt").cast("long").alias("tries"),
    )
    return of_workflows.unionByName(of_activities).select(*HISTORY_TASKS.names)


def waits(rows: DataFrame, *, window_s: float) -> DataFrame:
    """Return the schedule-to-start waits by the window in which the tasks were scheduled.

    Retried activities are left out: no event has the time at which their last attempt was queued.
    """
    by = (*TASK, "type", "build_id", "window_us")
    known = rows.where((F.col("tries") == 1) & F.col("started_us").isNotNull()).select(
        *(name for name in by if name != "window_us"),
        _window_of("scheduled_us", window_s).alias("window_us"),
        ((F.col("started_us") - F.col("scheduled_us")) / 1e6).alias("wait_s"),
    )
    sums = known.groupBy(*by).agg(F.count("*").alias("tasks"))
    return with_percentiles(sums, known, by, ("wait_s",)).select(*WAITS.names)


def history_traffic(rows: DataFrame, *, window_s: float) -> DataFrame:
    """Return the tasks that were added and started in each window.

    An activity that was retried was added once for each attempt, but events have only the first time; `retries` are the
    other attempts, in the window in which the last one started.
    """
    zero, one = F.lit(0).cast("long"), F.lit(1).cast("long")
    added = rows.select(
        *TASK, _window_of("scheduled_us", window_s).alias("window_us"), one.alias("added"), zero.alias("started"),
        zero.alias("retries"),
    )  # fmt: skip
    started = rows.where(F.col("started_us").isNotNull()).select(
        *TASK, _window_of("started_us", window_s).alias("window_us"), zero.alias("added"), one.alias("started"),
        (F.coalesce("tries", one) - 1).alias("retries"),
    )  # fmt: skip
    sums = [F.sum(name).alias(name) for name in ("added", "started", "retries")]
    return added.unionByName(started).groupBy(*TASK, "window_us").agg(*sums).select(*HISTORY_TRAFFIC.names)


def failures(runs: DataFrame, activities: DataFrame) -> DataFrame:
    """Return the most frequent failures by type and class of message, with examples."""
    sources = (
        _failures_of(runs, "workflow", "workflow_type", "failure", "closed_us"),
        _failures_of(activities, "activity", "activity_type", "failure", "closed_us"),
        _failures_of(activities, "activity_retry", "activity_type", "retried_failure", "started_us"),
    )
    # By workflow first, so that no group holds more than its examples.
    by_workflow = (
        reduce(DataFrame.unionByName, sources)
        .groupBy(*_FAILURE, "workflow_id")
        .agg(F.count("*").alias("count"), F.min("at_us").alias("first_us"), F.max("at_us").alias("last_us"))
        .withColumn("place", F.row_number().over(Window.partitionBy(*_FAILURE).orderBy("workflow_id")))
    )
    examples = F.array_sort(F.collect_list(F.when(F.col("place") <= EXAMPLES_MAX, F.col("workflow_id"))))
    sums = by_workflow.groupBy(*_FAILURE).agg(
        F.sum("count").alias("count"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
        examples.alias("workflow_ids"),
    )
    return sums.orderBy(F.desc("count"), *_FAILURE).limit(FAILURES_MAX).select(*FAILURES.names)


def actions(flattened: DataFrame) -> DataFrame:
    """Return the billable actions of each namespace, day and kind."""
    known = flattened.where("problem is null").withColumn("one", F.explode("action_rows"))
    day = F.date_add(F.lit("1970-01-01").cast("date"), F.col("one.day")).alias("day")
    by = ("cluster", "namespace_id", "day", "kind")
    rows = known.select("cluster", "namespace_id", day, F.col("one.kind").alias("kind"), F.col("one.actions"))
    return rows.groupBy(*by).agg(F.sum("actions").alias("actions")).select(*ACTIONS.names)


def _failures_of(rows: DataFrame, source: str, kind: str, failure: str, time: str) -> DataFrame:
    message = F.coalesce(F.col(f"{failure}_message"), F.lit(""))
    return rows.where(F.col(f"{failure}_type").isNotNull()).select(
        *("cluster", "namespace_id", "workflow_id"),
        F.lit(source).alias("source"),
        F.col(kind).alias("type"),
        F.col(f"{failure}_type").alias("failure_type"),
        message_class(message).alias("message_class"),
        F.col(time).alias("at_us"),
    )


def message_class(message: Column) -> Column:
    """Return the message without its ids, numbers and quoted texts."""
    plain = reduce(lambda text, part: F.regexp_replace(text, part[0], part[1]), MESSAGE_PARTS, message)
    return F.substring(plain, 1, CLASS_CHARACTERS_MAX)


def _window_of(time: str, window_s: float) -> Column:
    return F.col(time) - F.pmod(F.col(time), F.lit(window_us_of(window_s)))
