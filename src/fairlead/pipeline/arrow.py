"""How much goes to an Arrow kernel at once, and how much of what it gives is kept in one piece."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

# Rows may differ in size by a factor of ten thousand: what goes to the kernel at once is bounded in bytes, too.
LIMITS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    # What is persisted is put together in memory first, so many rows at a time. With Spark's ten thousand it did not
    # fit at 50 million batches.
    "spark.sql.inMemoryColumnarStorage.batchSize": "500",
}


@contextmanager
def arrow_limits(spark: SparkSession) -> Iterator[None]:
    """Bound the batches of all kernels that are planned within the block."""
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
