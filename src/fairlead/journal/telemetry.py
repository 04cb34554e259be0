"""What matching tells the journal: cheap where it happens, and dropped where the disk does not keep up."""

import threading
from collections import deque
from collections.abc import Callable

from fairlead.core.partitions import PartitionConfig
from fairlead.journal.records import Happening, TaskRecord, encode_records
from fairlead.journal.writer import FRAME_RECORDS_MAX, Taken
from fairlead.telemetry import get_log

# Few enough to be in the processor's cache still, and to hold nobody up while they are encoded: some 20 µs.
CHUNK_RECORDS = 100

# As plain texts: a member of an enumeration takes longer to write.
_ADDED, _MATCHED, _FORWARDED, _ACKED, _POLL_EMPTY, _CONFIG, _BACKLOG = (str(kind.value) for kind in Happening)

_log = get_log("journal")


class TaskQueue:
    """Records on their way from the event loop to the writer's thread. A record that finds no room is dropped.

    The event loop encodes them, a chunk at a time: to bring thousands of small objects from the cache of one processor
    to that of another costs more than that.
    """

    is_lossy = True

    def __init__(self, *, on_full: Callable[[], None], records_max: int) -> None:
        """`on_full` is called for each record that is dropped."""
        # Called when there is enough for a frame.
        self.on_frame: Callable[[], None] = lambda: None
        self._on_full = on_full
        # Only who has the lock takes records out, and uses the rest; only the event loop adds some, without it.
        self._records: deque[TaskRecord] = deque()
        self._lock = threading.Lock()
        self._chunks: deque[tuple[bytes, int]] = deque()
        self._chunked = 0
        self._invalid = 0
        self._room = records_max

    def put(self, record: TaskRecord) -> None:
        """Leave a record to be written."""
        records = self._records
        waiting = len(records)
        if waiting >= self._room:
            self._on_full()
            return
        records.append(record)
        # While the writer takes some, the chunk grows: it is not waited for.
        if waiting >= CHUNK_RECORDS - 1 and self._lock.acquire(blocking=False):
            try:
                self._encode()
            finally:
                self._lock.release()
            if self._chunked >= FRAME_RECORDS_MAX:
                self.on_frame()

    def take(self, records_max: int, *, records_min: int) -> Taken:
        """The next records, in the writer's thread: at most so many, or one chunk."""
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
        """Make a chunk of the records that are here."""
        records = self._records
        chunk = [records.popleft() for _ in range(len(records))]
        try:
            lines, count = encode_records(chunk), len(chunk)
        except (TypeError, ValueError):
            # A text that is none: neither whoever has told it nor the others of its chunk must suffer.
            _log.exception("journal_failed", kind="task", records=len(chunk))
            sound = list(filter(None, map(_encode_one, chunk)))
            lines, count = b"".join(sound), len(sound)
            self._invalid += len(chunk) - count
        if count:
            self._chunks.append((lines, count))
            self._chunked += count
            self._room -= count


def _encode_one(record: TaskRecord) -> bytes | None:
    try:
        return encode_records([record])
    except (TypeError, ValueError):
        return None


class PartitionJournal:
    """What one partition tells. Times are seconds of the epoch, by the clock of whoever calls."""

    __slots__ = ("_host", "_namespace_id", "_number", "_put", "_task_list", "_task_type")

    def __init__(
        self,
        put: Callable[[TaskRecord], None],
        *,
        namespace_id: str,
        task_list: str,
        task_type: int,
        number: int,
        host: str,
    ) -> None:
        self._put = put
        self._namespace_id = namespace_id
        self._task_list = task_list
        self._task_type = task_type
        self._number = number
        self._host = host

    def added(self, now_s: float, fairness_key: str, weight: float, priority: int) -> None:
        """A task was taken in."""
        self._put(
            TaskRecord(
                int(now_s * 1e6),
                _ADDED,
                self._namespace_id,
                self._task_list,
                self._task_type,
                self._number,
                self._host,
                fairness_key,
                weight,
                priority,
            )
        )

    def matched(  # noqa: PLR0917 - by position, as all that is told of every task
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
        """A task was started for a poll: one that had just come, or one of the backlog, which has a pass."""
        self._put(
            TaskRecord(
                int(now_s * 1e6),
                _MATCHED,
                self._namespace_id,
                self._task_list,
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
            )
        )

    def acked(self, now_s: float, fairness_key: str, weight: float, priority: int, pass_number: int) -> None:
        """A task of the backlog need not be kept any more."""
        self._put(
            TaskRecord(
                int(now_s * 1e6),
                _ACKED,
                self._namespace_id,
                self._task_list,
                self._task_type,
                self._number,
                self._host,
                fairness_key,
                weight,
                priority,
                pass_number,
            )
        )

    def forwarded(self, now_s: float, fairness_key: str, weight: float, priority: int) -> None:
        """A task was offered to the parent."""
        record = self._record(_FORWARDED, now_s)
        record.fairness_key, record.weight, record.priority = fairness_key, weight, priority
        self._put(record)

    def poll_empty(self, now_s: float, wait_s: float) -> None:
        """A poll that came here was answered without a task."""
        record = self._record(_POLL_EMPTY, now_s)
        record.wait_us = int(wait_s * 1e6)
        self._put(record)

    def config(self, now_s: float, config: PartitionConfig) -> None:
        """The partition goes by this configuration from now on."""
        record = self._record(_CONFIG, now_s)
        record.read, record.write, record.version = config.read, config.write, config.version
        self._put(record)

    def backlog(self, now_s: float, *, tasks: int, age_s: float, pollers: int) -> None:
        """How much waits here at this moment: tasks, the oldest of them for so long, and polls."""
        record = self._record(_BACKLOG, now_s)
        record.tasks, record.age_us, record.pollers = tasks, int(age_s * 1e6), pollers
        self._put(record)

    def _record(self, kind: str, now_s: float) -> TaskRecord:
        return TaskRecord(
            int(now_s * 1e6),
            kind,
            self._namespace_id,
            self._task_list,
            self._task_type,
            self._number,
            self._host,
        )
