"""Selects the rows of journal and derived tables from which touched rows are computed."""

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.increments.touched import HOUR_US, Hours
from fairlead.pipeline.stages.traffic import window_us_of

# Maximum number of time ranges in a query, by which Spark skips files. More are joined to one.
RANGES_MAX = 50


def of_hours(tasks: DataFrame, touched: Hours | None, *, window_s: float) -> DataFrame:
    """Return the records whose windows begin in the touched hours; all records if `touched` is None."""
    if touched is None:
        return tasks
    length_us = window_us_of(window_s)
    begin_us = F.col("time_us") - F.pmod("time_us", F.lit(length_us))
    near = [
        (F.col("time_us") >= first_us)
        & (F.col("time_us") < end_us + length_us)
        # A range of days lets Spark skip folders.
        & (F.col("day") >= day_of(first_us))
        & (F.col("day") <= day_of(end_us + length_us))
        for first_us, end_us in ranges(touched.hours)
    ]
    return tasks.where(_any(near)).where(_hour(begin_us).isin(*touched.hours))


def in_hours(
    rows: DataFrame, touched: Hours | None, *, times: Sequence[str] = ("window_us",), window_s: float | None = None
) -> DataFrame:
    """Return the rows with a time whose window begins in the touched hours; all rows if `touched` is None.

    Without `window_s`, the times are beginnings of windows.
    """
    if touched is None:
        return rows
    length_us = 0 if window_s is None else window_us_of(window_s)
    found = []
    for name in times:
        time = F.col(name)
        near = [(time >= first_us) & (time < end_us + length_us) for first_us, end_us in ranges(touched.hours)]
        begin_us = time - F.pmod(time, F.lit(length_us)) if length_us else time
        found.append(F.coalesce(_any(near) & _hour(begin_us).isin(*touched.hours), F.expr("false")))
    return rows.where(_any(found))


def ranges(hours: frozenset[int]) -> list[tuple[int, int]]:
    """Return the hours as time ranges in µs, joined where they meet; if they are too many, one range around all."""
    found: list[tuple[int, int]] = []
    for hour in sorted(hours):
        if found and found[-1][1] == hour:
            found[-1] = (found[-1][0], hour + HOUR_US)
        else:
            found.append((hour, hour + HOUR_US))
    return found if len(found) <= RANGES_MAX else [(found[0][0], found[-1][1])]


def of_keys(rows: DataFrame, keys: pa.Table, columns: tuple[str, ...]) -> DataFrame:
    """Return the rows with one of these combinations of values."""
    known = rows.sparkSession.createDataFrame(keys.select(list(columns)))
    return rows.join(F.broadcast(known), list(columns), "left_semi")


def _hour(time: Column) -> Column:
    return time - F.pmod(time, F.lit(HOUR_US))


def day_of(time_us: int) -> Column:
    """Return the UTC day of a time."""
    return F.to_date(F.timestamp_micros(F.lit(time_us)))


def _any(conditions: list[Column]) -> Column:
    return reduce(Column.__or__, conditions, F.expr("false"))
