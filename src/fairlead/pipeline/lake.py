"""The lake: a folder of Parquet tables in which a reader, of whatever engine, sees exactly what was committed.

    <lake>/_lake.json                      what this folder is, and the version of its layout
    <lake>/task/_schema.json               the columns of the table
    <lake>/task/batch=<n>/_batch.json      the segments of the batch
    <lake>/task/batch=<n>/cluster=<c>/day=<d>/*.parquet
    <lake>/traffic -> _runs/traffic/<run>  a derived table, written whole by each run
    <lake>/_quarantine/<cluster>/<segment>.json
    <lake>/_staging/                       what is being written; nobody reads it

A batch is written in the staging folder and comes to its table by one rename, which is the commit: there is no moment
at which a part of it can be seen, and after a kill there is nothing to undo but to empty the staging folder. A run of a
derived table is put in place by the swap of one link. All of it needs a file system with an atomic rename that every
worker sees under the same path: a local disk, or NFS.
"""

import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

from pyarrow import parquet
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fairlead.core.errors import FixRequest, GiveUp, RetryLater
from fairlead.journal.segments import sync_path
from fairlead.pipeline.paths import to_read
from fairlead.pipeline.schemas import BRONZE, differences

LAYOUT = 1
# What a killed run of a derived table has left is removed when no run can be that old.
STAGED_AGE_S_MAX = 86_400.0
RUNS_KEPT = 2  # The one in place, and the one that a reader may still have open.
LOCK_WAIT_S_MAX = 10.0
NAMESPACES_TOLD = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class NotALake(FixRequest):
    """The folder is no lake, or one of another layout or schema."""


class NoSuchNamespace(FixRequest):
    """The lake has nothing of the namespace that was asked for."""


class NoSuchTable(FixRequest):
    """The table was not written yet."""


class LakeIsBusy(RetryLater):
    """Another process writes to the lake."""


class BrokenLake(GiveUp):
    """The lake contradicts itself."""


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment of a batch or of the quarantine: `digest` is XXH64 of its bytes as they are on disk."""

    cluster: str
    name: str
    bytes: int
    digest: str
    rows: int


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A segment that can't be read: none of its rows are in a table. `rows` is how many came before the damage."""

    entry: SegmentEntry
    reason: str


class Lake:
    """The tables in one folder. Reading needs no lock; writing to the tables of the journal needs `locked()`."""

    def __init__(self, root: Path) -> None:
        """The lake in that folder, which is checked, and made when first written to."""
        self.root = root.absolute()
        # The numbers of the next batches, as long as nobody else writes.
        self._next: dict[str, int] = {}
        self._check()

    def __repr__(self) -> str:
        return f"Lake({str(self.root)!r})"

    # What is read.

    def read(
        self,
        spark: SparkSession,
        table: str,
        *,
        since: int | None = None,
        until: int | None = None,
        namespace: str | None = None,
    ) -> DataFrame:
        """The committed rows of a table of the journal, at or after `since` and before `until` (µs of the epoch).

        Of a table that nothing was written to yet there are no rows: a cluster need not journal everything.
        """
        schema = BRONZE[table]
        self.check_there()
        self._check_schema(table, schema)
        if not any(self.table(table).glob("batch=*")):
            return spark.createDataFrame([], schema)
        # The names of columns come first: the batch is in the path alone, and nobody's business.
        rows = spark.read.schema(schema).parquet(to_read(self.table(table))).select(*schema.names)
        if since is not None:
            rows = rows.where((F.col("day") >= F.lit(_day(since))) & (F.col("time_us") >= since))
        if until is not None:
            rows = rows.where((F.col("day") <= F.lit(_day(until))) & (F.col("time_us") < until))
        if namespace is not None:
            rows = rows.where(_namespace() == namespace)
        return rows

    def read_derived(self, spark: SparkSession, table: str) -> DataFrame:
        """The rows of a derived table as its last complete run wrote them."""
        link = self.table(table)
        if not link.is_symlink():
            raise NoSuchTable(f"{self.root}: there is no table {table!r} in this lake: run its job first")
        # The run itself, not the link: a reader stays with the run that it began with.
        return spark.read.parquet(to_read(link.resolve()))

    def has(self, table: str) -> bool:
        """Whether the table has been written at least once."""
        return self.table(table).is_symlink() or any(self.table(table).glob("batch=*"))

    def table(self, table: str) -> Path:
        """The folder of a table; a link, if the table is derived."""
        if not PLAIN_NAME.fullmatch(table):
            raise ValueError(f"{table!r} can't be the name of a table")
        return self.root / table

    def segments(self, table: str) -> Iterator[SegmentEntry]:
        """The segments whose rows are in the table."""
        for manifest in sorted(self.table(table).glob("batch=*/_batch.json")):
            for entry in _read_json(manifest)["segments"]:
                yield SegmentEntry(**entry)

    def quarantined(self) -> Iterator[Quarantined]:
        """The segments that could not be read."""
        for file in sorted(self.root.glob("_quarantine/*/*.json")):
            plain = _read_json(file)
            yield Quarantined(SegmentEntry(**plain["entry"]), plain["reason"])

    # What is written.

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The right to write the tables of the journal. It ends with the process, however that ends."""
        self._make()
        with (self.root / "_lock").open("w") as file:
            deadline_s = time.monotonic() + LOCK_WAIT_S_MAX
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline_s:
                        raise LakeIsBusy(f"{self.root}: another ingest or stream writes to this lake: wait") from None
                    time.sleep(0.1)
            # Whatever is here was left by a process that was killed.
            shutil.rmtree(self.root / "_staging" / "batches", ignore_errors=True)
            self._next.clear()
            yield

    def stage(self, table: str) -> Path:
        """A new folder to write a batch of the table into; to be called with the lock."""
        folder = self.root / "_staging" / "batches" / f"{table}-{os.urandom(8).hex()}"
        folder.mkdir(parents=True)
        return folder

    def commit(self, table: str, staged: Path, segments: Sequence[SegmentEntry]) -> str:
        """Make a staged folder of `cluster=<c>/day=<d>/*.parquet` a batch of the table, in one step; with the lock."""
        folder = self._make_table(table, BRONZE[table])
        if table not in self._next:
            numbers = [int(batch.name.removeprefix("batch=")) for batch in folder.glob("batch=*")]
            self._next[table] = max(numbers, default=-1) + 1
        batch = f"{self._next[table]:012d}"
        _write_json(staged / "_batch.json", {"batch": batch, "segments": [asdict(entry) for entry in segments]})
        _sync_tree(staged)
        staged.rename(folder / f"batch={batch}")
        self._next[table] += 1
        sync_path(folder)
        return batch

    def quarantine(self, found: Quarantined) -> None:
        """Remember that a segment can't be read; it stays where it is."""
        folder = self.root / "_quarantine" / found.entry.cluster
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / f"{found.entry.name}.json", asdict(found))

    def forgive(self, entry: SegmentEntry) -> None:
        """Take a segment out of the quarantine: another file of its name could be read."""
        (self.root / "_quarantine" / entry.cluster / f"{entry.name}.json").unlink(missing_ok=True)

    def write(self, table: str, frame: DataFrame, run_id: str, *, partition_by: Sequence[str] = ()) -> int:
        """Put a new content in the place of a derived table in one step; answers with its number of rows."""
        if table in BRONZE or not PLAIN_NAME.fullmatch(run_id):
            raise ValueError(f"{table!r} with run {run_id!r} can't be a derived table")
        self._make()
        link = self.table(table)
        if link.exists() and not link.is_symlink():
            raise NotALake(f"{link} is in the way: it should be a link that this lake made")
        _remove_old(self.root / "_staging" / "runs")
        staged = self.root / "_staging" / "runs" / f"{table}-{run_id}-{os.urandom(4).hex()}"
        try:
            frame.write.partitionBy(*partition_by).parquet(str(staged))
            rows = sum(int(parquet.read_metadata(file).num_rows) for file in staged.rglob("*.parquet"))
            _sync_tree(staged)
            runs = self.root / "_runs" / table
            runs.mkdir(parents=True, exist_ok=True)
            place = runs / f"{run_id}-{os.urandom(4).hex()}"
            staged.rename(place)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        swap = self.root / "_staging" / f"{table}-{os.urandom(4).hex()}.link"
        swap.symlink_to(os.path.relpath(place, self.root))
        swap.replace(link)
        sync_path(self.root)
        _keep_newest(runs, place)
        return rows

    # How it knows itself.

    def check_there(self) -> None:
        """Refuse to read what was never written."""
        if not self.root.is_dir():
            raise NotALake(f"{self.root}: there is no lake in this folder: run `fairlead pipeline ingest` first")

    def check_namespace(self, spark: SparkSession, namespace: str) -> None:
        """Refuse a namespace of which nothing was recorded: its name instead of its id, for instance."""
        if any(not self.read(spark, table, namespace=namespace).isEmpty() for table in BRONZE):
            return
        tables = (self.read(spark, table).select(_namespace().alias("id")) for table in BRONZE)
        rows = reduce(DataFrame.union, tables).distinct().orderBy("id").limit(NAMESPACES_TOLD).collect()
        there = ", ".join(row["id"] for row in rows) or "nothing"
        raise NoSuchNamespace(
            f"--namespace {namespace}: nothing of it is in the lake, which has {there}: give the id of a namespace, "
            "not its name"
        )

    def check_writable(self) -> None:
        """Refuse a place that can't be written to, without leaving anything there."""
        there = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        try:
            with tempfile.TemporaryDirectory(prefix="._lake.json", dir=there):
                pass
        except OSError as refused:
            raise NotALake(
                f"{self.root}: nothing can be written there ({refused.strerror or refused}): give another --lake"
            ) from refused

    def _check(self) -> None:
        if self.root.is_symlink() and not self.root.exists():
            raise NotALake(f"{self.root} is a link to nothing: make the folder that it leads to")
        if self.root.exists() and not self.root.is_dir():
            raise NotALake(f"{self.root} is not a folder: give the folder of a lake, or one that is not there yet")
        # A kill while the lake was made can leave a draft of its first file.
        if not self.root.is_dir() or all(entry.name.startswith("._lake.json") for entry in self.root.iterdir()):
            return
        try:
            layout = json.loads((self.root / "_lake.json").read_bytes())["layout"]
        except FileNotFoundError:
            raise NotALake(f"{self.root} holds other things than a lake: give an empty folder") from None
        except (ValueError, TypeError, KeyError):
            raise NotALake(f"{self.root / '_lake.json'} is damaged: is this a lake?") from None
        if layout != LAYOUT:
            raise NotALake(f"{self.root}: this lake has layout {layout}, and this release knows {LAYOUT}: use another")
        for table, schema in BRONZE.items():
            self._check_schema(table, schema)

    def _check_schema(self, table: str, schema: StructType) -> None:
        file = self.table(table) / "_schema.json"
        if not file.exists():
            return
        found = StructType.fromJson(_read_json(file))
        different = differences(expected=schema, found=found)
        if different:
            raise NotALake(
                f"{self.root}: the table {table!r} of this lake has another schema ({', '.join(different)}): "
                "ingest into a new lake"
            )

    def _make(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        # First, so that what a kill leaves is a lake.
        if not (self.root / "_lake.json").exists():
            _write_json(self.root / "_lake.json", {"layout": LAYOUT})
        for folder in ("_staging", "_runs", "_quarantine"):
            (self.root / folder).mkdir(exist_ok=True)

    def _make_table(self, table: str, schema: StructType) -> Path:
        folder = self.table(table)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "_schema.json").exists():
            _write_json(folder / "_schema.json", schema.jsonValue())
        return folder


def _namespace() -> Column:
    # Tasks for workers of a version wait in task lists of their own, in `<namespace>#<version>`.
    return F.substring_index("namespace_id", "#", 1)


def _day(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).date().isoformat()


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except ValueError as broken:
        raise BrokenLake(f"{file} is damaged ({broken})") from broken


def _write_json(file: Path, plain: object) -> None:
    """Write a small file so that it is there whole or not at all."""
    draft = file.with_name(f".{file.name}.{os.urandom(4).hex()}")
    with draft.open("w") as out:
        json.dump(plain, out)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(file)


def _sync_tree(folder: Path) -> None:
    """Bring all of a folder to the disk: Spark leaves its files to the operating system."""
    for path in [*folder.rglob("*"), folder]:
        sync_path(path)


def _remove_old(folder: Path) -> None:
    for left in folder.glob("*"):
        if left.stat().st_mtime < time.time() - STAGED_AGE_S_MAX:
            shutil.rmtree(left, ignore_errors=True)


def _keep_newest(runs: Path, place: Path) -> None:
    older = sorted((run for run in runs.iterdir() if run != place), key=lambda run: run.stat().st_mtime, reverse=True)
    for run in older[RUNS_KEPT - 1 :]:
        shutil.rmtree(run, ignore_errors=True)
