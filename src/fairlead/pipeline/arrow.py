"""Limits of the Arrow batches that kernels get, and of the row batches that Spark caches."""

from collections.abc import Iterator
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


@contextmanager
def arrow_limits(spark: SparkSession) -> Iterator[None]:
    """Apply the limits to all kernels that are planned within the block."""
    before = {name: spark.conf.get(name, None) for name in LIMITS}
    for name, value in LIMITS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
