"""The journal as a source of Spark: a table of its segments, at rest or as a stream, and the stage that reads them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, TimestampType

from fairlead.journal import SCHEMA_VERSION
from fairlead.pipeline.paths import to_read
from fairlead.pipeline.schemas import LONG, RECORDS, REQUIRED, SOURCE, STRING, struct
from fairlead.pipeline.sources.decoding import read_rows
from fairlead.pipeline.sources.segments import Segment

SEGMENTS = struct(cluster=STRING, path=STRING)
# What Spark knows of a file; it insists on this schema for streams.
FILES = struct(path=STRING, modificationTime=TimestampType(), length=LONG, content=BinaryType())
SEGMENTS_PER_MICRO_BATCH_MAX = 256
# For so long a stream knows which segments it has seen. One that comes later still is found by the job `ingest`.
STREAM_MEMORY = "30d"


def segments_at_rest(spark: SparkSession, segments: Sequence[Segment]) -> DataFrame:
    """These segments as a table, which Spark cuts into as many tasks as it has cores."""
    return spark.createDataFrame([(segment.cluster, str(segment.path)) for segment in segments], SEGMENTS)


def segments_as_sealed(spark: SparkSession, journal: Path, kind: str) -> DataFrame:
    """The segments of a kind as a stream: those that are there, then each when it is sealed."""
    # Only names are asked of this format, and so no content is read.
    files = (
        spark.readStream.format("binaryFile")
        .schema(FILES)
        .option("maxFilesPerTrigger", SEGMENTS_PER_MICRO_BATCH_MAX)
        .option("maxFileAge", STREAM_MEMORY)
        .load(f"{to_read(journal.absolute())}/*/{kind}.v{SCHEMA_VERSION}.*.jsonl.zst")
    )
    path = F.regexp_replace("path", "^file:/+", "/")
    return files.select(F.element_at(F.split(path, "/"), -2).alias("cluster"), path.alias("path"))


def rows_of(segments: DataFrame, kind: str) -> DataFrame:
    """The rows of segments, batch by batch of Arrow. One that can't be read has a row with `fault`; see `read_rows`."""
    return segments.mapInArrow(_reader(kind), SOURCE[kind])


def plain_name(name: str) -> str:
    """A name as it was before Spark made a part of a path of it."""
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
