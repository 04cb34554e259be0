"""Limits of the batches that kernels get, of the rows that Spark caches, and of the groups that it holds in memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

# Row sizes differ by a factor of 10,000, so batches are bounded in bytes as well as in rows.
LIMITS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    # Rows that Spark assembles in memory at a time when it persists a table. Spark's default of 10,000 ran out of
    # memory at 50 million history batches.
    "spark.sql.inMemoryColumnarStorage.batchSize": "500",
}


# Groups for which a Spark task collects lists in memory. Spark's default is 128: with more groups it sorts all rows,
# which takes half of the time. A list has all waits of a partition in a window, so the number must stay small.
GROUPS_IN_MEMORY_MAX = 2_000


@contextmanager
def arrow_limits(spark: SparkSession) -> Iterator[None]:
    """Apply the limits to all kernels that are planned within the block."""
    with _settings(spark, LIMITS):
        yield


@contextmanager
def groups_in_memory(spark: SparkSession) -> Iterator[None]:
    """Collect the lists of many small groups without sorting the rows first, in queries that run within the block."""
    name = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"
    with _settings(spark, {name: str(GROUPS_IN_MEMORY_MAX)}):
        yield


@contextmanager
def _settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
