"""The stream of a shard's committed events: a row with every commit that writes some, read on in order.

The row is in the same commit as its events, in the shard's queue `replication`. It is deleted only when the record that
was made of it is on the journal's disk: after a crash some are written again, under the same task id, and none is lost.
"""

import asyncio
import base64
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
import xxhash
from google.protobuf.message import DecodeError, Message
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.core.errors import FairleadError
from fairlead.history.events import Batch
from fairlead.history.state import RunState
from fairlead.journal import DurableQueue, HistoryRecord, Journal, VersionItem
from fairlead.storage.history_contract import TASKS_COMPLETED_MAX, HistoryStore, LeaseLost, RunKey, TaskKey, TaskWrite
from fairlead.telemetry import get_log

REPLICATION = "replication"

# Rows and bytes of events that one shard has written to the journal at a time, and reads at a time.
ROWS_AT_ONCE_MAX = 2_000
BYTES_AT_ONCE_MAX = 1 << 20
# Shards that read at a time: each holds so much in memory until the journal has room for it.
READERS_MAX = 4
# What has just been written is kept until it is journaled, of all shards together; what comes beyond is read again.
RECENT_BYTES_MAX = 32 << 20
RECENT_BYTES_A_SHARD_MIN = 64 << 10
RECENT_ROWS_A_SHARD_MAX = 5_000
RETRY_S = 1.0
# A shard that is let go of has so long to journal its last events. What is left is for its next owner.
LAST_ROWS_S_MAX = 3.0
DIGEST_SEED = 0

_log = get_log("history.journal")


class StreamRow(msgspec.Struct, array_like=True, frozen=True):
    """A batch of events that was written, and its run after that. Fields are added at the end, with a default."""

    namespace_id: str
    workflow_id: str
    run_id: str
    tree_id: str
    branch_id: str
    first_event_id: int
    last_event_id: int
    version: int
    items: tuple[tuple[int, int], ...]
    status: int
    new_run_id: str
    time_us: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StreamRow).decode


class Streamed(NamedTuple):
    """A row with its place in the queue, and the batch, if it is there."""

    task_id: int
    row: StreamRow
    payload: bytes | None


def stream_row(key: RunKey, state: RunState, batch: Batch, *, now_ns: int) -> StreamRow:
    """What is said of a batch that is about to be written."""
    identity = state.identity
    return StreamRow(
        *(*key, identity.tree_id, identity.branch_id, *batch[:2], state.last_version),
        items=() if state.versions is None else state.versions.to_pairs(),
        status=state.status,
        new_run_id=state.new_run_id,
        time_us=now_ns // 1000,
    )


def to_record(streamed: Streamed, *, with_payload: bool) -> HistoryRecord:
    """What the journal keeps of a batch."""
    task_id, row, payload = streamed
    record = HistoryRecord(
        row.time_us,
        *(row.namespace_id, row.workflow_id, row.run_id, row.tree_id, row.branch_id),
        *(row.first_event_id, row.last_event_id, row.version),
        [VersionItem(event_id, version) for event_id, version in row.items],
        task_id,
        row.status,
        new_run_id=row.new_run_id or None,
    )
    if payload is None:
        return record
    try:
        events = History.FromString(payload).events
    except DecodeError as wrong:
        _log.error("batch can't be read", run_id=row.run_id, first_event_id=row.first_event_id, error=str(wrong))
        return record
    record.event_types = [event.event_type for event in events]
    record.event_digests = [event_digest(event) for event in events]
    record.signals = [
        _signal(event) for event in events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    ] or None
    record.payload = base64.b64encode(payload).decode() if with_payload else None
    return record


def event_digest(event: HistoryEvent) -> str:
    """The same wherever the event is: its task id, which is of the cluster that has it, is left out."""
    if event.task_id:
        event = HistoryEvent.FromString(event.SerializeToString())
        event.ClearField("task_id")
    return _digest(event)


def _signal(event: HistoryEvent) -> str:
    attributes = event.workflow_execution_signaled_event_attributes
    request_id: str = getattr(attributes, "request_id", "")
    return request_id or f"{attributes.signal_name}:{_digest(attributes)}"


def _digest(message: Message) -> str:
    return xxhash.xxh64_hexdigest(message.SerializeToString(deterministic=True), seed=DIGEST_SEED)


class HistoryJournal:
    """Where the shards of a host write what they have committed."""

    def __init__(self, journal: Journal, *, with_payloads: bool) -> None:
        self._queue: DurableQueue[Streamed] = journal.history(
            lambda streamed: to_record(streamed, with_payload=with_payloads)
        )
        self.readers = asyncio.Semaphore(READERS_MAX)

    async def write(self, rows: Sequence[Streamed]) -> None:
        """Have rows written; they are on the disk when this returns."""
        await self._queue.write(rows, sum(len(streamed.payload or b"") + 1000 for streamed in rows))


class ShardStream:
    """The rows of one shard, from the commit that makes them to the journal.

    Ids are taken in order but commits end in any: nothing is read past one that is under way, for it would be
    forgotten.
    """

    def __init__(
        self,
        shard_id: int,
        *,
        store: HistoryStore,
        journal: HistoryJournal,
        range_id: Callable[[], int],
        next_id: Callable[[], int],
        on_lost: Callable[[], None],
        shards: int,
    ) -> None:
        """`next_id` is that which the next row will have at least."""
        self._shard_id = shard_id
        self._store = store
        self._journal = journal
        self._range_id = range_id
        self._next_id = next_id
        self._on_lost = on_lost
        self._recent_bytes_max = max(RECENT_BYTES_MAX // shards, RECENT_BYTES_A_SHARD_MIN)
        # In the order of their ids: the first is the lowest.
        self._under_way: dict[int, Streamed] = {}
        # Rows from this id on are in memory once they are written, those below it are read from the store; None: all.
        self._memory_from: int | None = None
        self._recent: dict[int, Streamed] = {}
        self._recent_bytes = 0
        # All up to this one are journaled.
        self._done_id = -1
        self._look = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    def open(self, level: TaskKey | None) -> None:
        """Take up what is there above `level`."""
        if level is not None:
            self._done_id = level.task_id
        self._look.set()
        self._reading = asyncio.create_task(self._read_forever())

    async def close(self, *, is_lost: bool) -> None:
        """Journal what there is, unless the shard is lost, and stop."""
        if self._reading is None:
            return
        if not is_lost and not self._reading.done():
            self._is_idle.clear()
            self._look.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_ROWS_S_MAX):
                    await self._is_idle.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    # The commits

    def place(self, task_id: int, row: StreamRow, payload: bytes) -> TaskWrite:
        """A row that is about to be written with its batch; to be told of by `written` or `not_written`."""
        self._under_way[task_id] = Streamed(task_id, row, payload)
        return TaskWrite(REPLICATION, 0, task_id, _encode(row))

    def written(self, task_ids: Sequence[int]) -> None:
        """The rows are durable."""
        for task_id in task_ids:
            streamed = self._under_way.pop(task_id)
            if self._memory_from is not None and task_id >= self._memory_from:
                self._recent[task_id] = streamed
                self._recent_bytes += len(streamed.payload or b"")
        if self._recent_bytes > self._recent_bytes_max or len(self._recent) > RECENT_ROWS_A_SHARD_MAX:
            self._forget_recent()
        self._look.set()

    def not_written(self, task_ids: Sequence[int]) -> None:
        """The rows were not written, and will not be."""
        for task_id in task_ids:
            self._under_way.pop(task_id, None)
        self._look.set()

    def _forget_recent(self) -> None:
        """Read them from the store: too many are in memory, or it is not known which of them are journaled."""
        self._recent.clear()
        self._recent_bytes = 0
        self._memory_from = None

    # The journal

    async def _read_forever(self) -> None:
        try:
            while True:
                await self._look.wait()
                self._look.clear()
                try:
                    while await self._journal_some():
                        pass
                except LeaseLost:
                    self._on_lost()
                    return
                except FairleadError as failure:
                    _log.warning("events can't be journaled", shard=self._shard_id, error=str(failure))
                    self._forget_recent()
                    await asyncio.sleep(RETRY_S)
                    self._look.set()
                else:
                    if not self._under_way:
                        self._is_idle.set()
        finally:
            self._is_idle.set()

    async def _journal_some(self) -> bool:
        """Write the next rows, if there are any, and delete them; whether there were."""
        async with self._journal.readers:
            rows, through = await self._next_rows()
        if rows:
            await self._journal.write(rows)
            gone = TASKS_COMPLETED_MAX
            while gone >= TASKS_COMPLETED_MAX:
                gone = await self._store.complete_tasks(
                    self._shard_id, self._range_id(), REPLICATION, TaskKey(0, rows[-1].task_id)
                )
        self._done_id = max(self._done_id, through)
        return bool(rows)

    async def _next_rows(self) -> tuple[list[Streamed], int]:
        """The first rows that are not journaled, and the id up to which there are no others."""
        if self._memory_from is None:
            self._memory_from = self._next_id()
        ceiling = next(iter(self._under_way), self._next_id())
        stored_to = min(ceiling, self._memory_from)
        if self._done_id < stored_to - 1:
            rows, through = await self._stored_rows(stored_to)
            if rows:
                return rows, through
            self._done_id = max(self._done_id, through)
        rows = []
        size_bytes = 0
        for task_id in sorted(self._recent):
            if task_id >= ceiling or size_bytes >= BYTES_AT_ONCE_MAX or len(rows) >= ROWS_AT_ONCE_MAX:
                break
            streamed = self._recent.pop(task_id)
            rows.append(streamed)
            size_bytes += len(streamed.payload or b"")
        self._recent_bytes -= size_bytes
        return rows, rows[-1].task_id if rows else self._done_id

    async def _stored_rows(self, end_id: int) -> tuple[list[Streamed], int]:
        """The same, of those that the store has below an id."""
        page = await self._store.read_tasks(
            self._shard_id, REPLICATION, after=TaskKey(0, self._done_id), until_ns=None, limit=ROWS_AT_ONCE_MAX
        )
        rows: list[Streamed] = []
        size_bytes = 0
        for (_, task_id), stored in page:
            if task_id >= end_id:
                break
            if size_bytes >= BYTES_AT_ONCE_MAX:
                return rows, rows[-1].task_id
            row = _decode(stored)
            payload = await self._read_payload(row)
            rows.append(Streamed(task_id, row, payload))
            size_bytes += len(payload or b"")
        else:
            if len(page) == ROWS_AT_ONCE_MAX:
                return rows, rows[-1].task_id
        return rows, end_id - 1

    async def _read_payload(self, row: StreamRow) -> bytes | None:
        """The batch of a row; None if its run has been deleted."""
        batches = await self._store.read_branch(
            row.tree_id, row.branch_id, row.first_event_id, row.first_event_id + 1, limit_bytes=1
        )
        return next((batch.payload for batch in batches if batch.first_event_id == row.first_event_id), None)
