"""The job `ingest`: every sealed segment of the journal comes into the tables once, whole, or into the quarantine."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.lake import Lake, Quarantined, SegmentEntry
from fairlead.pipeline.schemas import BRONZE
from fairlead.pipeline.sources.cloud import CLOUD_CLUSTER, exported_histories, find_exports
from fairlead.pipeline.sources.decoding import REASONS, Fault
from fairlead.pipeline.sources.journal import plain_name, rows_of, segments_at_rest
from fairlead.pipeline.sources.segments import Segment, find_sealed
from fairlead.settings import InvalidValue
from fairlead.settings.static_clusters import parse_cluster_name

# What a kill can cost: a batch that is not committed is done again.
BATCH_BYTES = 512 << 20
BATCH_SEGMENTS_MAX = 2048
# What a task holds in memory of each file that it writes, of several days at once.
ROW_GROUP_BYTES = 32 << 20
# Where Spark puts the rows whose `fault` is null.
SOUND = "fault=__HIVE_DEFAULT_PARTITION__"


def _checked_name(_context: click.Context, _option: click.Parameter, name: str) -> str:
    try:
        return parse_cluster_name(name)
    except InvalidValue as wrong:
        raise click.BadParameter(f"{name!r} {wrong}") from wrong


OPTIONS = [
    click.option(
        "--cloud-export",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="A copy of the bucket that Temporal Cloud exports histories to, or a part of it.",
    ),
    click.option(
        "--cluster",
        "cloud_cluster",
        callback=_checked_name,
        default=CLOUD_CLUSTER,
        show_default=True,
        metavar="NAME",
        help="Under which name Temporal Cloud is among the clusters.",
    ),
]

# Makes rows of segments.
Read = Callable[[SparkSession, Sequence[Segment]], DataFrame]


class SegmentChanged(GiveUp):
    """A sealed segment did not stay as it was."""


@dataclass(slots=True)
class Absorbed:
    """What came of segments: rows committed, and segments that could not be read."""

    rows: int = 0
    segments: int = 0
    batches: int = 0
    quarantined: list[Quarantined] = field(default_factory=list)

    def add(self, other: "Absorbed") -> None:
        """Count another batch."""
        self.rows += other.rows
        self.segments += other.segments
        self.batches += other.batches
        self.quarantined += other.quarantined


def run(context: JobContext) -> Summary:
    """Bring what is new in the journal, and in what Temporal Cloud exported, into the lake."""
    exports = context.options.get("cloud_export")
    if context.journal is None and exports is None:
        raise FixRequest("ingest needs --journal: the folder that the server writes its journal to")
    works = [] if context.journal is None else _journaled(context.journal)
    if exports is not None:
        cluster = context.options.get("cloud_cluster") or CLOUD_CLUSTER
        works.append(_Work("history", find_exports(exports, cluster=cluster), exported_histories))
    rows = dict.fromkeys(BRONZE, 0)
    total = Absorbed()
    changed: list[Segment] = []
    known = 0
    with context.lake.locked():
        for work in works:
            done = taken_in(context.lake, work.kind)
            news, others = not_yet_in(context.lake, done, work.segments)
            changed += others
            known += len(work.segments) - len(news) - len(others)
            absorbed = _absorb_all(context, work, news)
            rows[work.kind] += absorbed.rows
            total.add(absorbed)
        findings = _findings(context.lake, total, known=known, changed=changed)
    return Summary(job="ingest", rows=rows, findings=findings, alarm=_alarm(total, changed))


class _Work(NamedTuple):
    """Segments of one kind, and how they are read."""

    kind: str
    segments: list[Segment]
    read: Read


def _journaled(journal: Path) -> list[_Work]:
    segments = find_sealed(journal)
    return [
        _Work(kind, [segment for segment in segments if segment.name.startswith(f"{kind}.")], _reader(kind))
        for kind in BRONZE
    ]


def _reader(kind: str) -> Read:
    return lambda spark, segments: segments_at_rest(spark, segments).transform(rows_of, kind)


def _absorb_all(context: JobContext, work: _Work, segments: Sequence[Segment]) -> Absorbed:
    total = Absorbed()
    for batch in _batches(segments):
        context.progress(f"{work.kind}: {total.segments} of {len(segments)} segments")
        total.add(absorb(context.spark, context.lake, work.kind, batch, read=work.read))
    return total


def absorb(
    spark: SparkSession, lake: Lake, kind: str, segments: Sequence[Segment], *, read: Read | None = None
) -> Absorbed:
    """Commit the rows of these segments as one batch; those of them that are faulty go into the quarantine.

    All are read once, in the hope that they are well: only where one proves faulty, the others are read again.
    """
    read = read or _reader(kind)
    staged, faults = _stage(spark, lake, kind, segments, read)
    quarantined = [
        Quarantined(_entry(segment, rows=before), f"{REASONS[fault]} (after {before:,} sound records)")
        for segment in segments
        for fault, before in [faults.get(segment.key, (None, 0))]
        if fault is not None
    ]
    for found in quarantined:
        lake.quarantine(found)
    sound = [segment for segment in segments if segment.key not in faults]
    if faults:
        shutil.rmtree(staged)
        staged, again = _stage(spark, lake, kind, sound, read)
        if again:
            raise SegmentChanged(f"{sorted(again)}: these segments changed while they were read: sealed ones never do")
    counts = _count(staged / SOUND)
    if sound:
        # A segment without records is in the batch, too: it need not be read again.
        entries = [_entry(segment, rows=counts.get(segment.key, 0)) for segment in sound]
        (staged / SOUND).mkdir(exist_ok=True)
        lake.commit(kind, staged / SOUND, entries)
        for entry in entries:
            lake.forgive(entry)
    shutil.rmtree(staged)
    return Absorbed(rows=sum(counts.values()), segments=len(sound), batches=int(bool(sound)), quarantined=quarantined)


def with_day(frame: DataFrame) -> DataFrame:
    """Each row with the day it happened on, in UTC."""
    return frame.withColumn("day", F.to_date(F.timestamp_micros("time_us")))


def _stage(
    spark: SparkSession, lake: Lake, kind: str, segments: Sequence[Segment], read: Read
) -> tuple[Path, dict[tuple[str, str], tuple[Fault, int]]]:
    """Write the rows beside the tables; the faulty segments among them, with how many records came before."""
    staged = lake.stage(kind)
    rows = read(spark, segments).transform(with_day)
    writer = rows.select(*BRONZE[kind].names, "fault").write.mode("overwrite").partitionBy("fault", "cluster", "day")
    writer.option("parquet.block.size", ROW_GROUP_BYTES).parquet(str(staged))
    faults: dict[tuple[str, str], tuple[Fault, int]] = {}
    for file in staged.glob("fault=*/cluster=*/day=*/*.parquet"):
        fault, cluster = (part.partition("=")[2] for part in file.relative_to(staged).parts[:2])
        if file.is_relative_to(staged / SOUND):
            continue
        for row in parquet.ParquetFile(file).read(["segment", "position"]).to_pylist():
            faults[plain_name(cluster), row["segment"]] = (Fault(fault), row["position"])
    return staged, faults


def _count(sound: Path) -> dict[tuple[str, str], int]:
    """How many rows of each segment are in a staged batch."""
    counts: dict[tuple[str, str], int] = {}
    for file in sound.glob("cluster=*/day=*/*.parquet"):
        cluster = plain_name(file.parent.parent.name.partition("=")[2])
        for batch in parquet.ParquetFile(file, read_dictionary=["segment"]).iter_batches(1 << 20, columns=["segment"]):
            for row in pc.value_counts(batch.column("segment")).to_pylist():
                key = (cluster, row["values"])
                counts[key] = counts.get(key, 0) + row["counts"]
    return counts


def taken_in(lake: Lake, kind: str) -> dict[tuple[str, str], int]:
    """The segments whose rows are in the table, by their keys, with their sizes; to be called with the lock.

    Those that a kill has left in the quarantine though they came in are taken out of it.
    """
    done = {(entry.cluster, entry.name): entry.bytes for entry in lake.segments(kind)}
    for found in list(lake.quarantined()):
        if (found.entry.cluster, found.entry.name) in done:
            lake.forgive(found.entry)
    return done


def not_yet_in(
    lake: Lake, done: Mapping[tuple[str, str], int], segments: Sequence[Segment]
) -> tuple[list[Segment], list[Segment]]:
    """The segments to read, and those that are in the table and have another size now."""
    bad = {(found.entry.cluster, found.entry.name): found.entry for found in lake.quarantined()}
    news = [
        segment
        for segment in segments
        if segment.key not in done
        # A faulty segment that was replaced by another file gets another chance.
        and not (segment.key in bad and bad[segment.key].digest == segment.digest())
    ]
    changed = [segment for segment in segments if done.get(segment.key, segment.bytes) != segment.bytes]
    return news, changed


def _batches(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    batch: list[Segment] = []
    for segment in segments:
        is_full = sum(other.bytes for other in batch) + segment.bytes > BATCH_BYTES or len(batch) >= BATCH_SEGMENTS_MAX
        if batch and is_full:
            yield batch
            batch = []
        batch.append(segment)
    if batch:
        yield batch


def _entry(segment: Segment, *, rows: int) -> SegmentEntry:
    return SegmentEntry(
        cluster=segment.cluster, name=segment.name, bytes=segment.bytes, digest=segment.digest(), rows=rows
    )


def _findings(lake: Lake, total: Absorbed, *, known: int, changed: Sequence[Segment]) -> dict[str, Any]:
    return {
        "segments": total.segments,
        "segments_known": known,
        "batches": total.batches,
        "quarantined": [describe(found) for found in total.quarantined],
        "quarantined_in_all": sum(1 for _ in lake.quarantined()),
        "changed_after_ingest": [f"{segment.cluster}/{segment.name}" for segment in changed],
    }


def describe(found: Quarantined) -> dict[str, Any]:
    """A segment of the quarantine, for programs."""
    return asdict(found.entry) | {"reason": found.reason}


def _alarm(total: Absorbed, changed: Sequence[Segment]) -> str | None:
    if total.quarantined:
        first = total.quarantined[0]
        more = f" and {len(total.quarantined) - 1} more" if len(total.quarantined) > 1 else ""
        return f"{first.entry.cluster}/{first.entry.name}{more} can't be read and went into quarantine: {first.reason}"
    if changed:
        return f"{changed[0].cluster}/{changed[0].name} is not the file that was ingested: sealed segments never change"
    return None
