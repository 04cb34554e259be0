"""The files of a lake's table, and their copies at the place where the table is published.

A published file never changes: its name has the batch or the run that it comes from. So publishing is a comparison of
names: copy the files that are missing, then add and remove files in one commit of the published table. A kill between
the two leaves copies that the next run uses.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
from pyarrow import fs, parquet
from xxhash import xxh64_hexdigest

from fairlead.core.errors import FixRequest, RetryLater
from fairlead.pipeline.dictionary.comments import comments_of
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas import BRONZE

# Types of the columns that are folders of a table; all others are strings.
_DATES = frozenset({"day"})
# Characters of a name that no file system and no library escapes.
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class NoLibrary(FixRequest):
    """The library of the format is not installed."""


class CantPublish(FixRequest):
    """The place can't be used, or has a table that differs."""


class PublishedMeanwhile(RetryLater):
    """Another run publishes the lake, or has changed a published table at the same time."""


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A Parquet file of the lake; `name` is its path below the published table, unique for its content.

    `partition` has the values of the columns that are folders.
    """

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
        # Spark escapes values in the names of folders.
        partition = {key: unquote(value) for key, _, value in folders if key != "batch"}
        # The batch of a journal's file, or the run of a derived table's, makes the name unique. The digest keeps names
        # apart that differ only in characters that can't be in them.
        origin = next((value for key, _, value in folders if key == "batch"), root.name)
        folder = "".join(f"{key}={_UNSAFE.sub('_', value)}/" for key, value in partition.items())
        digest = xxh64_hexdigest(str(path.relative_to(root)).encode())
        metadata = parquet.read_metadata(path)
        name = f"{folder}{origin}-{digest}-{_UNSAFE.sub('_', path.name)}"
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


def location_of(place: str, table: str) -> str:
    """Return the address of a table in a folder or a bucket; a folder's is absolute."""
    if urlparse(place).scheme:
        return f"{place.rstrip('/')}/{table}"
    if "%" in place:
        raise CantPublish(f"{place} has a %, which libraries take for an escape: give another folder")
    return str(Path(place).absolute() / table)


def copy_files(location: str, files: list[LakeFile]) -> None:
    """Copy the files that the table's folder lacks. On the same disk a copy is a hard link, which takes no space."""
    where, base = opened(location)
    for file in files:
        path = f"{base}/{file.name}"
        if where.get_file_info(path).size == file.bytes:
            continue
        where.create_dir(path.rpartition("/")[0], recursive=True)
        if isinstance(where, fs.LocalFileSystem):
            _copy_locally(file.path, Path(path))
            continue
        with file.path.open("rb") as source, where.open_output_stream(path) as sink:
            while chunk := source.read(8 << 20):
                sink.write(chunk)


def opened(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a location, and the path in it."""
    parsed = urlparse(location)
    if parsed.scheme in ("", "file"):
        return fs.LocalFileSystem(), location.removeprefix("file://")
    try:
        where, base = fs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, ValueError) as wrong:
        raise CantPublish(
            f"{location} can't be used: {wrong}: give a folder, or a URL like s3://bucket/path"
        ) from wrong
    return where, base


def _copy_locally(source: Path, target: Path) -> None:
    """Put the file in place by one rename: a concurrent run sees all of it or nothing."""
    draft = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
    if not _linked(source, draft):
        shutil.copyfile(source, draft)
    draft.replace(target)


@contextmanager
def publishing(lake: Lake) -> Iterator[None]:
    """Let only one run publish this lake at a time."""
    with (lake.root / "_publish.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PublishedMeanwhile(f"{lake.root}: another run publishes this lake: wait until it ends") from None
        yield


def _linked(source: Path, target: Path) -> bool:
    """Whether the target is now a hard link; False on another file system."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True
