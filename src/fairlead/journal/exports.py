"""Adds segments to a journal atomically, and remembers what earlier exports added.

    <journal>/<cluster>/.export/known.jsonl.zst   what was exported so far, one line each, in the caller's order
    <journal>/<cluster>/.export/staged/           segments of the running export
    <journal>/<cluster>/.export/ready/            segments of a complete export, to be moved into the journal

One rename, of `staged` to `ready`, completes an export. After a kill, the next process removes the files in `staged`,
and finishes moving the files in `ready`. So each record enters the journal once. Readers of the journal ignore these
folders, so they never see a partial segment.
"""

import fcntl
import io
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import zstandard

from fairlead.core.errors import FixRequest, GiveUp, RetryLater
from fairlead.journal.records import Kind, encode_records
from fairlead.journal.segments import COMPRESSION_LEVEL, OpenSegment, SegmentName, make_private_folder, sync_path
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

    def __init__(self, folder: Path) -> None:
        """Use `open_export`."""
        self._folder = folder
        self._place = folder / _PLACE
        self._staged = self._place / "staged"
        self._compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True)
        self._segment: OpenSegment | None = None
        self._records: list[msgspec.Struct] = []
        self._records_bytes = 0
        self._number = 0
        self._staged.mkdir()
        self._known = (self._staged / _KNOWN).open("wb")
        self._known_lines = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True).compressobj()
        self.segments = 0

    def known(self) -> Iterator[bytes]:
        """Yield the lines that earlier exports remembered, in their order."""
        path = self._place / _KNOWN
        if not path.exists():
            return
        try:
            with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as lines:
                yield from io.BufferedReader(lines)
        except zstandard.ZstdError as broken:
            raise broken_export(path, broken) from broken

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
        sync_path(self._staged)
        self._staged.rename(self._place / "ready")
        sync_path(self._place)
        _bring_to_end(self._folder)

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


@contextmanager
def open_export(folder: Path) -> Iterator[Export]:
    """Open an export to the folder of a cluster, and recover an interrupted one; it is discarded without `commit`."""
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
        _bring_to_end(folder)
        shutil.rmtree(folder / _PLACE / "staged", ignore_errors=True)
        export = Export(folder)
        try:
            yield export
        finally:
            export.abandon()


def broken_export(path: Path, reason: object) -> BrokenExport:
    """Return the error for a damaged `known` file, with what to do."""
    return BrokenExport(
        f"{path} is damaged ({reason}): remove {path.parent} to export everything again; duplicates in the lake "
        "do no harm"
    )


def _bring_to_end(folder: Path) -> None:
    """Move the segments of a complete export into the journal; some may have been moved before a kill."""
    place = folder / _PLACE
    ready = place / "ready"
    if not ready.is_dir():
        return
    for segment in sorted(ready.glob("*.zst")):
        if segment.name != _KNOWN:
            segment.rename(folder / segment.name)
    sync_path(folder)
    if (ready / _KNOWN).exists():
        (ready / _KNOWN).replace(place / _KNOWN)
    sync_path(place)
    shutil.rmtree(ready)
