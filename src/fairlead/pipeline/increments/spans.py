"""The windows of each task queue whose fairness new records can change.

A key keeps its backlog from window to window, so a new record changes the windows after it, up to the next window
in which the task queue reported an empty backlog: there, all backlogs begin again. It also changes the windows since
the last one with a record, in which keys may have waited.
"""

from collections.abc import Sequence

import duckdb
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.core.partitions import STICKY
from fairlead.pipeline.increments.changes import NewBatch, view_of
from fairlead.pipeline.increments.selection import day_of
from fairlead.pipeline.increments.touched import Spans
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import MEMORY_MAX, literal_paths
from fairlead.pipeline.stages.traffic import TASK_QUEUE

# Later than any record, in µs since the epoch.
NEVER_US = 1 << 60
_QUEUE = ", ".join(TASK_QUEUE)


def touched_spans(lake: Lake, batches: Sequence[NewBatch], levels: str, *, window_us: int) -> Spans:
    """Return the windows of each task queue that the records of new batches can change.

    `levels` is the table with the backlogs of the last run.
    """
    with duckdb.connect(config={"memory_limit": MEMORY_MAX}) as database:
        view_of(database, batches, "records")
        files = sorted(lake.written(levels).glob("*.parquet"))
        if files:
            rows = database.read_parquet(literal_paths(files), hive_partitioning=False, union_by_name=True)
            rows.create_view("levels")
        else:
            database.execute(
                f"CREATE VIEW levels AS SELECT {_QUEUE}, 0 AS window_us, false AS is_empty FROM records WHERE false"  # noqa: S608 - our own names
            )
        query = f"""
            WITH touched AS (
                SELECT {_QUEUE}, min(time_us - time_us % $window_us) AS first_us,
                       max(time_us - time_us % $window_us) AS last_us
                FROM records WHERE kind IN ('added', 'matched', 'backlog') AND task_list <> $sticky GROUP BY ALL
            ), known AS (
                SELECT {_QUEUE}, max(window_us) + $window_us AS known_us
                FROM levels SEMI JOIN touched USING ({_QUEUE}) GROUP BY ALL
            ), empty AS (
                SELECT {_QUEUE}, min(window_us) + $window_us AS end_us
                FROM levels JOIN touched USING ({_QUEUE})
                WHERE is_empty AND window_us > last_us GROUP BY ALL
            )
            SELECT {_QUEUE}, CAST(least(first_us, coalesce(known_us, first_us)) AS BIGINT) AS span_first_us,
                   CAST(coalesce(end_us, $never_us) AS BIGINT) AS span_end_us
            FROM touched LEFT JOIN known USING ({_QUEUE}) LEFT JOIN empty USING ({_QUEUE})
        """  # noqa: S608 - our own names
        values = {"window_us": window_us, "sticky": STICKY, "never_us": NEVER_US}
        return Spans(TASK_QUEUE, database.sql(query, params=values).to_arrow_table())


def of_spans(rows: DataFrame, spans: Spans, *, time: str, is_journal: bool = False) -> DataFrame:
    """Return the rows of the task queues within their spans; `is_journal` if they have a day to find files by."""
    firsts = spans.keys["span_first_us"].to_pylist()
    if not firsts:
        return rows.where("false")
    rows = rows.where(F.col(time) >= min(firsts))
    if is_journal:
        rows = rows.where(F.col("day") >= day_of(min(firsts)))
    its = F.broadcast(rows.sparkSession.createDataFrame(spans.keys))
    joined = rows.join(its, list(spans.key), "inner")
    return joined.where((F.col(time) >= F.col("span_first_us")) & (F.col(time) < F.col("span_end_us"))).select(
        *rows.columns
    )


def in_spans(rows: DataFrame, spans: Spans | None) -> DataFrame:
    """Return the rows whose windows are in the spans; all rows without spans."""
    return rows if spans is None else of_spans(rows, spans, time=spans.column)


def before_spans(levels: DataFrame, spans: Spans, *, span_us: int) -> DataFrame:
    """Return the rows of the task queues for the last `span_us` before their spans."""
    firsts = spans.keys["span_first_us"].to_pylist()
    if not firsts:
        return levels.where("false")
    rows = levels.where(F.col("window_us") >= min(firsts) - span_us)
    its = F.broadcast(rows.sparkSession.createDataFrame(spans.keys))
    window_us, first_us = F.col("window_us"), F.col("span_first_us")
    joined = rows.join(its, list(spans.key), "inner")
    return joined.where((window_us < first_us) & (window_us >= first_us - span_us)).select(*levels.columns)
