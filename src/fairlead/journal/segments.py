"""The files of the journal: lines of JSON in zstd frames, each with a checksum, sealed by a rename.

    <journal>/<cluster>/<kind>.v1.<host>.<number>.jsonl.zst         sealed: whole, and never changed again
    <journal>/<cluster>/<kind>.v1.<host>.<number>.jsonl.zst.open    being written, by the process that has it locked

A process that is killed leaves an open segment, perhaps with half a frame at its end. Whoever comes next cuts that off
and seals the rest.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import msgspec
import zstandard

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.journal.records import SCHEMA_VERSION, Kind

COMPRESSION_LEVEL = 1
READ_BYTES = 1 << 16
HOST_SLUG_CHARACTERS_MAX = 100
OPEN_SUFFIX = ".open"

_NAME = re.compile(r"(?P<kind>[a-z]+)\.v(?P<version>\d+)\.(?P<host>[A-Za-z0-9_-]+)\.(?P<number>\d{12})\.jsonl\.zst")


class NoSegment(FixRequest):
    """A file is no segment of the journal, by its name."""


class UnknownSchema(FixRequest):
    """A segment was written by a release with another schema."""


class BadSegment(GiveUp):
    """A sealed segment is not whole: it was changed after it was sealed, or the disk has failed."""


class SegmentName(NamedTuple):
    """What the name of a segment says. Numbers of one host and kind rise with time."""

    kind: Kind
    host: str
    number: int

    @classmethod
    def parse(cls, name: str) -> Self:
        """Read the name of a file, sealed or open."""
        found = _NAME.fullmatch(name.removesuffix(OPEN_SUFFIX))
        if found is None or found["kind"] not in set(Kind):
            raise NoSegment(f"{name!r} is no segment of a journal: those are named like task.v1.HOST.NUMBER.jsonl.zst")
        if int(found["version"]) != SCHEMA_VERSION:
            raise UnknownSchema(
                f"{name!r} has schema version {found['version']}, this release reads {SCHEMA_VERSION}: "
                "use the release that wrote it"
            )
        return cls(Kind(found["kind"]), found["host"], int(found["number"]))

    def __str__(self) -> str:
        return f"{self.kind}.v{SCHEMA_VERSION}.{self.host}.{self.number:012d}.jsonl.zst"


def host_slug(host: str) -> str:
    """A host's name as it can be part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", host).strip("-")[:HOST_SLUG_CHARACTERS_MAX] or "host"


class OpenSegment:
    """A segment that is being written, by this process alone."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        """Use `create`."""
        self._file = file
        self._path = path
        self.size_bytes = 0
        self._safe_bytes = 0

    @classmethod
    def create(cls, folder: Path, name: SegmentName) -> Self | None:
        """Begin a segment; None if the name is taken, or somebody took the file for one that was left behind."""
        path = folder / f"{name}{OPEN_SUFFIX}"
        if (folder / str(name)).exists():
            return None
        try:
            file = path.open("xb", buffering=0)
        except FileExistsError:
            return None
        if not _lock(file, path):
            file.close()
            return None
        sync_path(folder)
        return cls(file, path)

    def append(self, frame: bytes) -> None:
        """Write a frame; it is safe when `sync` has returned."""
        left = memoryview(frame)
        while left:
            left = left[self._file.write(left) :]
        self.size_bytes += len(frame)

    def sync(self) -> None:
        """Bring what was written to the disk."""
        os.fsync(self._file.fileno())
        self._safe_bytes = self.size_bytes

    def seal(self) -> None:
        """Let others read it; it is whole from now on. What is not safe is cut off."""
        _seal(self._file, self._path, self._safe_bytes)

    def abandon(self) -> None:
        """Leave it as it is, for the next process to see to."""
        self._file.close()


def recover(folder: Path) -> list[Path]:
    """Seal what processes that are gone have left open, up to the last whole frame of each; the sealed segments."""
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
                    for end, _ in _frames(file):
                        whole_bytes = end
                except _Torn:
                    pass
                if (done := _seal(file, path, whole_bytes)) is not None:
                    sealed.append(done)
    return sealed


def read_segment(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a segment, in order; of one that is open, as far as it is whole."""
    name = SegmentName.parse(path.name)
    decode = msgspec.json.Decoder(dict[str, Any]).decode_lines
    whole_bytes = 0
    with path.open("rb", buffering=0) as file:
        try:
            for end, lines in _frames(file):
                whole_bytes = end
                yield from decode(lines)
        except (_Torn, msgspec.DecodeError) as wrong:
            if not path.name.endswith(OPEN_SUFFIX):
                raise BadSegment(
                    f"{name} is damaged after byte {whole_bytes} ({wrong}): move it away, or restore it from a copy"
                ) from wrong


class _Torn(Exception):
    """A frame is not whole."""


def _frames(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Each whole frame from the beginning of a file, with the byte after it; raises `_Torn` where there is none."""
    decompressor = zstandard.ZstdDecompressor()
    end = 0
    left = b""
    while True:
        frame = decompressor.decompressobj()
        parts = []
        begun = False
        while not frame.eof:
            chunk = left or file.read(READ_BYTES)
            left = b""
            if not chunk:
                if begun:
                    raise _Torn("it ends within a frame")
                return
            begun = True
            end += len(chunk)
            try:
                parts.append(frame.decompress(chunk))
            except zstandard.ZstdError as wrong:
                raise _Torn(str(wrong)) from wrong
        left = frame.unused_data
        end -= len(left)
        yield end, b"".join(parts)


def _lock(file: BinaryIO, path: Path) -> bool:
    """Have an open segment to oneself; False if another process has it, or has been done with it meanwhile."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def _seal(file: BinaryIO, path: Path, size_bytes: int) -> Path | None:
    """Keep so many bytes of an open segment, under its final name; one with none is removed."""
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
    """Bring a file or a folder to the disk: a name is safe when its folder is."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
