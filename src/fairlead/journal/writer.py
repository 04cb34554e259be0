"""A thread that writes one kind of records: the records of an interval form a frame, frames form a segment.

The event loop never waits for the disk: it puts records into a source, and this thread takes and compresses them.
Records of a source that is not lossy are retried until they are written.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple, Protocol

import zstandard

from fairlead.journal.records import Kind
from fairlead.journal.segments import COMPRESSION_LEVEL, OpenSegment, SegmentName, host_slug
from fairlead.telemetry import get_log

FRAME_RECORDS_MAX = 10_000
# Maximum number of frames that are flushed to disk together.
FRAMES_AT_ONCE_MAX = 8
RETRY_S_MIN = 0.5
RETRY_S_MAX = 10.0
# Segment numbers per second: a number is the time in tenths of a second, or the previous number plus one. So names are
# never reused, even after segments were read and deleted.
NUMBERS_A_SECOND = 10
_NAMES_TRIED_MAX = 1000
# Reasons for dropping records.
DISK, INVALID = "disk", "invalid"

_log = get_log("journal")


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """How long records wait for a frame, and when a segment is sealed."""

    flush_interval_s: float = 0.5
    segment_bytes: int = 64 << 20
    segment_interval_s: float = 30.0


class Taken(NamedTuple):
    """Encoded lines of one frame; `on_safe` is called, in the writer's thread, when they are on disk.

    `invalid` is the number of queued records that were dropped because they can't be encoded.
    """

    lines: bytes
    records: int
    on_safe: Callable[[], None] | None = None
    invalid: int = 0


class Source(Protocol):
    """A queue that a writer takes records from. If `is_lossy`, records that can't be written are dropped."""

    is_lossy: bool

    def take(self, records_max: int, *, records_min: int) -> Taken:
        """Return the next records; none if fewer than `records_min` are queued. Called in the writer's thread."""
        ...


class Counted(Protocol):
    """Counters of written and dropped records. The writer's thread calls them."""

    def written(self, records: int, size_bytes: int) -> None:
        """Count records on disk, and their bytes."""
        ...

    def dropped(self, records: int, reason: str) -> None:
        """Count records that were dropped."""
        ...


class _Frame(NamedTuple):
    data: bytes
    records: int
    on_safe: Callable[[], None] | None


class SegmentWriter:
    """Writes the records of a source, in its own thread, from `start` to `close`. `limits` may be replaced."""

    def __init__(
        self, folder: Path, kind: Kind, *, host: str, source: Source, counted: Counted, limits: WriterLimits
    ) -> None:
        self.limits = limits
        self._folder = folder
        self._kind = kind
        self._host = host_slug(host)
        self._source = source
        self._counted = counted
        self._compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True)
        self._due = threading.Event()
        self._closing = threading.Event()
        self._segment: OpenSegment | None = None
        self._segment_since_s = 0.0
        self._number = 0
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=f"journal-{kind}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Write now: there are enough records for a frame."""
        self._due.set()

    def close(self) -> None:
        """Write the remaining records, seal the segment, and end the thread. Blocks until the disk has finished."""
        self._closing.set()
        self._due.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._due.wait(self.limits.flush_interval_s)
            self._due.clear()
            # Read before the last pass, so that the pass includes all records queued before `close`.
            is_last = self._closing.is_set()
            try:
                # The first frame takes all queued records; the next ones must be full, or a busy server would flush a
                # frame for every few records.
                least = chain((1,), repeat(1 if is_last else FRAME_RECORDS_MAX))
                while frames := self._take_frames(least):
                    self._store(frames)
                if self._is_full or is_last:
                    self._seal()
            except Exception:  # noqa: BLE001 - continue after any error: the next records may succeed
                _log.exception("journal_failed", kind=self._kind)
                self._leave_segment()

    def _take_frames(self, least: Iterator[int]) -> list[_Frame]:
        """Take up to `FRAMES_AT_ONCE_MAX` frames with at least the numbers of records given by `least`."""
        frames: list[_Frame] = []
        while len(frames) < FRAMES_AT_ONCE_MAX:
            lines, records, on_safe, invalid = self._source.take(FRAME_RECORDS_MAX, records_min=next(least))
            if invalid:
                self._counted.dropped(invalid, INVALID)
            if not records:
                break
            frames.append(_Frame(self._compressor.compress(lines), records, on_safe))
        return frames

    def _store(self, frames: Sequence[_Frame]) -> None:
        """Write frames to disk; if that fails, drop the records of a lossy source, or retry until it succeeds."""
        records, wait_s = sum(frame.records for frame in frames), RETRY_S_MIN
        while True:
            try:
                segment = self._segment or self._begin()
                for frame in frames:
                    segment.append(frame.data)
                segment.sync()
                break
            except OSError as failure:
                self._leave_segment()
                if not self._has_failed:
                    # Log only the first failure until a write succeeds: every frame would fail.
                    _log.error("journal_not_written", kind=self._kind, folder=str(self._folder), error=str(failure))
                    self._has_failed = True
                if self._source.is_lossy or self._closing.wait(wait_s):
                    self._counted.dropped(records, DISK)
                    return
                wait_s = min(2 * wait_s, RETRY_S_MAX)
        if self._has_failed:
            _log.warning("journal_written_again", kind=self._kind)
            self._has_failed = False
        for frame in frames:
            if frame.on_safe is not None:
                frame.on_safe()
        self._counted.written(records, sum(len(frame.data) for frame in frames))
        if self._is_full:
            self._seal()

    @property
    def _is_full(self) -> bool:
        segment, limits = self._segment, self.limits
        if segment is None:
            return False
        age_s = time.monotonic() - self._segment_since_s
        return segment.size_bytes >= limits.segment_bytes or age_s >= limits.segment_interval_s

    def _begin(self) -> OpenSegment:
        for _ in range(_NAMES_TRIED_MAX):
            self._number = max(self._number + 1, int(time.time() * NUMBERS_A_SECOND))
            segment = OpenSegment.create(self._folder, SegmentName(self._kind, self._host, self._number))
            if segment is not None:
                self._segment, self._segment_since_s = segment, time.monotonic()
                return segment
        raise OSError(f"{_NAMES_TRIED_MAX} consecutive segment names are taken, up to number {self._number}")

    def _seal(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            try:
                segment.seal()
            except OSError as failure:
                # All records are on disk in the open segment, which the next start seals.
                _log.error("journal_not_sealed", kind=self._kind, folder=str(self._folder), error=str(failure))

    def _leave_segment(self) -> None:
        """Seal a segment after a failed write, up to its last synced frame."""
        segment, self._segment = self._segment, None
        if segment is not None:
            try:
                segment.seal()
            except OSError:
                segment.abandon()
