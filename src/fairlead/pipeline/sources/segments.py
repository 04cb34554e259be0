"""Which segments a journal has, by their names alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from fairlead.core.errors import FixRequest
from fairlead.journal import Kind, NoSegment, SegmentName

DIGEST_READ_BYTES = 1 << 20


class NoJournal(FixRequest):
    """The folder is no journal, or nothing has been sealed in it yet."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed segment; sealed ones never change."""

    cluster: str
    name: str
    path: Path
    bytes: int

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others."""
        return (self.cluster, self.name)

    def digest(self) -> str:
        """XXH64 of its bytes as they are on disk."""
        digest = xxhash.xxh64()
        with self.path.open("rb") as file:
            while chunk := file.read(DIGEST_READ_BYTES):
                digest.update(chunk)
        return digest.hexdigest()


def find_segments(journal: Path, kinds: Sequence[str] = tuple(Kind)) -> list[Segment]:
    """The sealed segments of these kinds, by cluster and name. A segment of another schema version is refused.

    Other files are let be: segments that are still written, and what the server keeps beside them.
    """
    if not journal.is_dir():
        raise NoJournal(
            f"{journal}: there is no journal in this folder: give --journal the folder the server writes to"
        )
    found: list[Segment] = []
    for folder in sorted(journal.iterdir()):
        if folder.is_dir() and not folder.name.startswith((".", "_")):
            found += [segment for segment in _segments_of(folder) if SegmentName.parse(segment.name).kind in kinds]
    return found


def find_sealed(journal: Path) -> list[Segment]:
    """All of them; a journal without any is refused."""
    segments = find_segments(journal)
    if not segments:
        raise NoJournal(f"{journal}: nothing was sealed in this journal yet: wait a minute, or stop the server")
    return segments


def _segments_of(folder: Path) -> Iterator[Segment]:
    for file in sorted(folder.iterdir()):
        if not file.name.endswith(".zst"):
            continue
        try:
            SegmentName.parse(file.name)
        except NoSegment:
            continue
        yield Segment(cluster=folder.name, name=file.name, path=file, bytes=file.stat().st_size)
