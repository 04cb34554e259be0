"""The files of the journal: lines of JSON in zstd frames with checksums, sealed by a rename.

    <journal>/<cluster>/<kind>.v1.<host>.<number>.jsonl.zst         sealed: complete, and never changed again
    <journal>/<cluster>/<kind>.v1.<host>.<number>.jsonl.zst.open    being written by the process that holds its lock

A killed process leaves an open segment, possibly with a partial frame at its end. The next process cuts off the partial
frame and seals the rest.
"""

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import msgspec

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.journal.frames import BadFrame, read_frames
from fairlead.journal.records import SCHEMA_VERSION, Kind

COMPRESSION_LEVEL = 1
HOST_SLUG_CHARACTERS_MAX = 100
OPEN_SUFFIX = ".open"

_NAME = re.compile(r"(?P<kind>[a-z]+)\.v(?P<version>\d+)\.(?P<host>[A-Za-z0-9_-]+)\.(?P<number>\d{12})\.jsonl\.zst")


class NoSegment(FixRequest):
    """The file name is not the name of a journal segment."""


class UnknownSchema(FixRequest):
    """A segment was written by a release with another schema."""


class BadSegment(GiveUp):
    """A sealed segment is damaged: it was changed after it was sealed, or the disk failed."""


class SegmentName(NamedTuple):
    """The parts of a segment's name. The numbers of one host and kind increase with time."""

    kind: Kind
    host: str
    number: int

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parse the file name of a sealed or an open segment."""
        found = _NAME.fullmatch(name.removesuffix(OPEN_SUFFIX))
        if found is None or found["kind"] not in set(Kind):
            raise NoSegment(f"{name!r} is not a journal segment: segments are named like task.v1.HOST.NUMBER.jsonl.zst")
        if int(found["version"]) != SCHEMA_VERSION:
            raise UnknownSchema(
                f"{name!r} has schema version {found['version']}, but this release reads {SCHEMA_VERSION}: "
                "use the release that wrote it"
            )
        return cls(Kind(found["kind"]), found["host"], int(found["number"]))

    def __str__(self) -> str:
        return f"{self.kind}.v{SCHEMA_VERSION}.{self.host}.{self.number:012d}.jsonl.zst"


class SegmentLabel(NamedTuple):
    """The kind and the schema version in a segment's name; both may be unknown to this release."""

    kind: str
    version: int

    @classmethod
    def read(cls, name: str) -> Self | None:
        """Read the name of a sealed segment; None if it is not one."""
        found = _NAME.fullmatch(name)
        return None if found is None else cls(found["kind"], int(found["version"]))


def host_slug(host: str) -> str:
    """Convert a host's name into a valid part of a file name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", host).strip("-")[:HOST_SLUG_CHARACTERS_MAX] or "host"


class OpenSegment:
    """A segment that this process is writing; no other process can."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        """Use `create`."""
        self._file = file
        self._path = path
        self.size_bytes = 0
        self._safe_bytes = 0

    @classmethod
    def create(cls, folder: Path, name: SegmentName) -> Self | None:
        """Create a segment; None if the name is taken, or if another process has just recovered the new file."""
        path = folder / f"{name}{OPEN_SUFFIX}"
        if (folder / str(name)).exists():
            return None
        try:
            file = open(path, "xb", buffering=0, opener=partial(_open_private, folder))  # noqa: SIM115
        except FileExistsError:
            return None
        if not _lock(file, path):
            file.close()
            return None
        sync_path(folder)
        return cls(file, path)

    def append(self, frame: bytes) -> None:
        """Write a frame; it is on disk after the next `sync`."""
        left = memoryview(frame)
        while left:
            left = left[self._file.write(left) :]
        self.size_bytes += len(frame)

    def sync(self) -> None:
        """Flush the written frames to disk."""
        os.fsync(self._file.fileno())
        self._safe_bytes = self.size_bytes

    def seal(self) -> None:
        """Make the segment visible to readers; frames after the last `sync` are cut off."""
        _seal(self._file, self._path, self._safe_bytes)

    def abandon(self) -> None:
        """Close the segment without sealing it; the next process recovers it."""
        self._file.close()


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents, accessible only to the server's own user."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def _open_private(folder: Path, path: str, flags: int) -> int:
    """Create a file that the server's user can read and write, and its group can read if it may read the folder."""
    is_shared = folder.stat().st_mode & stat.S_IRGRP
    return os.open(path, flags, 0o640 if is_shared else 0o600)


def recover(folder: Path) -> list[Path]:
    """Seal the segments that dead processes left open, up to the last complete frame; return the sealed files."""
    sealed = []
    for path in sorted(folder.glob(f"*{OPEN_SUFFIX}")):
        try:
            SegmentName.parse(path.name)
        except (NoSegment, UnknownSchema):
            continue
        try:
            file = path.open("r+b", buffering=0)
        except FileNotFoundError:
            continue
        with file:
            if _lock(file, path):
                whole_bytes = 0
                try:
                    for frame in read_frames(file):
                        whole_bytes = frame.end
                except BadFrame:
                    pass
                if (done := _seal(file, path, whole_bytes)) is not None:
                    sealed.append(done)
    return sealed


def read_segment(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a segment in order; of a segment that is still open, only those of complete frames."""
    name = SegmentName.parse(path.name)
    decode = msgspec.json.Decoder(dict[str, Any]).decode_lines
    whole_bytes = 0
    with path.open("rb", buffering=0) as file:
        try:
            for frame in read_frames(file):
                whole_bytes = frame.end
                yield from decode(frame.content)
        except (BadFrame, msgspec.DecodeError) as wrong:
            if not path.name.endswith(OPEN_SUFFIX):
                raise BadSegment(
                    f"{name} is damaged after byte {whole_bytes} ({wrong}): move it away, or restore it from a copy"
                ) from wrong


def _lock(file: BinaryIO, path: Path) -> bool:
    """Lock an open segment; False if another process holds the lock, or has sealed or removed the file meanwhile."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def _seal(file: BinaryIO, path: Path, size_bytes: int) -> Path | None:
    """Truncate an open segment to `size_bytes` and give it its final name; an empty one is removed."""
    with file:
        if not size_bytes:
            path.unlink()
            return None
        file.truncate(size_bytes)
        os.fsync(file.fileno())
        sealed = path.with_name(path.name.removesuffix(OPEN_SUFFIX))
        path.rename(sealed)
        sync_path(path.parent)
        return sealed


def sync_path(path: Path) -> None:
    """Flush a file or a folder to disk; a new file name is durable only after its folder is flushed."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
