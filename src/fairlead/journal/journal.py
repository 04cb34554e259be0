"""The journal of one process: its folder, its streams, and their settings."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from fairlead.core.errors import FixRequest
from fairlead.core.namespaces import NamespaceNames
from fairlead.core.partitions import STICKY, TaskQueueId
from fairlead.journal.durable import DurableQueue
from fairlead.journal.records import AuditRecord, Kind, TaskRecord
from fairlead.journal.segments import make_private_folder, recover
from fairlead.journal.telemetry import PartitionJournal, RecordQueue
from fairlead.journal.writer import SegmentWriter, Source, WriterLimits
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic import journal as settings_of
from fairlead.telemetry import JOURNAL_BYTES, JOURNAL_RECORDS, JOURNAL_RECORDS_DROPPED, Metrics, get_log

Item = TypeVar("Item")

# Reasons to drop a record: the queue is full, the disk failed, or the record can't be encoded.
DROP_REASONS = ("full", "disk", "invalid")

_log = get_log("journal")


class CannotOpenJournal(FixRequest):
    """The folder of the journal can't be used."""


class Journal:
    """The journal of a process. The event loop calls it; its own threads write.

    Each stream is created on first use, with its own thread and segments.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str,
        settings: DynamicSettings,
        metrics: Metrics,
        names: NamespaceNames | None = None,
    ) -> None:
        """Prefer `open`; this requires that the folder exists and has no open segments."""
        self.names = NamespaceNames() if names is None else names
        self._folder = folder
        self._host = host
        self._settings = settings
        self._metrics = metrics
        self._writers: list[SegmentWriter] = []
        self._audits: list[AuditJournal] = []
        self._subscriptions = [
            settings.subscribe(settings_of.FLUSH_INTERVAL, self._use_settings),
            settings.subscribe(settings_of.SEGMENT_BYTES, self._use_settings),
            settings.subscribe(settings_of.SEGMENT_INTERVAL, self._use_settings),
        ]

    @classmethod
    async def open(
        cls,
        folder: Path,
        *,
        cluster: str,
        host: str,
        settings: DynamicSettings,
        metrics: Metrics,
        key: str = "journal.folder",
        names: NamespaceNames | None = None,
    ) -> Self:
        """Make the folder, seal segments that a dead process left open, and get ready to write.

        `key` is the setting of the folder, for the error message if the folder can't be used. `names` has the names of
        the namespaces, which records carry beside the ids.
        """
        place = folder / cluster
        try:
            sealed = await asyncio.to_thread(_prepare, place)
        except OSError as refused:
            raise CannotOpenJournal(
                f"can't keep a journal in {folder}: {refused.strerror or refused}; choose another `{key}`"
            ) from refused
        if sealed:
            _log.info("journal_recovered", folder=str(place), segments=[path.name for path in sealed])
        return cls(place, host=host, settings=settings, metrics=metrics, names=names)

    def tasks(self) -> "TaskJournal":
        """Start the stream of matching's records."""
        queue = RecordQueue(
            on_full=lambda: self._metrics.count(JOURNAL_RECORDS_DROPPED, Kind.TASK, "full"),
            records_max=self._settings.get(settings_of.QUEUE_RECORDS),
        )
        queue.on_frame = self._begin(Kind.TASK, queue).wake
        return TaskJournal(queue.put, host=self._host, names=self.names)

    def history(self, make: Callable[[Item], msgspec.Struct]) -> DurableQueue[Item]:
        """Start the stream of event batches; `make` turns a batch into its record, in the writer's thread."""
        queue = DurableQueue(make)
        queue.on_frame = self._begin(Kind.HISTORY, queue).wake
        return queue

    def audit(self) -> "AuditJournal":
        """Start the stream of decisions of authorization."""
        records_max = self._settings.get(settings_of.QUEUE_RECORDS)
        queue = RecordQueue(on_full=self._audit_dropped, records_max=records_max)
        queue.on_frame = self._begin(Kind.AUDIT, queue).wake
        journal = AuditJournal(queue, refusals_max=records_max // 2, on_full=self._audit_dropped)
        self._audits.append(journal)
        return journal

    def _audit_dropped(self) -> None:
        self._metrics.count(JOURNAL_RECORDS_DROPPED, Kind.AUDIT, "full")

    async def close(self) -> None:
        """Write the queued records, and seal the segments."""
        for unsubscribe in self._subscriptions:
            unsubscribe()
        for audit in self._audits:
            audit.flush()
        await asyncio.gather(*(asyncio.to_thread(writer.close) for writer in self._writers))

    def _begin(self, kind: Kind, source: Source) -> SegmentWriter:
        counted = _Counted(kind, self._metrics)
        writer = SegmentWriter(
            self._folder, kind, host=self._host, source=source, counted=counted, limits=self._limits()
        )
        self._writers.append(writer)
        writer.start()
        return writer

    def _limits(self) -> WriterLimits:
        get = self._settings.get
        return WriterLimits(
            flush_interval_s=get(settings_of.FLUSH_INTERVAL),
            segment_bytes=get(settings_of.SEGMENT_BYTES),
            segment_interval_s=get(settings_of.SEGMENT_INTERVAL),
        )

    def _use_settings(self, _changed: float) -> None:
        for writer in self._writers:
            writer.limits = self._limits()


class TaskJournal:
    """Creates the journals of partitions for matching."""

    def __init__(self, put: Callable[[TaskRecord], None], *, host: str, names: NamespaceNames | None = None) -> None:
        self._put = put
        self._host = host
        self._names = NamespaceNames() if names is None else names

    def partition(self, task_queue: TaskQueueId, number: int, *, is_sticky: bool = False) -> PartitionJournal:
        """Return the journal of one partition; all sticky task queues of a namespace share one name."""
        return PartitionJournal(
            self._put,
            namespace_id=task_queue.namespace_id,
            task_queue=STICKY if is_sticky else task_queue.name,
            task_type=int(task_queue.type),
            number=number,
            host=self._host,
            find_name=self._names.find,
        )


class AuditJournal:
    """The stream of decisions of authorization. It never waits: above its bound, records are dropped and counted."""

    def __init__(self, queue: RecordQueue, *, refusals_max: int, on_full: Callable[[], None]) -> None:
        """Refusals are dropped while `refusals_max` records wait: the rest of the queue is for allowed calls."""
        self._queue = queue
        self._refusals_max = refusals_max
        self._on_full = on_full
        self._flushes: list[Callable[[], None]] = []

    def put(self, record: AuditRecord) -> None:
        """Write the record of an allowed call."""
        self._queue.put(record)

    def put_refusal(self, record: AuditRecord) -> None:
        """Write the record of a refusal; drop it if the queue is half full: the rest is for allowed calls."""
        if self._queue.waiting >= self._refusals_max:
            self._on_full()
        else:
            self._queue.put(record)

    def before_close(self, flush: Callable[[], None]) -> None:
        """Call `flush`, which may put more records, before the stream closes."""
        self._flushes.append(flush)

    def flush(self) -> None:
        """Write the records that the callbacks of `before_close` still hold."""
        for flush in self._flushes:
            flush()


class _Counted:
    """Passes the counts of a writer's thread to the metrics, in the event loop."""

    def __init__(self, kind: Kind, metrics: Metrics) -> None:
        self._kind = kind
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        for reason in DROP_REASONS:
            metrics.expect(JOURNAL_RECORDS_DROPPED, kind, reason)

    def written(self, records: int, size_bytes: int) -> None:
        """Count records on disk, and their bytes."""
        self._in_loop(lambda: self._metrics.count(JOURNAL_RECORDS, self._kind, amount=records))
        self._in_loop(lambda: self._metrics.count(JOURNAL_BYTES, self._kind, amount=size_bytes))

    def dropped(self, records: int, reason: str) -> None:
        """Count records that were dropped."""
        self._in_loop(lambda: self._metrics.count(JOURNAL_RECORDS_DROPPED, self._kind, reason, amount=records))

    def _in_loop(self, count: Callable[[], None]) -> None:
        # The loop is closed if the process ends without waiting for the journal.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(count)


def _prepare(folder: Path) -> list[Path]:
    make_private_folder(folder)
    # Check now that the folder is writable, not when the first record is lost.
    trial = folder / ".writable"
    trial.touch()
    trial.unlink(missing_ok=True)
    return recover(folder)
