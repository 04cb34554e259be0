"""Percentiles, by one definition in every table: linear interpolation between the two closest ranks.

The percentile `p` of `n` values in ascending order is at position `(n - 1) * p`, counted from 0. Between two positions
it is the weighted mean of both neighbours. Spark's `percentile`, DuckDB's `quantile_cont` and numpy's default agree.
Values that are null don't count; without any value the percentile is null. All percentiles are exact.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

PERCENTILES = (0.5, 0.95, 0.99)


def column_name(name: str, share: float) -> str:
    """The name of a percentile's column, like `wait_s_p95`."""
    return f"{name}_p{share * 100:g}"


def percentiles_of(ordered: Column, shares: Sequence[float] = PERCENTILES) -> Column:
    """Return the percentiles of a sorted array without nulls, as an array; null if it is empty.

    For groups whose values fit into the memory of one worker.
    """

    def at(share: Column) -> Column:
        position, below, above = _position(F.size(ordered), share)
        between = (above - position) * F.get(ordered, below) + (position - below) * F.get(ordered, above)
        return F.when(below == above, F.get(ordered, below).cast("double")).otherwise(between)

    # Not F.transform: Spark compiles no lambda functions.
    return F.when(F.size(ordered) > 0, F.array(*(at(F.lit(share)) for share in shares)))


def with_percentiles(
    sums: DataFrame, rows: DataFrame, by: Sequence[str], names: Sequence[str], shares: Sequence[float] = PERCENTILES
) -> DataFrame:
    """Add the percentiles of these columns of `rows` to each group of `sums`.

    For groups of any size: Spark sorts them, on disk if necessary. The columns are put below each other, so that Spark
    plans one sort and one join for all of them.
    """
    measures = [
        F.struct(F.lit(number).alias("measure"), F.col(name).cast("double").alias("value"))
        for number, name in enumerate(names)
    ]
    group = Window.partitionBy(*by, "measure")
    ranked = (
        rows.select(*by, F.inline(F.array(*measures)))
        .where(F.col("value").isNotNull())
        .withColumns({"place": F.row_number().over(group.orderBy("value")) - 1, "count": F.count("*").over(group)})
    )
    weights = {share: F.col("value") * _weight(F.col("place"), F.col("count"), share) for share in shares}
    found = [
        F.sum(F.when(F.col("measure") == number, weight)).alias(column_name(name, share))
        for number, name in enumerate(names)
        for share, weight in weights.items()
    ]
    return _join(sums, ranked.groupBy(*by).agg(*found), by)


def _weight(place: Column, count: Column, share: float) -> Column:
    """Return the weight of the value at this position in the percentile; null if it does not count."""
    position, below, above = _position(count, F.lit(share))
    is_exact = below == above
    return (
        F.when(is_exact & (place == below), F.lit(1.0))
        .when(~is_exact & (place == below), above - position)
        .when(~is_exact & (place == above), position - below)
    )


def _position(count: Column, share: Column) -> tuple[Column, Column, Column]:
    position = (count - 1) * share
    return position, F.floor(position), F.ceil(position)


def _join(sums: DataFrame, found: DataFrame, by: Sequence[str]) -> DataFrame:
    # Columns of a group may be null.
    joined = sums.join(found, on=[sums[name].eqNullSafe(found[name]) for name in by], how="left")
    new = [name for name in found.columns if name not in by]
    return joined.select(*(sums[name] for name in sums.columns), *(found[name] for name in new))
