"""The journal of one process: its folder, its two streams, and the settings that they go by."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import STICKY, TaskList
from fairlead.journal.durable import DurableQueue
from fairlead.journal.records import Kind, TaskRecord
from fairlead.journal.segments import recover
from fairlead.journal.telemetry import PartitionJournal, TaskQueue
from fairlead.journal.writer import SegmentWriter, Source, WriterLimits
from fairlead.settings import DynamicSettings
from fairlead.settings import journal as settings_of
from fairlead.telemetry import JOURNAL_BYTES, JOURNAL_RECORDS, JOURNAL_RECORDS_DROPPED, Metrics, get_log

Item = TypeVar("Item")

_log = get_log("journal")


class CannotOpenJournal(FixRequest):
    """The folder of the journal can't be used."""


class Journal:
    """Where a process writes down what it does. The event loop's thread calls; threads of its own write.

    Each stream is made when somebody has something to tell, and has a thread and segments of its own.
    """

    def __init__(self, folder: Path, *, host: str, settings: DynamicSettings, metrics: Metrics) -> None:
        """Use `open`, unless the folder is there and nothing in it is left open."""
        self._folder = folder
        self._host = host
        self._settings = settings
        self._metrics = metrics
        self._writers: list[SegmentWriter] = []
        self._subscriptions = [
            settings.subscribe(settings_of.FLUSH_INTERVAL, self._use_settings),
            settings.subscribe(settings_of.SEGMENT_BYTES, self._use_settings),
            settings.subscribe(settings_of.SEGMENT_INTERVAL, self._use_settings),
        ]

    @classmethod
    async def open(cls, folder: Path, *, cluster: str, host: str, settings: DynamicSettings, metrics: Metrics) -> Self:
        """Make the folder, seal what was left open by a process that is gone, and be ready to write."""
        place = folder / cluster
        try:
            sealed = await asyncio.to_thread(_prepare, place)
        except OSError as refused:
            raise CannotOpenJournal(
                f"can't keep a journal in {place}: {refused.strerror or refused}; choose another `journal.folder`"
            ) from refused
        if sealed:
            _log.info("journal_recovered", folder=str(place), segments=[path.name for path in sealed])
        return cls(place, host=host, settings=settings, metrics=metrics)

    def tasks(self) -> "TaskJournal":
        """Begin to write what matching does."""
        queue = TaskQueue(
            on_full=lambda: self._metrics.count(JOURNAL_RECORDS_DROPPED, Kind.TASK, "full"),
            records_max=self._settings.get(settings_of.QUEUE_RECORDS),
        )
        queue.on_frame = self._begin(Kind.TASK, queue).wake
        return TaskJournal(queue.put, host=self._host)

    def history(self, make: Callable[[Item], msgspec.Struct]) -> DurableQueue[Item]:
        """Begin to write batches of events; `make` makes the record of one, in the writer's thread."""
        queue = DurableQueue(make)
        queue.on_frame = self._begin(Kind.HISTORY, queue).wake
        return queue

    async def close(self) -> None:
        """Write what is left, and seal it."""
        for unsubscribe in self._subscriptions:
            unsubscribe()
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
    """What matching tells, partition by partition."""

    def __init__(self, put: Callable[[TaskRecord], None], *, host: str) -> None:
        self._put = put
        self._host = host

    def partition(self, task_list: TaskList, number: int, *, is_sticky: bool = False) -> PartitionJournal:
        """What one partition tells; all sticky task lists of a namespace are told of as one."""
        return PartitionJournal(
            self._put,
            namespace_id=task_list.namespace_id,
            task_list=STICKY if is_sticky else task_list.name,
            task_type=int(task_list.type),
            number=number,
            host=self._host,
        )


class _Counted:
    """Counts in the event loop what a writer's thread tells."""

    def __init__(self, kind: Kind, metrics: Metrics) -> None:
        self._kind = kind
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()

    def written(self, records: int, size_bytes: int) -> None:
        """So many records are on the disk, as so many bytes."""
        self._in_loop(lambda: self._metrics.count(JOURNAL_RECORDS, self._kind, amount=records))
        self._in_loop(lambda: self._metrics.count(JOURNAL_BYTES, self._kind, amount=size_bytes))

    def dropped(self, records: int, reason: str) -> None:
        """So many could not be written."""
        self._in_loop(lambda: self._metrics.count(JOURNAL_RECORDS_DROPPED, self._kind, reason, amount=records))

    def _in_loop(self, count: Callable[[], None]) -> None:
        # Closed where the process ends without waiting for the journal.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(count)


def _prepare(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    # Found out now, and not when the first record is lost.
    trial = folder / ".writable"
    trial.touch()
    trial.unlink(missing_ok=True)
    return recover(folder)
