"""Input of the page's sections: tables of the lake, reduced by Spark before rows come to this process."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from fairlead.pipeline.lake import Lake

# Maximum number of points of a curve; enough for the width of a phone.
POINTS_MAX = 160


@dataclass(frozen=True, slots=True)
class Tables:
    """The derived tables of a lake."""

    spark: SparkSession
    lake: Lake

    def have(self, *names: str) -> bool:
        """Whether all these tables have been written."""
        return all(self.lake.has(name) for name in names)

    def read(self, name: str) -> DataFrame:
        """Return the rows of a table, with names of namespaces instead of their ids."""
        rows = self.lake.read_derived(self.spark, name, with_names=True)
        if "namespace" not in rows.columns:
            return rows
        return rows.withColumn("namespace_id", F.coalesce("namespace", "namespace_id")).drop("namespace")


def first_rows(frame: DataFrame, count: int, *order: Column | str) -> list[Row]:
    """Return the first `count` rows in this order."""
    return frame.orderBy(*order).limit(count).collect()


def one_row(frame: DataFrame) -> Row:
    """Return the only row of an aggregate without groups."""
    row = frame.head()
    assert row is not None  # noqa: S101 - an aggregate without groups has one row
    return row


def same(row: Row, names: Sequence[str]) -> Column:
    """Return the condition that a row has the same values as this one in these columns."""
    return reduce(lambda left, right: left & right, (F.col(name).eqNullSafe(F.lit(row[name])) for name in names))


def thinned(frame: DataFrame, by: Sequence[str], time: str, **measures: Column) -> dict[tuple[Any, ...], list[Row]]:
    """Downsample each series to at most `POINTS_MAX` equal time steps; a series is one combination of the `by` columns.

    Each row has the beginning of its step as `at_us`. Callers bound the number of series.
    """
    span = one_row(frame.agg(F.min(time).alias("first"), F.max(time).alias("last")))
    if span["first"] is None:
        return {}
    step_us = (span["last"] - span["first"]) // POINTS_MAX + 1
    at_us = F.lit(span["first"]) + F.floor((F.col(time) - span["first"]) / step_us) * step_us
    named = [measure.alias(name) for name, measure in measures.items()]
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in frame.groupBy(*by, at_us.cast("long").alias("at_us")).agg(*named).orderBy("at_us").collect():
        found.setdefault(tuple(row[name] for name in by), []).append(row)
    return found


def among(rows: Sequence[Row], names: Sequence[str]) -> Column:
    """Return the condition that a row has the same values as any of these in these columns."""
    return reduce(lambda left, right: left | right, (same(row, names) for row in rows), F.lit(False))  # noqa: FBT003


def points(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    """Return the points of one measure of a series; missing values are left out."""
    return [(float(row["at_us"]), float(row[name])) for row in rows if row[name] is not None]


def moment(time_us: int) -> str:
    """Format a time, in UTC."""
    return datetime.fromtimestamp(time_us / 1e6, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")


def length(seconds: float) -> str:
    """Format a duration."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def place(row: Row | dict[str, Any]) -> str:
    """Format the name of a task queue."""
    kind = {1: "workflow tasks", 2: "activity tasks", 3: "Nexus tasks"}.get(row["task_type"], "tasks")
    return f"{row['task_list']} of {row['namespace_id']} ({kind}, {row['cluster']})"
