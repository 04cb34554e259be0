"""Finds the segments of a journal by their file names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from fairlead.core.errors import FixRequest
from fairlead.journal import SCHEMA_VERSION, Kind, SegmentLabel

DIGEST_READ_BYTES = 1 << 20


class NoJournal(FixRequest):
    """The folder is not a journal, or no segment has been sealed in it yet."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed segment, which never changes. `version` and `kind` are from its name and may be unknown."""

    cluster: str
    name: str
    path: Path
    bytes: int
    version: int = SCHEMA_VERSION
    kind: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The identity of the segment."""
        return (self.cluster, self.name)

    def digest(self) -> str:
        """Return the XXH64 of the bytes on disk."""
        digest = xxhash.xxh64()
        with self.path.open("rb") as file:
            while chunk := file.read(DIGEST_READ_BYTES):
                digest.update(chunk)
        return digest.hexdigest()


def find_segments(journal: Path, kinds: Sequence[str] = tuple(Kind)) -> list[Segment]:
    """Return the sealed segments of these kinds, of any schema version, sorted by cluster and name.

    Other files are ignored, such as segments that are still being written.
    """
    return [segment for segment in _sealed(journal) if segment.kind in kinds]


def find_unknown_kinds(journal: Path) -> list[Segment]:
    """Return the sealed segments of kinds that this release does not know."""
    return [segment for segment in _sealed(journal) if segment.kind not in set(Kind)]


def _sealed(journal: Path) -> Iterator[Segment]:
    if not journal.is_dir():
        raise NoJournal(
            f"{journal}: there is no journal in this folder: give --journal the folder the server writes to"
        )
    for folder in sorted(journal.iterdir()):
        if folder.is_dir() and not folder.name.startswith((".", "_")):
            yield from _segments_of(folder)


def find_sealed(journal: Path) -> list[Segment]:
    """Return all sealed segments; raise `NoJournal` if no segment is sealed."""
    segments = find_segments(journal)
    if not segments:
        raise NoJournal(f"{journal}: nothing was sealed in this journal yet: wait a minute, or stop the server")
    return segments


def _segments_of(folder: Path) -> Iterator[Segment]:
    for file in sorted(folder.iterdir()):
        label = SegmentLabel.read(file.name)
        if label is not None:
            yield Segment(folder.name, file.name, file, file.stat().st_size, label.version, label.kind)
