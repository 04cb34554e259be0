"""The job `ingest`: adds each sealed segment of the journal to the tables exactly once, or puts it into quarantine as a
whole.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.journal import SCHEMA_VERSION
from fairlead.pipeline.dictionary.comments import described
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.lake import Lake, Quarantined, SegmentEntry
from fairlead.pipeline.lake_files import ROW_GROUP_BYTES
from fairlead.pipeline.schemas import BRONZE
from fairlead.pipeline.sources.cloud import CLOUD_CLUSTER, exported_histories, find_exports
from fairlead.pipeline.sources.decoder import Note
from fairlead.pipeline.sources.faults import REASONS, Fault
from fairlead.pipeline.sources.journal import plain_name, rows_of, segments_at_rest
from fairlead.pipeline.sources.segments import Segment, find_sealed, find_unknown_kinds
from fairlead.settings import InvalidValue
from fairlead.settings.static.clusters import parse_cluster_name

# Maximum bytes of one batch: after a kill, the uncommitted batch is ingested again.
BATCH_BYTES = 512 << 20
BATCH_SEGMENTS_MAX = 2048
# Maximum number of segments of unknown kind that a summary lists by name.
NAMED_MAX = 20
# Name of the folder in which Spark puts the rows whose `fault` is null.
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
        help="Copy of the bucket with Temporal Cloud's history exports, or a part of it.",
    ),
    click.option(
        "--cluster",
        "cloud_cluster",
        callback=_checked_name,
        default=CLOUD_CLUSTER,
        show_default=True,
        metavar="NAME",
        help="Cluster name under which the lake stores Temporal Cloud's histories.",
    ),
    click.option(
        "--dismiss",
        multiple=True,
        metavar="CLUSTER/SEGMENT",
        help="Stop the alarms for a segment in quarantine that will never be readable.",
    ),
]

# Turns segments into rows.
Read = Callable[[SparkSession, Sequence[Segment]], DataFrame]


class NotInQuarantine(FixRequest):
    """The segment to dismiss is not in quarantine."""


class SegmentChanged(GiveUp):
    """A sealed segment changed while it was read."""


@dataclass(slots=True)
class Absorbed:
    """The rows committed, the segments that can't be read, and why a stream merges no batches (empty if it does)."""

    rows: int = 0
    segments: int = 0
    batches: int = 0
    quarantined: list[Quarantined] = field(default_factory=list)
    duplicates: list[Segment] = field(default_factory=list)
    not_merged: str = ""

    def add(self, other: "Absorbed") -> None:
        """Add the counts of another batch."""
        self.rows += other.rows
        self.segments += other.segments
        self.batches += other.batches
        self.quarantined += other.quarantined
        self.duplicates += other.duplicates


def run(context: JobContext) -> Summary:
    """Ingest the new segments of the journal and of Temporal Cloud's export."""
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
        _dismiss(context.lake, context.options.get("dismiss") or ())
        for work in works:
            sorted_out = sort_out(context.lake, taken_in(context.lake, work.kind), work.segments)
            changed += sorted_out.changed
            known += sorted_out.known
            absorbed = _absorb_all(context, work, sorted_out.news)
            absorbed.duplicates += sorted_out.duplicates
            absorbed.quarantined += sorted_out.waiting
            rows[work.kind] += absorbed.rows
            total.add(absorbed)
        findings = _findings(context.lake, total, known=known, changed=changed)
        if context.journal is not None:
            others = find_unknown_kinds(context.journal)
            findings["segments_of_unknown_kind"] = len(others)
            findings["unknown_segments"] = [f"{one.cluster}/{one.name}" for one in others[:NAMED_MAX]]
        alarm = quarantine_alarm(context.lake) or _alarm(changed)
    return Summary(job="ingest", rows=rows, findings=findings, alarm=alarm)


def _dismiss(lake: Lake, names: Sequence[str]) -> None:
    """Dismiss these segments of the quarantine, so that they raise no more alarms."""
    there = {f"{found.entry.cluster}/{found.entry.name}": found for found in lake.quarantined()}
    for name in names:
        if name not in there:
            raise NotInQuarantine(
                f"--dismiss {name}: this segment is not in quarantine; in quarantine: {', '.join(there) or 'none'}"
            )
    for name in names:
        lake.quarantine(replace(there[name], is_dismissed=True))


class _Work(NamedTuple):
    """Segments of one kind, and the function that reads them."""

    kind: str
    segments: list[Segment]
    read: Read


def _journaled(journal: Path) -> list[_Work]:
    segments = find_sealed(journal)
    return [_Work(kind, [segment for segment in segments if segment.kind == kind], _reader(kind)) for kind in BRONZE]


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
    """Commit the rows of these segments as one batch; faulty segments go into quarantine.

    All segments are read once, on the assumption that none is faulty. If one is faulty, the others are read again.
    """
    read = read or _reader(kind)
    staged, faults, unknown = _stage(spark, lake, kind, segments, read)
    quarantined = [
        Quarantined(_entry(segment, rows=before), f"{REASONS[fault]} (after {before:,} sound records)", fault)
        for segment in segments
        for fault, before in [faults.get(segment.key, (None, 0))]
        if fault is not None
    ]
    for found in quarantined:
        lake.quarantine(found)
    sound = [segment for segment in segments if segment.key not in faults]
    if faults:
        shutil.rmtree(staged)
        staged, again, unknown = _stage(spark, lake, kind, sound, read)
        if again:
            raise SegmentChanged(
                f"{sorted(again)}: these segments changed while they were read, but a sealed segment must not change"
            )
    counts = _count(staged / SOUND)
    if sound:
        # A segment without records is part of the batch, too, so that it is not read again.
        now_us = time.time_ns() // 1000
        entries = [_entry(segment, rows=counts.get(segment.key, 0), arrived_us=now_us) for segment in sound]
        (staged / SOUND).mkdir(exist_ok=True)
        lake.commit(kind, staged / SOUND, entries, unknown)
        for entry in entries:
            lake.release(entry)
    shutil.rmtree(staged)
    return Absorbed(rows=sum(counts.values()), segments=len(sound), batches=int(bool(sound)), quarantined=quarantined)


def with_day(frame: DataFrame) -> DataFrame:
    """Add the column `day`: the UTC day of the row's time."""
    return frame.withColumn("day", F.to_date(F.timestamp_micros("time_us")))


def _stage(
    spark: SparkSession, lake: Lake, kind: str, segments: Sequence[Segment], read: Read
) -> tuple[Path, dict[tuple[str, str], tuple[Fault, int]], Counter[tuple[str, str]]]:
    """Write the rows to a new staging folder.

    Returns the folder, the faulty segments with the number of records before the fault, and the unknown names.
    """
    staged = lake.stage(kind)
    rows = read(spark, segments).transform(with_day)
    writer = (
        described(kind, rows.select(*BRONZE[kind].names, "fault"))
        .write.mode("overwrite")
        .partitionBy("fault", "cluster", "day")
    )
    writer.option("parquet.block.size", ROW_GROUP_BYTES).parquet(str(staged))
    faults: dict[tuple[str, str], tuple[Fault, int]] = {}
    unknown: Counter[tuple[str, str]] = Counter()
    for file in staged.glob("fault=*/cluster=*/day=*/*.parquet"):
        fault, cluster = (part.partition("=")[2] for part in file.relative_to(staged).parts[:2])
        if file.is_relative_to(staged / SOUND):
            continue
        for row in parquet.ParquetFile(file).read(["segment", "position", "namespace_id"]).to_pylist():
            if fault in set(Note):
                unknown[fault, row["namespace_id"]] += row["position"]
            else:
                faults[plain_name(cluster), row["segment"]] = (Fault(fault), row["position"])
    return staged, faults, unknown


def _count(sound: Path) -> dict[tuple[str, str], int]:
    """Return the number of rows of each segment in a staged batch."""
    counts: dict[tuple[str, str], int] = {}
    for file in sound.glob("cluster=*/day=*/*.parquet"):
        cluster = plain_name(file.parent.parent.name.partition("=")[2])
        for batch in parquet.ParquetFile(file, read_dictionary=["segment"]).iter_batches(1 << 20, columns=["segment"]):
            for row in pc.value_counts(batch.column("segment")).to_pylist():
                key = (cluster, row["values"])
                counts[key] = counts.get(key, 0) + row["counts"]
    return counts


class TakenIn(NamedTuple):
    """The segments of one kind that are in the lake: sizes by key, and names by cluster and digest."""

    sizes: dict[tuple[str, str], int]
    names: dict[tuple[str, str], str]

    def add(self, segment: Segment) -> None:
        """Remember a segment that was just ingested."""
        self.sizes[segment.key] = segment.bytes
        self.names.setdefault((segment.cluster, segment.digest()), segment.name)


class SortedOut(NamedTuple):
    """Segments of a journal, grouped by what to do with them."""

    news: list[Segment]
    changed: list[Segment]
    duplicates: list[Segment]
    waiting: list[Quarantined]
    known: int


def taken_in(lake: Lake, kind: str) -> TakenIn:
    """The segments whose rows are in the table; requires the lock.

    Ingested segments that a killed process left in the quarantine are released from it.
    """
    done = TakenIn({}, {})
    for entry in lake.segments(kind):
        done.sizes[entry.cluster, entry.name] = entry.bytes
        done.names.setdefault((entry.cluster, entry.digest), entry.name)
    for found in list(lake.quarantined()):
        if (found.entry.cluster, found.entry.name) in done.sizes:
            lake.release(found.entry)
    return done


def sort_out(lake: Lake, done: TakenIn, segments: Sequence[Segment]) -> SortedOut:
    """Group segments: new, changed since ingest, copies of others, waiting for a later release, or known.

    A segment whose schema this release can't read waits in quarantine for a release that can.
    """
    bad = {(found.entry.cluster, found.entry.name): found for found in lake.quarantined()}
    news: list[Segment] = []
    changed: list[Segment] = []
    duplicates: list[Segment] = []
    waiting: list[Quarantined] = []
    names = dict(done.names)
    known = 0
    for segment in segments:
        if segment.key in done.sizes:
            is_same = done.sizes[segment.key] == segment.bytes
            known += is_same
            changed += [] if is_same else [segment]
            continue
        digest = segment.digest()
        found = bad.get(segment.key)
        is_known_as_bad = found is not None and found.entry.digest == digest
        if segment.version != SCHEMA_VERSION:
            known += is_known_as_bad
            if not is_known_as_bad:
                waiting.append(_wait(lake, segment))
        elif is_known_as_bad and found is not None and found.fault != Fault.OTHER_SCHEMA:
            # The file in quarantine is unchanged: read it again only when it is replaced.
            known += 1
        elif names.setdefault((segment.cluster, digest), segment.name) != segment.name:
            duplicates.append(segment)
            lake.release(_entry(segment, rows=0))
        else:
            news.append(segment)
    return SortedOut(news, changed, duplicates, waiting, known)


def _wait(lake: Lake, segment: Segment) -> Quarantined:
    reason = f"{REASONS[Fault.OTHER_SCHEMA]} (version {segment.version}; this release reads {SCHEMA_VERSION})"
    found = Quarantined(_entry(segment, rows=0), reason, Fault.OTHER_SCHEMA)
    lake.quarantine(found)
    return found


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


def _entry(segment: Segment, *, rows: int, arrived_us: int = 0) -> SegmentEntry:
    return SegmentEntry(segment.cluster, segment.name, segment.bytes, segment.digest(), rows, arrived_us)


def _findings(lake: Lake, total: Absorbed, *, known: int, changed: Sequence[Segment]) -> dict[str, Any]:
    return {
        "segments": total.segments,
        "segments_known": known,
        "segments_duplicate": [f"{segment.cluster}/{segment.name}" for segment in total.duplicates],
        "batches": total.batches,
        "quarantined": [describe(found) for found in total.quarantined],
        "quarantined_in_all": sum(1 for _ in lake.quarantined()),
        "changed_after_ingest": [f"{segment.cluster}/{segment.name}" for segment in changed],
        **unknown_in(lake),
    }


def unknown_in(lake: Lake) -> dict[str, dict[str, int]]:
    """Return, for each field or kind that was unknown at the time of the ingest, the number of records in the lake that
    have it.
    """
    counts = sum((lake.unknown(kind) for kind in BRONZE), Counter[tuple[str, str]]())
    return {
        key: {name: count for (found, name), count in sorted(counts.items()) if found == note}
        for key, note in (("unknown_fields", Note.UNKNOWN_FIELD), ("unknown_kinds", Note.UNKNOWN_KIND))
    }


def describe(found: Quarantined) -> dict[str, Any]:
    """A segment of the quarantine, for programs."""
    return asdict(found.entry) | {"fault": found.fault, "reason": found.reason}


def quarantine_alarm(lake: Lake) -> str | None:
    """The alarm about unresolved segments in quarantine, also those that an earlier run put there."""
    unresolved = lake.unresolved()
    if not unresolved:
        return None
    first = unresolved[0]
    more = f" and {len(unresolved) - 1} more" if len(unresolved) > 1 else ""
    return (
        f"{first.entry.cluster}/{first.entry.name}{more} can't be read and went into quarantine: {first.reason}; "
        "replace it by a good copy, or dismiss it with `ingest --dismiss`"
    )


def _alarm(changed: Sequence[Segment]) -> str | None:
    first = next((f"{one.cluster}/{one.name}" for one in changed), None)
    return None if first is None else f"{first} is not the file that was ingested: sealed segments never change"
