"""The files of a lake's table, and their copies at the place where the table is published.

A published file never changes: its name has the batch or the run that it comes from. So publishing is a comparison of
names: copy the files that are missing, then add and remove files in one commit of the published table. A kill between
the two leaves copies that the next run uses.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
from pyarrow import fs, parquet

from fairlead.core.errors import FixRequest
from fairlead.pipeline.dictionary.comments import comments_of
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas import BRONZE

# Types of the columns that are folders of a table; all others are strings.
_DATES = frozenset({"day"})


class NoLibrary(FixRequest):
    """The library of the format is not installed."""


class CantPublish(FixRequest):
    """The place can't be used, or has a table that differs."""


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A Parquet file of the lake; `name` is its path below the published table, unique for its content."""

    path: Path
    name: str
    partition: Mapping[str, str]
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Published:
    """The rows of a published table, and the files of its last commit; without files there was no commit."""

    table: str
    format: str
    location: str
    rows: int
    files_added: int
    files_removed: int


def files_of(lake: Lake, table: str) -> Iterator[LakeFile]:
    """Yield the files of one generation or one run of the table."""
    root = lake.table(table).resolve()
    for path in sorted(root.rglob("*.parquet")):
        folders = [part.partition("=") for part in path.relative_to(root).parts[:-1]]
        partition = {key: value for key, _, value in folders if key != "batch"}
        # The batch of a journal's file, or the run of a derived table's, makes the name unique.
        origin = next((value for key, _, value in folders if key == "batch"), root.name)
        folder = "".join(f"{key}={value}/" for key, value in partition.items())
        metadata = parquet.read_metadata(path)
        name = f"{folder}{origin}-{path.name}"
        yield LakeFile(path, name, partition, path.stat().st_size, int(metadata.num_rows))


def schema_of(table: str, files: list[LakeFile]) -> pa.Schema:
    """Return the columns of all files of the table, with the columns of its folders at the end, and comments."""
    found = pa.unify_schemas([parquet.read_schema(file.path).remove_metadata() for file in files])
    if table in BRONZE:
        # In the order of the contract, followed by columns of other releases.
        known = [name for name in BRONZE[table].names if name in found.names]
        found = pa.schema([found.field(name) for name in [*known, *(one for one in found.names if one not in known)]])
    comments = comments_of(table)
    fields = [*found, *(pa.field(name, pa.date32() if name in _DATES else pa.string()) for name in files[0].partition)]
    return pa.schema([_commented(field, comments.get(field.name, "")) for field in fields])


def _commented(field: pa.Field, comment: str) -> pa.Field:
    # Delta reads `comment`, Iceberg reads `doc`.
    return field.with_metadata({"comment": comment, "doc": comment} if comment else {})


def partition_value(name: str, text: str) -> str | date:
    """Return the value of a folder's name as the value of its column."""
    return date.fromisoformat(text) if name in _DATES else text


@dataclass(frozen=True, slots=True)
class Target:
    """A folder or a bucket to publish to: files are copied there before they are committed."""

    url: str

    def location(self, table: str) -> str:
        """Return the address of a table."""
        return f"{self.url.rstrip('/')}/{table}"

    def copy(self, table: str, files: list[LakeFile]) -> None:
        """Copy the files that are not there yet. On the same disk a copy is a hard link, which takes no space."""
        where, base = self._open()
        for file in files:
            path = f"{base}/{table}/{file.name}"
            if where.get_file_info(path).size == file.bytes:
                continue
            where.create_dir(path.rpartition("/")[0], recursive=True)
            if isinstance(where, fs.LocalFileSystem) and _linked(file.path, Path(path)):
                continue
            with file.path.open("rb") as source, where.open_output_stream(path) as sink:
                while chunk := source.read(8 << 20):
                    sink.write(chunk)

    def _open(self) -> tuple[fs.FileSystem, str]:
        if not urlparse(self.url).scheme:
            return fs.LocalFileSystem(), str(Path(self.url).absolute())
        try:
            where, base = fs.FileSystem.from_uri(self.url)
        except (pa.ArrowInvalid, ValueError) as wrong:
            raise CantPublish(
                f"{self.url} can't be used: {wrong}: give a folder, or a URL like s3://bucket/path"
            ) from wrong
        return where, base.rstrip("/")


def _linked(source: Path, target: Path) -> bool:
    """Whether the target is now a hard link; False on another file system."""
    draft = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
    try:
        os.link(source, draft)
    except OSError:
        return False
    draft.replace(target)
    return True
