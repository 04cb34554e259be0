"""Segments that come to a journal all at once or not at all, and what those that came so far told.

    <journal>/<cluster>/.export/known.jsonl.zst   what was exported so far, a line each, in an order of the caller's
    <journal>/<cluster>/.export/staged/           what an export that is under way has written
    <journal>/<cluster>/.export/ready/            an export that is complete; its segments move up to the journal

An export is complete by one rename, of `staged` to `ready`. What a killed process has left in `staged` is removed by
the next one, what it left in `ready` is brought to its end. So each record comes into the journal once, and a reader of
the journal, which sees none of these folders, never finds a part of a segment.
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
from fairlead.journal.segments import COMPRESSION_LEVEL, OpenSegment, SegmentName, sync_path
from fairlead.journal.writer import FRAME_RECORDS_MAX, NUMBERS_A_SECOND

# In the place of a host's name: no host has this one.
EXPORT_HOST = "export"
SEGMENT_BYTES = 64 << 20
FRAME_BYTES_MAX = 8 << 20

_PLACE = ".export"
_KNOWN = "known.jsonl.zst"
_encode = msgspec.json.Encoder().encode


class CannotExport(FixRequest):
    """The folder that an export is to be written to can't be used."""


class ExportIsBusy(RetryLater):
    """Another process exports to the same folder."""


class BrokenExport(GiveUp):
    """What was exported so far can't be read."""


class Export:
    """One export to the folder of a cluster, by this process alone. Nothing of it can be seen before `commit`."""

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
        """The lines that the exports before this one remembered, in their order."""
        path = self._place / _KNOWN
        if not path.exists():
            return
        try:
            with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as lines:
                yield from io.BufferedReader(lines)
        except zstandard.ZstdError as broken:
            raise broken_export(path, broken) from broken

    def remember(self, line: msgspec.Struct) -> None:
        """Have the next export find this among `known`."""
        self._known.write(self._known_lines.compress(_encode(line) + b"\n"))

    def add(self, record: msgspec.Struct, size_bytes: int) -> None:
        """Write a record of a history."""
        self._records.append(record)
        self._records_bytes += size_bytes
        if len(self._records) >= FRAME_RECORDS_MAX or self._records_bytes >= FRAME_BYTES_MAX:
            self._write_frame()

    def commit(self) -> None:
        """Bring what was added into the journal, in one step."""
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
        """Leave the journal as it was."""
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
        # As in the server's journal, a name never comes again, though segments that were read are deleted.
        self._number = max(self._number + 1, int(time.time() * NUMBERS_A_SECOND))
        while (self._folder / str(SegmentName(Kind.HISTORY, EXPORT_HOST, self._number))).exists():
            self._number += 1
        segment = OpenSegment.create(self._staged, SegmentName(Kind.HISTORY, EXPORT_HOST, self._number))
        if segment is None:
            raise ExportIsBusy(f"{self._staged}: somebody else writes to this folder")
        return segment

    def _seal(self) -> None:
        if self._segment is not None:
            self._segment.sync()
            self._segment.seal()
            self._segment = None
            self.segments += 1


@contextmanager
def open_export(folder: Path) -> Iterator[Export]:
    """An export to the folder of a cluster, which is none without `commit`; what an earlier one left is seen to."""
    try:
        (folder / _PLACE).mkdir(parents=True, exist_ok=True)
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
    """The refusal of what was exported so far, with what to do."""
    return BrokenExport(
        f"{path} is damaged ({reason}): remove {path.parent}, and all is exported again; what is in the lake twice "
        "does no harm"
    )


def _bring_to_end(folder: Path) -> None:
    """Move what a complete export has written to its place; each step may have been taken already."""
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
