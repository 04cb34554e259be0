"""Temporal Cloud's history exports as a Spark source: files of `temporal.api.export.v1.WorkflowExecutions`.

    <bucket>/temporal-workflow-history/export/<namespace>/<year>/<month>/<day>/<hour>/<minute>/<file>

Any folder of the bucket can be given. The namespace is the name of the folder above the year, or of the file's own
folder if the path has no year. A file's name in the lake is its path from the folder above the year on, or from the
given folder on if the path has no year.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import xxhash
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from fairlead.core.errors import FixRequest
from fairlead.pipeline.schemas import SOURCE, STRING, struct
from fairlead.pipeline.sources.cloud_decoder import read_export
from fairlead.pipeline.sources.segments import Segment

CLOUD_CLUSTER = "cloud"
FILES = struct(cluster=STRING, name=STRING, namespace=STRING, path=STRING)
NAME_CHARACTERS_MAX = 150

# A year, followed by one to four levels of month, day, hour and minute.
_DATED = re.compile(r"(?:.*/)?(?P<namespace>[^/]+)/\d{4}(?:/\d{2}){1,4}/[^/]+")


class NoExports(FixRequest):
    """The folder of exports has no files."""


def find_exports(folder: Path, *, cluster: str) -> list[Segment]:
    """Return all files below a folder, with any names: Temporal Cloud's files have no suffix."""
    root = folder.absolute()
    files = sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
    if not files:
        raise NoExports(f"{folder}: there is no file in this folder: copy the exports of Temporal Cloud to it")
    return [Segment(cluster, file_name(path, root), path, path.stat().st_size) for path in files]


def namespace_of(path: Path) -> str:
    """Return the namespace of the histories in the file."""
    found = _DATED.fullmatch(path.as_posix())
    return found["namespace"] if found else path.parent.name


def file_name(path: Path, root: Path) -> str:
    """Return the name of a file below `root` in the lake; a digest replaces the start of a name that is too long."""
    parts = path.parts
    place = len(root.parts) - 1
    if found := _DATED.fullmatch(path.as_posix()):
        place = len(parts) - 1 - parts[::-1].index(found["namespace"])
    name = "!".join(parts[place:])
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    return f"{xxhash.xxh64_hexdigest(name.encode())}!{name[-NAME_CHARACTERS_MAX:]}"


def exported_histories(spark: SparkSession, files: Sequence[Segment]) -> DataFrame:
    """Return the histories of these files as rows of the journal's kind `history`."""
    rows = [(file.cluster, file.name, namespace_of(file.path), str(file.path)) for file in files]
    return spark.createDataFrame(rows, FILES).mapInArrow(_read, SOURCE["history"])


def _read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(SOURCE["history"])
    for batch in batches:
        for file in batch.to_pylist():
            yield from read_export(
                Path(file["path"]),
                name=file["name"],
                cluster=file["cluster"],
                namespace=file["namespace"],
                schema=schema,
            )
