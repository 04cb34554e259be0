"""Adds segments to a journal atomically, and remembers what earlier exports added.

    <journal>/<cluster>/.export/known.jsonl.zst   what was exported so far, one line each, in the caller's order
    <journal>/<cluster>/.export/staged/           segments of the running export
    <journal>/<cluster>/.export/ready/            segments of a complete export, to be moved into the journal
    <journal>/<cluster>/.export/<source>/         the same for a source with a ledger, which has several files
                                                  `known.<number>.jsonl.zst`, one for each commit

One rename, of `staged` to `ready`, completes an export. After a kill, the next process removes the files in `staged`,
and finishes moving the files in `ready`. So each record enters the journal once. Readers of the journal ignore these
folders, so they never see a partial segment.
"""

import fcntl
import io
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import zstandard

from fairlead.core.errors import FixRequest, GiveUp, RetryLater
from fairlead.journal.records import Kind, encode_records
from fairlead.journal.segments import (
    COMPRESSION_LEVEL,
    OpenSegment,
    SegmentLabel,
    SegmentName,
    make_private_folder,
    sync_path,
)
from fairlead.journal.writer import FRAME_RECORDS_MAX, NUMBERS_A_SECOND

# Takes the place of the host's name in segment names; no host has this name.
EXPORT_HOST = "export"
SEGMENT_BYTES = 64 << 20
FRAME_BYTES_MAX = 8 << 20

_PLACE = ".export"
_KNOWN = "known.jsonl.zst"
_encode = msgspec.json.Encoder().encode


class CannotExport(FixRequest):
    """The folder of the export can't be used."""


class ExportIsBusy(RetryLater):
    """Another process exports to the same folder."""


class BrokenExport(GiveUp):
    """The file `known.jsonl.zst` is damaged."""


class Export:
    """One export to the folder of a cluster, which this process has locked; nothing is visible before `commit`."""

    def __init__(self, folder: Path, place: Path, known: str = _KNOWN) -> None:
        """Use `open_export`."""
        self._folder = folder
        self._place = place
        self._staged = self._place / "staged"
        self._compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True)
        self._segment: OpenSegment | None = None
        self._records: list[msgspec.Struct] = []
        self._records_bytes = 0
        self._number = 0
        self._staged.mkdir()
        self._known = (self._staged / known).open("wb")
        self._known_lines = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True).compressobj()
        self.segments = 0

    def known(self) -> Iterator[bytes]:
        """Yield the lines that earlier exports remembered, in their order."""
        path = self._place / _KNOWN
        if path.exists():
            yield from _lines_of(path)

    def remember(self, line: msgspec.Struct) -> None:
        """Store a line for the next export, which finds it in `known`."""
        self._known.write(self._known_lines.compress(_encode(line) + b"\n"))

    def add(self, record: msgspec.Struct, size_bytes: int) -> None:
        """Write a history record."""
        self._records.append(record)
        self._records_bytes += size_bytes
        if len(self._records) >= FRAME_RECORDS_MAX or self._records_bytes >= FRAME_BYTES_MAX:
            self._write_frame()

    def commit(self) -> None:
        """Move the added records into the journal atomically."""
        self._write_frame()
        self._seal()
        self._known.write(self._known_lines.flush())
        self._known.flush()
        os.fsync(self._known.fileno())
        self._known.close()
        sync_path(self._staged)
        self._staged.rename(self._place / "ready")
        sync_path(self._place)
        _bring_to_end(self._folder, self._place)

    def abandon(self) -> None:
        """Discard the export; the journal does not change."""
        self._known.close()
        shutil.rmtree(self._staged, ignore_errors=True)

    def _write_frame(self) -> None:
        if not self._records:
            return
        segment = self._segment = self._segment or self._begin()
        segment.append(self._compressor.compress(encode_records(self._records)))
        self._records.clear()
        self._records_bytes = 0
        if segment.size_bytes >= SEGMENT_BYTES:
            self._seal()

    def _begin(self) -> OpenSegment:
        # Names are never reused, as in the server's journal, even after segments were read and deleted.
        self._number = max(self._number + 1, int(time.time() * NUMBERS_A_SECOND))
        while (self._folder / str(SegmentName(Kind.HISTORY, EXPORT_HOST, self._number))).exists():
            self._number += 1
        segment = OpenSegment.create(self._staged, SegmentName(Kind.HISTORY, EXPORT_HOST, self._number))
        if segment is None:
            raise ExportIsBusy(f"{self._staged}: another process writes to this folder")
        return segment

    def _seal(self) -> None:
        if self._segment is not None:
            self._segment.sync()
            self._segment.seal()
            self._segment = None
            self.segments += 1


class Ledger:
    """A series of exports of one source, each committed on its own, so that a kill loses only the last one.

    Each commit adds a file of what it exported: the cost of a commit does not grow with the size of the source.
    """

    def __init__(self, folder: Path, place: Path) -> None:
        """Use `open_ledger`."""
        self._folder = folder
        self.place = place
        self._export = self._begin()
        # Lines and bytes that the next commit adds, and segments that were written.
        self.lines = 0
        self.size_bytes = 0
        self.segments = 0

    @property
    def parts(self) -> int:
        """Number of files that `known` reads."""
        return len(self._parts())

    def known(self) -> Iterator[bytes]:
        """Yield the lines that were remembered; a later line replaces an earlier one of the same object."""
        for path in self._parts():
            yield from _lines_of(path)

    def add(self, record: msgspec.Struct, size_bytes: int) -> None:
        """Write a history record."""
        self._export.add(record, size_bytes)
        self.size_bytes += size_bytes

    def remember(self, line: msgspec.Struct) -> None:
        """Store a line for `known`."""
        self._export.remember(line)
        self.lines += 1

    def commit(self) -> None:
        """Move the added records into the journal atomically, and begin the next export."""
        if self.lines:
            self._export.commit()
            self.segments += self._export.segments
            self._export = self._begin()
            self.lines = self.size_bytes = 0

    def replace(self, lines: Iterable[msgspec.Struct]) -> None:
        """Replace all lines that `known` yields; all records must be committed."""
        before = self._parts()
        for line in lines:
            self.remember(line)
        self.commit()
        for path in before:
            path.unlink()

    def abandon(self) -> None:
        """Discard what was not committed."""
        self._export.abandon()

    def _begin(self) -> Export:
        last = max((int(path.name.split(".")[1]) for path in self._parts()), default=0)
        return Export(self._folder, self.place, f"known.{last + 1:09d}.jsonl.zst")

    def _parts(self) -> list[Path]:
        return sorted(self.place.glob("known.[0-9]*.jsonl.zst"))


@contextmanager
def open_export(folder: Path) -> Iterator[Export]:
    """Open an export to the folder of a cluster, and recover an interrupted one; it is discarded without `commit`."""
    with _locked(folder):
        place = folder / _PLACE
        _recover(folder, place)
        export = Export(folder, place)
        try:
            yield export
        finally:
            export.abandon()


@contextmanager
def open_ledger(folder: Path, source: str) -> Iterator[Ledger]:
    """Open the ledger of a source in the folder of a cluster; `source` must be a valid name of a folder."""
    with _locked(folder):
        place = folder / _PLACE / source
        make_private_folder(place)
        _recover(folder, place)
        ledger = Ledger(folder, place)
        try:
            yield ledger
        finally:
            ledger.abandon()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder of a cluster against other exports: names of segments depend on the existing ones."""
    try:
        make_private_folder(folder / _PLACE)
        lock = (folder / _PLACE / "lock").open("w")
    except OSError as refused:
        raise CannotExport(f"can't write to {folder}: {refused.strerror}; give another --journal") from refused
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExportIsBusy(f"{folder}: another export writes to this folder: wait for its end") from None
        yield


def broken_export(path: Path, reason: object) -> BrokenExport:
    """Return the error for a damaged `known` file, with what to do."""
    return BrokenExport(
        f"{path} is damaged ({reason}): remove {path.parent} to export everything again; duplicates in the lake "
        "do no harm"
    )


def _recover(folder: Path, place: Path) -> None:
    """Finish a complete export, and remove the rest of an incomplete one."""
    _bring_to_end(folder, place)
    shutil.rmtree(place / "staged", ignore_errors=True)


def _lines_of(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as lines:
            yield from io.BufferedReader(lines)
    except zstandard.ZstdError as broken:
        raise broken_export(path, broken) from broken


def _bring_to_end(folder: Path, place: Path) -> None:
    """Move the segments of a complete export into the journal; some may have been moved before a kill."""
    ready = place / "ready"
    if not ready.is_dir():
        return
    for segment in sorted(ready.glob("*.zst")):
        if SegmentLabel.read(segment.name) is not None:
            segment.rename(folder / segment.name)
    sync_path(folder)
    for known in ready.glob("known.*"):
        known.replace(place / known.name)
    sync_path(place)
    shutil.rmtree(ready)
