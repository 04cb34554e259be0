"""All tables use the same definition of percentiles, however it is computed."""

from random import Random

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fairlead.pipeline.stages import percentiles

VALUES = {
    "one": [7.0],
    "two": [1.0, 2.0],
    "ties": [3.0] * 40 + [9.0] * 2,
    "many": [Random(4).expovariate(0.1) for _ in range(1_000)],
}


@pytest.mark.parametrize("share", percentiles.PERCENTILES)
def test_both_implementations_give_numpys_percentiles(spark: SparkSession, share: float) -> None:
    rows = spark.createDataFrame(
        [(name, value) for name, values in VALUES.items() for value in [*values, None]] + [(None, 5.0), ("none", None)],
        "name string, wait_s double",
    )
    sums = rows.groupBy("name").agg(F.count("*").alias("rows"))
    sorted_in_memory = rows.groupBy("name").agg(F.sort_array(F.collect_list("wait_s")).alias("ordered"))
    found = percentiles.percentiles_of(F.col("ordered"), [share])
    arrays = {row["name"]: row["found"] for row in sorted_in_memory.select("name", found.alias("found")).collect()}
    column = percentiles.column_name("wait_s", share)
    joined = percentiles.with_percentiles(sums, rows, ["name"], ["wait_s"], [share])
    ranked = {row["name"]: row[column] for row in joined.collect()}
    assert (arrays["none"], ranked["none"]) == (None, None)
    assert (arrays[None], ranked[None]) == ([5.0], 5.0)
    for name, values in VALUES.items():
        expected = float(np.percentile(values, share * 100))
        assert arrays[name] == [pytest.approx(expected)]
        assert ranked[name] == pytest.approx(expected)
