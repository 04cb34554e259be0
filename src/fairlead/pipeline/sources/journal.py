"""The journal as a Spark source: a table or a stream of its segments, and the stage that reads them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, TimestampType

from fairlead.pipeline.paths import to_read
from fairlead.pipeline.schemas import LONG, RECORDS, REQUIRED, SOURCE, STRING, struct
from fairlead.pipeline.sources.decoder import read_rows
from fairlead.pipeline.sources.segments import Segment

SEGMENTS = struct(cluster=STRING, path=STRING)
# The columns of Spark's `binaryFile` format, which streams require exactly.
FILES = struct(path=STRING, modificationTime=TimestampType(), length=LONG, content=BinaryType())
SEGMENTS_PER_MICRO_BATCH_MAX = 256
# Time for which a stream remembers the segments that it has seen. It ignores segments older than that; the job `ingest`
# finds them.
STREAM_MEMORY = "30d"


def segments_at_rest(spark: SparkSession, segments: Sequence[Segment]) -> DataFrame:
    """Return these segments as a table, which Spark divides into as many tasks as it has cores."""
    return spark.createDataFrame([(segment.cluster, str(segment.path)) for segment in segments], SEGMENTS)


def segments_as_sealed(spark: SparkSession, journal: Path, kind: str) -> DataFrame:
    """Return a stream of the segments of a kind, of any schema: first all sealed ones, then each new one when it is
    sealed.
    """
    # Only the path column is selected, so Spark does not read the contents.
    files = (
        spark.readStream.format("binaryFile")
        .schema(FILES)
        .option("maxFilesPerTrigger", SEGMENTS_PER_MICRO_BATCH_MAX)
        .option("maxFileAge", STREAM_MEMORY)
        .load(f"{to_read(journal.absolute())}/*/{kind}.v*.*.jsonl.zst")
    )
    path = F.regexp_replace("path", "^file:/+", "/")
    return files.select(F.element_at(F.split(path, "/"), -2).alias("cluster"), path.alias("path"))


def rows_of(segments: DataFrame, kind: str) -> DataFrame:
    """Return the rows of segments. An unreadable segment has a row with `fault`; see `read_rows`."""
    return segments.mapInArrow(_reader(kind), SOURCE[kind])


def plain_name(name: str) -> str:
    """Undo the escaping that Spark applies to names in paths."""
    return unquote(name)


def _reader(kind: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    record, row, required = to_arrow_schema(RECORDS[kind]), to_arrow_schema(SOURCE[kind]), REQUIRED[kind]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for segment in batch.to_pylist():
                yield from read_rows(
                    Path(segment["path"]), cluster=segment["cluster"], record=record, required=required, row=row
                )

    return read
