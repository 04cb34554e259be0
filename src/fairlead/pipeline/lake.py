"""The lake: a folder of Parquet tables in which readers of any engine see exactly the committed rows.

    <lake>/_lake.json                      marks the folder as a lake; version of its layout
    <lake>/task/_schema.json               the columns of the table
    <lake>/task/batch=<n>/_batch.json      the segments of the batch
    <lake>/task/batch=<n>/cluster=<c>/day=<d>/*.parquet
    <lake>/task -> _tables/task/<generation>   replaced by a compaction (`upkeep.generations`)
    <lake>/traffic -> _runs/traffic/<run>  a derived table (`derived`), with its origin (`increments`)
    <lake>/_quarantine/<cluster>/<segment>.json
    <lake>/_staging/                       unfinished writes; not read

A batch is written in the staging folder and committed by one rename into its table: no reader sees a part of it, and
after a kill only the staging folder must be emptied. A run of a derived table replaces the previous one by swapping a
symbolic link. The lake needs a file system with atomic renames that all workers see under the same path: a local disk,
or NFS.
"""

import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fairlead.core.errors import FixRequest, RetryLater
from fairlead.journal.segments import sync_path
from fairlead.pipeline.derived import write_table
from fairlead.pipeline.dictionary.comments import described
from fairlead.pipeline.lake_files import read_json, sync_tree, write_json
from fairlead.pipeline.namespaces import base_of, ids_of, namespace_names, with_names
from fairlead.pipeline.paths import to_read
from fairlead.pipeline.schemas import BRONZE, conflicts, united

if TYPE_CHECKING:
    from fairlead.pipeline.increments.origin import Origin
    from fairlead.pipeline.increments.touched import Touched

LAYOUT = 1
LOCK_WAIT_S_MAX = 10.0
NAMESPACES_SHOWN = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Where Spark puts the schema of a table into the metadata of its Parquet files.
_SCHEMA_KEY = b"org.apache.spark.sql.parquet.row.metadata"
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class NotALake(FixRequest):
    """The folder is not a lake, or has another layout or schema."""


class NoSuchNamespace(FixRequest):
    """The lake has no records of the requested namespace."""


class NoSuchTable(FixRequest):
    """The table was never written."""


class LakeIsBusy(RetryLater):
    """Another process writes to the lake."""


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment of a batch or of the quarantine: `digest` is the XXH64 of its bytes on disk.

    `arrived_us` is when its rows arrived in the lake, by the clock of the machine that ran the ingest.
    """

    cluster: str
    name: str
    bytes: int
    digest: str
    rows: int
    arrived_us: int = 0


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A segment that can't be read and so has no rows in any table; `entry.rows` counts the rows before the damage.

    It raises an alarm in every run until a readable copy is ingested, or an operator dismisses it.
    """

    entry: SegmentEntry
    reason: str
    fault: str = ""
    is_dismissed: bool = False


class Lake:
    """The tables in one folder. Reads need no lock; writes to the tables of the journal need `locked()`."""

    def __init__(self, root: Path) -> None:
        """Open the lake in this folder and check it; the first write creates the folder."""
        self.root = root.absolute()
        # The number of each table's next batch; valid while this process holds the lock.
        self._next: dict[str, int] = {}
        self._check()

    def __repr__(self) -> str:
        return f"Lake({str(self.root)!r})"

    # Reads.

    def read(
        self,
        spark: SparkSession,
        table: str,
        *,
        since: int | None = None,
        until: int | None = None,
        namespace: str | None = None,
        files: Sequence[Path] | None = None,
    ) -> DataFrame:
        """Return the committed rows of a journal table with `since` <= time < `until` (µs since the epoch).

        `namespace` is a name or an id; `files` limits the rows to those of some files of the table. A table without
        batches has no rows: a cluster need not journal both kinds.
        """
        schema = BRONZE[table]
        self.check_there()
        self._check_schema(table)
        # Resolve the link, so that a reader stays with one generation of the table.
        folder = self.table(table).resolve()
        if files == [] or not any(folder.glob("batch=*/cluster=*")):
            return spark.createDataFrame([], schema)
        # Select the columns of the schema: Spark adds the batch number, a part of the path, as a column. Without
        # `basePath`, it takes the cluster and the day from no path of a file.
        reader = spark.read.schema(schema).option("basePath", str(folder))
        rows = reader.parquet(*(to_read(place) for place in files or [folder])).select(*schema.names)
        if since is not None:
            rows = rows.where((F.col("day") >= F.lit(_day(since))) & (F.col("time_us") >= since))
        if until is not None:
            rows = rows.where((F.col("day") <= F.lit(_day(until))) & (F.col("time_us") < until))
        if namespace is not None:
            ids = ids_of(namespace, namespace_names(self, spark))
            rows = rows.where(base_of("namespace_id").isin(ids))
        return rows

    def read_derived(self, spark: SparkSession, table: str, *, with_names: bool = False) -> DataFrame:
        """Return the rows of a derived table, as written by its last complete run.

        The column `namespace`, which `write` adds for people, is left out unless `with_names` is set.
        """
        # Spark would start a job to read the schema from the files.
        folder = self.written(table)
        schema = _schema_in(folder)
        reader = spark.read if schema is None else spark.read.schema(schema)
        rows = reader.parquet(to_read(folder))
        return rows if with_names or "namespace_id" not in rows.columns else rows.drop("namespace")

    def written(self, table: str) -> Path:
        """Return the folder with the files of a derived table's last complete run; a later run does not change it."""
        link = self.table(table)
        if not link.is_symlink():
            raise NoSuchTable(f"{self.root}: there is no table {table!r} in this lake: run its job first")
        return link.resolve()

    def has(self, table: str) -> bool:
        """Whether the table has been written at least once."""
        return self.table(table).is_symlink() or any(self.table(table).glob("batch=*"))

    def table(self, table: str) -> Path:
        """Return the folder of a table; for a derived table, a symbolic link."""
        if not PLAIN_NAME.fullmatch(table):
            raise ValueError(f"{table!r} can't be the name of a table")
        return self.root / table

    def segments(self, table: str) -> Iterator[SegmentEntry]:
        """Yield the segments whose rows are in the table."""
        # Resolved: a compaction may replace the folder meanwhile.
        for manifest in sorted(self.table(table).resolve().glob("batch=*/_batch.json")):
            # Batches of older releases have no arrival time: use the file's modification time.
            arrived = {"arrived_us": manifest.stat().st_mtime_ns // 1000}
            for entry in read_json(manifest)["segments"]:
                yield SegmentEntry(**arrived | entry)

    def unknown(self, table: str) -> "Counter[tuple[str, str]]":
        """Return the number of records by field or kind that was unknown to the release that ingested them."""
        found: Counter[tuple[str, str]] = Counter()
        for manifest in self.table(table).resolve().glob("batch=*/_batch.json"):
            for note, name, records in read_json(manifest).get("unknown", ()):
                found[note, name] += records
        return found

    def quarantined(self) -> Iterator[Quarantined]:
        """Yield the segments that could not be read."""
        for file in sorted(self.root.glob("_quarantine/*/*.json")):
            plain = read_json(file)
            yield Quarantined(**plain | {"entry": SegmentEntry(**plain["entry"])})

    def unresolved(self) -> list[Quarantined]:
        """Return the quarantined segments that no operator has dismissed."""
        return [found for found in self.quarantined() if not found.is_dismissed]

    # Writes.

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for writing the tables of the journal; the lock ends with the process."""
        self._make()
        with (self.root / "_lock").open("w") as file:
            deadline_s = time.monotonic() + LOCK_WAIT_S_MAX
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline_s:
                        raise LakeIsBusy(
                            f"{self.root}: another ingest or stream writes to this lake: wait until it ends"
                        ) from None
                    time.sleep(0.1)
            # These files were left by a killed process.
            shutil.rmtree(self.root / "_staging" / "batches", ignore_errors=True)
            self._next.clear()
            yield

    def stage(self, table: str) -> Path:
        """Return a new folder for a batch of the table; requires the lock."""
        folder = self.root / "_staging" / "batches" / f"{table}-{os.urandom(8).hex()}"
        folder.mkdir(parents=True)
        return folder

    def commit(
        self,
        table: str,
        staged: Path,
        segments: Sequence[SegmentEntry],
        unknown: Mapping[tuple[str, str], int] | None = None,
    ) -> str:
        """Commit a staged folder of `cluster=<c>/day=<d>/*.parquet` as a batch of the table; requires the lock."""
        folder = self._make_table(table, BRONZE[table])
        if table not in self._next:
            numbers = [int(batch.name.removeprefix("batch=")) for batch in folder.glob("batch=*")]
            self._next[table] = max(numbers, default=-1) + 1
        batch = f"{self._next[table]:012d}"
        manifest = {
            "batch": batch,
            "segments": [asdict(entry) for entry in segments],
            "unknown": [[note, name, records] for (note, name), records in sorted((unknown or {}).items())],
        }
        write_json(staged / "_batch.json", manifest)
        sync_tree(staged)
        staged.rename(folder / f"batch={batch}")
        self._next[table] += 1
        sync_path(folder)
        return batch

    def quarantine(self, found: Quarantined) -> None:
        """Record that a segment can't be read; its file is not moved."""
        folder = self.root / "_quarantine" / found.entry.cluster
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{found.entry.name}.json", asdict(found))

    def release(self, entry: SegmentEntry) -> None:
        """Release a segment from quarantine: another file with its name could be read."""
        (self.root / "_quarantine" / entry.cluster / f"{entry.name}.json").unlink(missing_ok=True)

    def write(
        self,
        table: str,
        frame: DataFrame,
        run_id: str,
        *,
        partition_by: Sequence[str] = (),
        origin: "Origin | None" = None,
        touched: "Touched | None" = None,
    ) -> int:
        """Replace the content of a derived table atomically, or only the `touched` rows; return its number of rows.

        A table with `namespace_id` also gets the column `namespace` with the name. `origin` is stored with the table.
        """
        if table in BRONZE or not PLAIN_NAME.fullmatch(run_id):
            raise ValueError(f"{table!r} with run {run_id!r} can't be a derived table")
        self._make()
        link = self.table(table)
        if link.exists() and not link.is_symlink():
            raise NotALake(f"{link} exists, but is not a link made by this lake: move it away")
        if "namespace_id" in frame.columns:
            frame = with_names(frame, namespace_names(self, frame.sparkSession))
        frame = described(table, frame)
        return write_table(self.root, table, frame, run_id, partition_by=partition_by, origin=origin, touched=touched)

    # Checks and creation.

    def check_there(self) -> None:
        """Raise an error if the lake was never written."""
        if not self.root.is_dir():
            raise NotALake(f"{self.root}: there is no lake in this folder: run `fairlead pipeline ingest` first")

    def check_namespace(self, spark: SparkSession, namespace: str) -> None:
        """Raise an error if a namespace, given by name or id, has no records in the lake."""
        if any(not self.read(spark, table, namespace=namespace).isEmpty() for table in BRONZE):
            return
        tables = (self.read(spark, table).select(base_of("namespace_id").alias("id")) for table in BRONZE)
        rows = reduce(DataFrame.union, tables).distinct().orderBy("id").limit(NAMESPACES_SHOWN).collect()
        names = namespace_names(self, spark)
        there = ", ".join(f"{names[row['id']]} ({row['id']})" if row["id"] in names else row["id"] for row in rows)
        raise NoSuchNamespace(
            f"--namespace {namespace}: the lake has no records of it; it has {there or 'none'}: give the name or id of "
            "one of these"
        )

    def check_writable(self) -> None:
        """Raise an error if the folder is not writable; leaves no files behind."""
        there = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        try:
            with tempfile.TemporaryDirectory(prefix="._lake.json", dir=there):
                pass
        except OSError as refused:
            raise NotALake(
                f"{self.root}: can't write to this folder ({refused.strerror or refused}): give another --lake"
            ) from refused

    def _check(self) -> None:
        if self.root.is_symlink() and not self.root.exists():
            raise NotALake(f"{self.root} is a dangling link: create its target folder")
        if self.root.exists() and not self.root.is_dir():
            raise NotALake(f"{self.root} is not a folder: give the folder of a lake, or a new folder")
        # A kill during the lake's creation can leave a draft of its first file.
        if not self.root.is_dir() or all(entry.name.startswith("._lake.json") for entry in self.root.iterdir()):
            return
        try:
            layout = json.loads((self.root / "_lake.json").read_bytes())["layout"]
        except FileNotFoundError:
            raise NotALake(f"{self.root} has files, but is not a lake: give an empty folder") from None
        except (ValueError, TypeError, KeyError):
            raise NotALake(f"{self.root / '_lake.json'} is damaged: is this a lake?") from None
        if layout != LAYOUT:
            raise NotALake(
                f"{self.root}: this lake has layout {layout}, but this release reads {LAYOUT}: use the release that "
                "wrote it"
            )
        for table in BRONZE:
            self._check_schema(table)

    def _check_schema(self, table: str) -> None:
        file = self.table(table) / "_schema.json"
        if not file.exists():
            return
        different = conflicts(table, StructType.fromJson(read_json(file)))
        if different:
            raise NotALake(
                f"{self.root}: this release can't read the table {table!r} of this lake ({', '.join(different)}): "
                "ingest into a new lake"
            )

    def _make(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        # Written first, so that a kill leaves a valid lake.
        if not (self.root / "_lake.json").exists():
            write_json(self.root / "_lake.json", {"layout": LAYOUT})
        for folder in ("_staging", "_runs", "_quarantine"):
            (self.root / folder).mkdir(exist_ok=True)

    def _make_table(self, table: str, schema: StructType) -> Path:
        folder = self.table(table)
        if not folder.exists():
            # A link from the start, so that a compaction can replace the folder below running readers.
            place = self.root / "_tables" / table / os.urandom(8).hex()
            place.mkdir(parents=True)
            folder.symlink_to(os.path.relpath(place, self.root))
        file = folder / "_schema.json"
        there = StructType.fromJson(read_json(file)) if file.exists() else StructType([])
        # Keep columns of a newer release, which other batches may have.
        every = united(there, schema)
        if every != there:
            write_json(file, every.jsonValue())
        return folder


def _day(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).date().isoformat()


def _schema_in(folder: Path) -> StructType | None:
    """Return the schema with which Spark wrote the Parquet files of a table; None if there is no such file."""
    file = next(folder.rglob("*.parquet"), None)
    described = None if file is None else (parquet.read_schema(file).metadata or {}).get(_SCHEMA_KEY)
    return None if described is None else StructType.fromJson(json.loads(described))
