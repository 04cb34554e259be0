"""Synthetic journals of three clusters: traffic with floods, histories with defects, and unreadable segments.

The same scale and seed give the same bytes. All planted defects are in a manifest in the journals' folder, which ingest
ignores, since it is not a segment. An unreadable segment is a spoilt copy of a sound one under another name: so that
its content affects no other result.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import zstandard

from fairlead.journal.records import SCHEMA_VERSION
from fairlead.journal.segments import COMPRESSION_LEVEL, SegmentName, read_segment
from fairlead.pipeline.synth.histories import MANIFEST_FILE as HISTORIES_FILE
from fairlead.pipeline.synth.histories import HistoryShape, Manifest, write_histories
from fairlead.pipeline.synth.traffic import MONDAY_US, Flood, JournalInUse, TrafficShape, write_traffic

MANIFEST_FILE = "manifest.json"
CLUSTERS = ("east", "north", "west")
# Records and runs at scale 1: a day of three quiet clusters.
TASK_RECORDS, RUNS = 300_000, 1_000
TASK_QUEUES = 4
# Seconds by which the clocks of clusters are ahead.
CLOCKS_AHEAD_S = {"north": 3600.0}
YEAR_2100_US = 4_102_444_800_000_000
UNKNOWN_FIELD, UNKNOWN_KIND, UNKNOWN_RECORDS = "colour", "parked", 3
_DAY_S = 86_400.0

Notify = Callable[[str, int], None]


class PlantedFlood(msgspec.Struct, frozen=True):
    """A planted flood. The job must report it if it starves other keys, and must not report it otherwise."""

    cluster: str
    flood: Flood


class Damaged(msgspec.Struct, frozen=True):
    """A spoilt segment: none of its records may be ingested."""

    cluster: str
    segment: str
    damage: str


class JournalManifest(msgspec.Struct, frozen=True):
    """The journals written, and the planted defects."""

    scale: float
    seed: int
    clusters: tuple[str, ...]
    task_records: int
    floods: list[PlantedFlood]
    damaged: list[Damaged]
    histories: Manifest
    # Copies of sound segments under other names; ingest must count their records once.
    copied: list[Damaged]
    # Number of records with an unknown field or of an unknown kind, by name.
    unknown_fields: dict[str, int]
    unknown_kinds: dict[str, int]


def work_of(scale: float) -> int:
    """Return the approximate sum of all numbers passed to `notify`: task records and runs."""
    return round(TASK_RECORDS * scale) + _runs(scale)


def write_journals(journal: Path, *, scale: float, seed: int, notify: Notify) -> JournalManifest:
    """Write the journals and the manifest into an empty folder; `notify` is called with the part and its new records.

    A small scale shortens the time range and keeps the rate: rare events in an hour would look like chance.
    """
    if journal.exists() and (not journal.is_dir() or any(journal.iterdir())):
        raise JournalInUse(f"--journal {journal}: the folder is not empty: give an empty or a new one")
    task_records = 0
    floods: list[PlantedFlood] = []
    for place, cluster in enumerate(CLUSTERS):
        shape = TrafficShape(
            rows=round(TASK_RECORDS * scale / len(CLUSTERS)),
            seed=seed * len(CLUSTERS) + place,
            cluster=cluster,
            start_us=MONDAY_US + round(CLOCKS_AHEAD_S.get(cluster, 0.0) * 1e6),
            span_s=_DAY_S * min(1.0, scale),
            task_queues=TASK_QUEUES,
        )
        made = write_traffic(journal, shape, notify=partial(notify, f"traffic of {cluster}"))
        task_records += made.rows
        floods += [PlantedFlood(cluster, flood) for flood in made.floods]
    histories = write_histories(
        journal,
        HistoryShape(runs=_runs(scale), seed=seed, clusters=CLUSTERS, clocks_ahead_s=CLOCKS_AHEAD_S),
        notify=lambda runs: notify("histories", runs),
    )
    write_unknown(journal / CLUSTERS[0])
    notify("unknown records", UNKNOWN_RECORDS)
    manifest = JournalManifest(
        scale, seed, CLUSTERS, task_records + UNKNOWN_RECORDS, floods, damage_segments(journal), histories,
        [_spoil(journal / CLUSTERS[1], "history", "copied", lambda content: content)],
        {UNKNOWN_FIELD: UNKNOWN_RECORDS}, {UNKNOWN_KIND: UNKNOWN_RECORDS},
    )  # fmt: skip
    # The manifest contains the content of this file.
    (journal / HISTORIES_FILE).unlink()
    (journal / MANIFEST_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    return manifest


def read_manifest(journal: Path) -> JournalManifest:
    """Read the manifest that `write_journals` wrote."""
    return msgspec.json.decode((journal / MANIFEST_FILE).read_bytes(), type=JournalManifest)


def damage_segments(journal: Path) -> list[Damaged]:
    """Add spoilt copies of sound segments: torn, bit flipped, foreign, wrong clock, later schema."""
    east, north, west = CLUSTERS
    newer = _spoil(journal / west, "task", "newer", lambda content: content)
    file = journal / west / newer.segment
    later = file.rename(file.with_name(file.name.replace(f".v{SCHEMA_VERSION}.", f".v{SCHEMA_VERSION + 1}.")))
    return [
        Damaged(west, later.name, "newer"),
        _spoil(journal / east, "history", "future", _future),
        _spoil(journal / east, "task", "torn", _torn),
        _spoil(journal / north, "task", "flipped", _flipped),
        _spoil(journal / west, "history", "foreign", _foreign),
    ]


def write_unknown(folder: Path) -> None:
    """Add records of a kind and with a field that this release does not know."""
    model = max(folder.glob("task.*.zst"))
    record = next(read_segment(model)) | {"kind": UNKNOWN_KIND, UNKNOWN_FIELD: "red"}
    name = SegmentName.parse(model.name)
    path = folder / str(SegmentName(name.kind, f"{name.host}-later", name.number))
    path.write_bytes(_compress(msgspec.json.Encoder().encode_lines([record] * UNKNOWN_RECORDS)))


def _compress(lines: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True).compress(lines)


def _future(content: bytes) -> bytes:
    """Add a record of the year 2100, as a server with a wrong clock would."""
    lines = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    record = msgspec.json.decode(lines.partition(b"\n")[0]) | {"time_us": YEAR_2100_US}
    return content + _compress(msgspec.json.encode(record) + b"\n")


def _spoil(folder: Path, kind: str, damage: str, spoil: Callable[[bytes], bytes]) -> Damaged:
    model = max(folder.glob(f"{kind}.*.zst"))
    name = SegmentName.parse(model.name)
    copy = SegmentName(name.kind, name.host, name.number + 1)
    (folder / str(copy)).write_bytes(spoil(model.read_bytes()))
    return Damaged(folder.name, str(copy), damage)


def _torn(content: bytes) -> bytes:
    """Cut off the end, like a disk that lost power."""
    return content[:-9]


def _flipped(content: bytes) -> bytes:
    """Flip one bit."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :]


def _foreign(_content: bytes) -> bytes:
    """Return a sound file with other contents than journal records."""
    lines = b'{"level": "info", "message": "this is a log"}\n' * 3
    return _compress(lines)


def _runs(scale: float) -> int:
    return max(1, round(RUNS * scale))
