"""Matching's records for the journal: cheap to make, and dropped if the disk is too slow."""

import threading
from collections import deque
from collections.abc import Callable

import msgspec

from fairlead.core.namespaces import split_version
from fairlead.core.partitions import PartitionConfig
from fairlead.journal.records import Happening, TaskRecord, encode_records
from fairlead.journal.writer import FRAME_RECORDS_MAX, Taken
from fairlead.telemetry import get_log

# Records that are encoded at once: few enough to be in the CPU cache still, and to block the event loop for only 20 µs.
CHUNK_RECORDS = 100

# As plain strings: members of an enumeration take longer to encode.
_ADDED, _MATCHED, _FORWARDED, _ACKED, _POLL_EMPTY, _CONFIG, _BACKLOG = (str(kind.value) for kind in Happening)

_log = get_log("journal")


class RecordQueue:
    """Queue of records from the event loop to the writer's thread. If it is full, new records are dropped.

    The event loop encodes the records in chunks: moving thousands of small objects between the caches of two CPUs would
    cost more.
    """

    is_lossy = True

    def __init__(self, *, on_full: Callable[[], None], records_max: int) -> None:
        """`on_full` is called for each dropped record."""
        # Called when the queue holds enough for a frame.
        self.on_frame: Callable[[], None] = lambda: None
        self._on_full = on_full
        # Hold the lock to remove records or to use any other field; the event loop appends to `_records` without it.
        self._records: deque[msgspec.Struct] = deque()
        self._lock = threading.Lock()
        self._chunks: deque[tuple[bytes, int]] = deque()
        self._chunked = 0
        self._invalid = 0
        self._room = records_max

    @property
    def waiting(self) -> int:
        """Number of records that are not written yet."""
        return len(self._records) + self._chunked

    def put(self, record: msgspec.Struct) -> None:
        """Queue a record for writing."""
        records = self._records
        waiting = len(records)
        if waiting >= self._room:
            self._on_full()
            return
        records.append(record)
        # If the writer holds the lock, do not wait: the chunk grows until the next call.
        if waiting >= CHUNK_RECORDS - 1 and self._lock.acquire(blocking=False):
            try:
                self._encode()
            finally:
                self._lock.release()
            if self._chunked >= FRAME_RECORDS_MAX:
                self.on_frame()

    def take(self, records_max: int, *, records_min: int) -> Taken:
        """Return the next records, in the writer's thread: at most `records_max`, or one chunk."""
        chunks: list[bytes] = []
        taken = 0
        with self._lock:
            if self._chunked + len(self._records) < records_min:
                return Taken(b"", 0)
            self._encode()
            while self._chunks and (not chunks or taken + self._chunks[0][1] <= records_max):
                lines, count = self._chunks.popleft()
                chunks.append(lines)
                taken += count
            self._chunked -= taken
            self._room += taken
            invalid, self._invalid = self._invalid, 0
        return Taken(b"".join(chunks), taken, invalid=invalid)

    def _encode(self) -> None:
        """Encode the queued records as a chunk."""
        records = self._records
        chunk = [records.popleft() for _ in range(len(records))]
        try:
            lines, count = encode_records(chunk), len(chunk)
        except (TypeError, ValueError):
            # One record holds a string that can't be encoded: drop it, keep the rest of the chunk.
            _log.exception("journal_failed", kind=type(chunk[0]).__name__, records=len(chunk))
            sound = list(filter(None, map(_encode_one, chunk)))
            lines, count = b"".join(sound), len(sound)
            self._invalid += len(chunk) - count
        if count:
            self._chunks.append((lines, count))
            self._chunked += count
            self._room -= count


def _encode_one(record: msgspec.Struct) -> bytes | None:
    try:
        return encode_records([record])
    except (TypeError, ValueError):
        return None


class PartitionJournal:
    """Writes the records of one partition. Times are seconds since the epoch, by the caller's clock."""

    __slots__ = ("_find_name", "_host", "_namespace", "_namespace_id", "_number", "_put", "_task_queue", "_task_type")

    def __init__(
        self,
        put: Callable[[TaskRecord], None],
        *,
        namespace_id: str,
        task_queue: str,
        task_type: int,
        number: int,
        host: str,
        find_name: Callable[[str], str | None] = lambda _id: None,
    ) -> None:
        """`find_name` returns the name of a namespace by its id; it is called for each record, since names change."""
        self._put = put
        self._find_name = find_name
        self._namespace = split_version(namespace_id)[0]
        self._namespace_id = namespace_id
        self._task_queue = task_queue
        self._task_type = task_type
        self._number = number
        self._host = host

    def added(self, now_s: float, fairness_key: str, weight: float, priority: int) -> None:
        """Record that a task was added."""
        self._put(
            TaskRecord(
                int(now_s * 1e6),
                _ADDED,
                self._namespace_id,
                self._task_queue,
                self._task_type,
                self._number,
                self._host,
                fairness_key,
                weight,
                priority,
                namespace=self._find_name(self._namespace),
            )
        )

    def matched(  # noqa: PLR0917 - by position for speed: called for every task
        self,
        now_s: float,
        fairness_key: str,
        weight: float,
        priority: int,
        pass_number: int | None,
        was_sync: bool,  # noqa: FBT001
        was_forwarded: bool,  # noqa: FBT001
        wait_s: float,
    ) -> None:
        """Record that a task was started for a poll; `pass_number` is None for a sync match."""
        self._put(
            TaskRecord(
                int(now_s * 1e6),
                _MATCHED,
                self._namespace_id,
                self._task_queue,
                self._task_type,
                self._number,
                self._host,
                fairness_key,
                weight,
                priority,
                pass_number,
                was_sync,
                was_forwarded,
                int(wait_s * 1e6),
                namespace=self._find_name(self._namespace),
            )
        )

    def acked(self, now_s: float, fairness_key: str, weight: float, priority: int, pass_number: int) -> None:
        """Record that a backlogged task was completed and need not be stored any longer."""
        self._put(
            TaskRecord(
                int(now_s * 1e6),
                _ACKED,
                self._namespace_id,
                self._task_queue,
                self._task_type,
                self._number,
                self._host,
                fairness_key,
                weight,
                priority,
                pass_number,
                namespace=self._find_name(self._namespace),
            )
        )

    def forwarded(self, now_s: float, fairness_key: str, weight: float, priority: int) -> None:
        """Record that a task was offered to the parent partition."""
        record = self._record(_FORWARDED, now_s)
        record.fairness_key, record.weight, record.priority = fairness_key, weight, priority
        self._put(record)

    def poll_empty(self, now_s: float, wait_s: float) -> None:
        """Record that a poll at this partition returned no task."""
        record = self._record(_POLL_EMPTY, now_s)
        record.wait_us = int(wait_s * 1e6)
        self._put(record)

    def config(self, now_s: float, config: PartitionConfig) -> None:
        """Record that the partition uses this configuration from now on."""
        record = self._record(_CONFIG, now_s)
        record.read, record.write, record.version = config.read, config.write, config.version
        self._put(record)

    def backlog(self, now_s: float, *, tasks: int, age_s: float, pollers: int) -> None:
        """Record the current backlog: number of tasks, age of the oldest one, and waiting polls."""
        record = self._record(_BACKLOG, now_s)
        record.tasks, record.age_us, record.pollers = tasks, int(age_s * 1e6), pollers
        self._put(record)

    def _record(self, kind: str, now_s: float) -> TaskRecord:
        return TaskRecord(
            int(now_s * 1e6),
            kind,
            self._namespace_id,
            self._task_queue,
            self._task_type,
            self._number,
            self._host,
            namespace=self._find_name(self._namespace),
        )
