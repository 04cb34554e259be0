"""Journals of three clusters, made up: traffic with floods, histories with defects, and segments that can't be read.

The same scale and seed give the same bytes. All that was planted is in a manifest in the folder of the journals, which
is no segment and so in nobody's way. A segment that can't be read is the spoilt copy of a sound one, under a name of
its own: so nothing that is told of the rest depends on what was in it.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import zstandard

from fairlead.journal.segments import COMPRESSION_LEVEL, SegmentName
from fairlead.pipeline.synth.histories import MANIFEST_FILE as HISTORIES_FILE
from fairlead.pipeline.synth.histories import HistoryShape, Manifest, write_histories
from fairlead.pipeline.synth.traffic import Flood, JournalInUse, TrafficShape, write_traffic

MANIFEST_FILE = "manifest.json"
CLUSTERS = ("east", "north", "west")
# What a scale of 1 is: a day of three quiet clusters.
TASK_RECORDS, RUNS = 300_000, 1_000
TASK_LISTS = 4
_DAY_S = 86_400.0

Tell = Callable[[str, int], None]


class PlantedFlood(msgspec.Struct, frozen=True):
    """A flood, and where it was planted; it must be found if it starves others, and must not be if it does not."""

    cluster: str
    flood: Flood


class Damaged(msgspec.Struct, frozen=True):
    """A segment that was spoilt: none of it may come into a table."""

    cluster: str
    segment: str
    damage: str


class JournalManifest(msgspec.Struct, frozen=True):
    """What was made and what was planted in it."""

    scale: float
    seed: int
    clusters: tuple[str, ...]
    task_records: int
    floods: list[PlantedFlood]
    damaged: list[Damaged]
    histories: Manifest


def work_of(scale: float) -> int:
    """What `tell` will have been told when all is made, about: records of tasks and runs."""
    return round(TASK_RECORDS * scale) + _runs(scale)


def write_journals(journal: Path, *, scale: float, seed: int, tell: Tell) -> JournalManifest:
    """Write the journals and the manifest into an empty folder; `tell` hears what is made, and how much was just now.

    Small ones are shorter, not thinner: what is rare in an hour can't be told from chance.
    """
    if journal.exists() and (not journal.is_dir() or any(journal.iterdir())):
        raise JournalInUse(f"--journal {journal}: something is there already: give an empty folder, or a new one")
    task_records = 0
    floods: list[PlantedFlood] = []
    for place, cluster in enumerate(CLUSTERS):
        shape = TrafficShape(
            rows=round(TASK_RECORDS * scale / len(CLUSTERS)),
            seed=seed * len(CLUSTERS) + place,
            cluster=cluster,
            span_s=_DAY_S * min(1.0, scale),
            task_lists=TASK_LISTS,
        )
        made = write_traffic(journal, shape, tell=lambda rows, cluster=cluster: tell(f"traffic of {cluster}", rows))  # type: ignore[misc]
        task_records += made.rows
        floods += [PlantedFlood(cluster, flood) for flood in made.floods]
    histories = write_histories(
        journal,
        HistoryShape(runs=_runs(scale), seed=seed, clusters=CLUSTERS),
        tell=lambda runs: tell("histories", runs),
    )
    manifest = JournalManifest(scale, seed, CLUSTERS, task_records, floods, damage_segments(journal), histories)
    # One manifest is enough.
    (journal / HISTORIES_FILE).unlink()
    (journal / MANIFEST_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    return manifest


def read_manifest(journal: Path) -> JournalManifest:
    """What `write_journals` left in the folder."""
    return msgspec.json.decode((journal / MANIFEST_FILE).read_bytes(), type=JournalManifest)


def damage_segments(journal: Path) -> list[Damaged]:
    """Put spoilt copies beside sound segments: a torn one, one with a flipped bit, and one of something else."""
    east, north, west = CLUSTERS
    return [
        _spoil(journal / east, "task", "torn", _torn),
        _spoil(journal / north, "task", "flipped", _flipped),
        _spoil(journal / west, "history", "foreign", _foreign),
    ]


def _spoil(folder: Path, kind: str, damage: str, spoil: Callable[[bytes], bytes]) -> Damaged:
    model = max(folder.glob(f"{kind}.*.zst"))
    name = SegmentName.parse(model.name)
    copy = SegmentName(name.kind, name.host, name.number + 1)
    (folder / str(copy)).write_bytes(spoil(model.read_bytes()))
    return Damaged(folder.name, str(copy), damage)


def _torn(content: bytes) -> bytes:
    """As a disk leaves it that lost its power: without its end."""
    return content[:-9]


def _flipped(content: bytes) -> bytes:
    """As a bad cable leaves it: one bit is another."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :]


def _foreign(_content: bytes) -> bytes:
    """As a wrong copy leaves it: whole, and something else."""
    lines = b'{"level": "info", "message": "this is a log"}\n' * 3
    return zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True).compress(lines)


def _runs(scale: float) -> int:
    return max(1, round(RUNS * scale))
