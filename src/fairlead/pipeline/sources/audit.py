"""The audit of the journal as a Spark table: who called what, and whether it was allowed.

from fairlead.pipeline.sources.audit import audit_table

audit_table(spark, Path("journal")).where("NOT is_allowed").groupBy("principal", "method").count().show()
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.journal import Kind
from fairlead.pipeline.sources.journal import rows_of, segments_at_rest
from fairlead.pipeline.sources.segments import find_sealed


def audit_table(spark: SparkSession, journal: Path) -> DataFrame:
    """Return the records of all sealed audit segments, with their cluster and `time`.

    An unreadable segment has one row, with the reason in `fault`.
    """
    segments = [segment for segment in find_sealed(journal) if segment.kind == Kind.AUDIT]
    rows = segments_at_rest(spark, segments).transform(rows_of, str(Kind.AUDIT))
    return rows.withColumn("time", F.timestamp_micros("time_us"))
