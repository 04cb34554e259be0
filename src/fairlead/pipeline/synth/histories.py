"""Synthetic history journals of several clusters: mostly right, with defects that the manifest lists.

The same shape and seed give the same bytes. Workflows fail over, diverge and converge again, continue as new, are reset
and replaced; batches are journaled twice, sent again with other boundaries, and deleted before they were journaled. All
of that is legal. The only errors are the planted ones, and the manifest names each of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zstandard

from fairlead.core.errors import FixRequest
from fairlead.journal.records import HistoryRecord, Kind, encode_records
from fairlead.journal.segments import COMPRESSION_LEVEL, OpenSegment, SegmentName
from fairlead.journal.writer import FRAME_RECORDS_MAX
from fairlead.pipeline.synth.history_defects import DEFECTS, Copies, Planted, merge
from fairlead.pipeline.synth.history_runs import (
    Run,
    World,
    chain,
    copies_of,
    crossing,
    local,
    parted,
    parted_and_reset,
    plain,
    replaced,
    reset,
)

CLUSTERS_MIN = 3
NAMESPACES = 4
GRACE_S = 600.0
MANIFEST_FILE = "histories.json"
BLOCK_RUNS = 2_000
SEGMENT_BYTES = 64 << 20

_DAY_S = 86_400.0
# Shares of the workflow ids; the rest are plain.
_SHARES: tuple[tuple[float, Callable[[World], list[Run]]], ...] = (
    (0.02, crossing),
    (0.02, parted),
    (0.003, parted_and_reset),
    (0.04, chain),
    (0.01, replaced),
    (0.01, reset),
    (0.02, local),
)
_REPEATED_SHARE, _RESENT_SHARE, _DELETED_SHARE = 0.01, 0.01, 0.002


class WrongShape(FixRequest):
    """The shape is too small to plant the defects."""


@dataclass(frozen=True, slots=True)
class HistoryShape:
    """Size of the journals; without `defects_each`, each defect is planted once per 2,000 runs, at least twice."""

    runs: int = 10_000
    seed: int = 0
    clusters: tuple[str, ...] = ("east", "north", "west")
    span_s: float = _DAY_S
    defects_each: int | None = None
    # Seconds by which the clocks of clusters are ahead; the clocks of other clusters are right.
    clocks_ahead_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(set(self.clusters)) < CLUSTERS_MIN:
            raise WrongShape(
                f"{len(set(self.clusters))} clusters: give at least {CLUSTERS_MIN}, so that one did not write a run"
            )
        if self.runs < 1 or self.span_s < _DAY_S / 2:
            raise WrongShape(f"{self.runs} runs in {self.span_s} s: at least one run in half a day is needed")


class Manifest(msgspec.Struct, frozen=True):
    """The journals written, the planted defects, and the parameters for finding them."""

    runs: int
    records: int
    now_us: int
    grace_s: float
    increment: int
    initial_versions: dict[str, int]
    planted: list[Planted]
    clocks_ahead_s: dict[str, float] = {}


def write_histories(
    journal: Path, shape: HistoryShape, *, notify: Callable[[int], None] = lambda _runs: None
) -> Manifest:
    """Write the journals of all clusters and their manifest; `notify` gets the number of runs just written."""
    world = World(shape.seed, shape.clusters, span_us=round(shape.span_s * 1e6), namespaces=NAMESPACES)
    writers = {
        cluster: _JournalWriter(
            journal / cluster, f"{cluster}-history-0", ahead_us=round(shape.clocks_ahead_s.get(cluster, 0.0) * 1e6)
        )
        for cluster in shape.clusters
    }
    planted: list[Planted] = []
    runs = records = now_us = 0
    block: dict[str, list[HistoryRecord]] = {cluster: [] for cluster in shape.clusters}
    for copies in _workflows(world, shape, planted):
        runs += 1
        for cluster, batch in copies.items():
            block[cluster].extend(batch)
        if runs % BLOCK_RUNS == 0:
            records, now_us = _flush(writers, block, records, now_us)
            notify(BLOCK_RUNS)
    notify(runs % BLOCK_RUNS)
    records, now_us = _flush(writers, block, records, now_us)
    for writer in writers.values():
        writer.close()
    manifest = Manifest(
        runs, records, now_us, GRACE_S, world.versions.increment, dict(world.versions.initial_versions), planted,
        dict(shape.clocks_ahead_s),
    )  # fmt: skip
    (journal / MANIFEST_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    return manifest


def read_manifest(journal: Path) -> Manifest:
    """Read the manifest that `write_histories` wrote."""
    return msgspec.json.decode((journal / MANIFEST_FILE).read_bytes(), type=Manifest)


def _workflows(world: World, shape: HistoryShape, planted: list[Planted]) -> Iterator[Copies]:
    """Yield the journals of one run at a time; runs with defects are distributed evenly."""
    each = shape.defects_each if shape.defects_each is not None else max(2, shape.runs // 2_000)
    defects = [defect for defect in DEFECTS for _ in range(each)]
    world.random.shuffle(defects)
    every = max(1, shape.runs // (len(defects) + 1))
    made = 0
    while made < shape.runs or defects:
        if defects and made >= every * (len(DEFECTS) * each - len(defects) + 1):
            spoilt = defects.pop()(world)
            planted.extend(spoilt.planted)
            made += len(spoilt.copies)
            yield from spoilt.copies
            continue
        runs = _kind(world)(world)
        made += len(runs)
        for run in runs:
            copies = copies_of(world, run)
            if _disturb(world, copies) and len(copies) > 1:
                key = (run.namespace_id, run.workflow_id, run.run_id)
                planted.append(Planted("without_digests", *key, (), "not_comparable"))
            yield copies


def _kind(world: World) -> Callable[[World], list[Run]]:
    chosen = world.random.random()
    for share, kind in _SHARES:
        if chosen < share:
            return kind
        chosen -= share
    return plain


def _disturb(world: World, copies: Copies) -> bool:
    """Disturb journals in a harmless way, as happens in practice; return whether a copy is no longer comparable."""
    chosen = world.random.random()
    if chosen > _REPEATED_SHARE + _RESENT_SHARE + _DELETED_SHARE:
        return False
    records = copies[world.random.choice(sorted(copies))]
    place = world.random.randrange(len(records))
    if chosen < _REPEATED_SHARE:
        records.append(msgspec.structs.replace(records[place], time_us=records[place].time_us + 1_000_000))
    elif chosen < _REPEATED_SHARE + _RESENT_SHARE:
        pair = records[place : place + 2]
        if len(pair) > 1 and (pair[0].branch_id, pair[0].version) == (pair[1].branch_id, pair[1].version):
            records[place : place + 2] = [merge(*pair)]
    else:
        record = records[place]
        record.event_types = record.event_digests = record.signals = None
        return True
    return False


def _flush(
    writers: "dict[str, _JournalWriter]", block: dict[str, list[HistoryRecord]], records: int, now_us: int
) -> tuple[int, int]:
    """Write the collected records, sorted by time."""
    for cluster, batch in block.items():
        batch.sort(key=lambda record: record.time_us)
        now_us = max(now_us, batch[-1].time_us) if batch else now_us
        writers[cluster].write(batch)
        records += len(batch)
        batch.clear()
    return records, now_us


class _JournalWriter:
    """Writes the segments of one host, and seals each when it is full; `close` seals the last one."""

    def __init__(self, folder: Path, host: str, *, ahead_us: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._ahead_us = ahead_us
        self._folder, self._host = folder, host
        self._number = 0
        self._segment: OpenSegment | None = None
        self._compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True).compress

    def write(self, records: Sequence[HistoryRecord]) -> None:
        for record in records:
            record.time_us += self._ahead_us
        for first in range(0, len(records), FRAME_RECORDS_MAX):
            segment = self._open()
            segment.append(self._compress(encode_records(records[first : first + FRAME_RECORDS_MAX])))
            if segment.size_bytes >= SEGMENT_BYTES:
                self.close()

    def _open(self) -> OpenSegment:
        if self._segment is None:
            name = SegmentName(Kind.HISTORY, self._host, self._number)
            self._segment = OpenSegment.create(self._folder, name)
            if self._segment is None:
                raise WrongShape(f"{self._folder / str(name)} exists already: give an empty folder")
            self._number += 1
        return self._segment

    def close(self) -> None:
        if self._segment is not None:
            self._segment.sync()
            self._segment.seal()
            self._segment = None
