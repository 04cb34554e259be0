"""The history journal of a host's shards: one record for each committed batch of events."""

import asyncio
import base64
from collections.abc import Sequence

import xxhash
from google.protobuf.message import DecodeError, Message
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.core.namespaces import split_version
from fairlead.history.events.signal_ids import signal_id
from fairlead.history.shard.outline import outline_event
from fairlead.history.shard.stream_rows import Streamed
from fairlead.journal import DurableQueue, HistoryRecord, Journal, VersionItem
from fairlead.settings.static.journal import JournalPayloads
from fairlead.telemetry import get_log

# Number of shards that read at the same time. Each holds a page in memory until the journal has room for it.
READERS_MAX = 4
DIGEST_SEED = 0

_log = get_log("history.journal")


def to_record(streamed: Streamed, *, payloads: JournalPayloads, namespace: str | None = None) -> HistoryRecord:
    """The journal record of a batch; `namespace` is the name of its namespace, if known."""
    task_id, row, payload = streamed
    record = HistoryRecord(
        row.time_us,
        *(row.namespace_id, row.workflow_id, row.run_id, row.tree_id, row.branch_id),
        *(row.first_event_id, row.last_event_id, row.version),
        [VersionItem(event_id, version) for event_id, version in row.items],
        task_id,
        row.status,
        new_run_id=row.new_run_id or None,
        namespace=namespace,
    )
    if payload is None:
        return record
    try:
        events = History.FromString(payload).events
    except DecodeError as wrong:
        _log.error("batch can't be read", run_id=row.run_id, first_event_id=row.first_event_id, error=str(wrong))
        return record
    record.event_types = [event.event_type for event in events]
    for event in events:
        # Like `event_digest`, but without a copy, because no other code uses these events.
        event.ClearField("task_id")
    record.event_digests = [_digest(event) for event in events]
    record.signals = [
        signal_id(event, row.run_id)
        for event in events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    ] or None
    if payloads is JournalPayloads.WHOLE:
        record.payload = base64.b64encode(payload).decode()
    elif payloads is JournalPayloads.KEYS:
        record.outline = _outline(payload)
    return record


def _outline(payload: bytes) -> str:
    history = History.FromString(payload)
    for event in history.events:
        outline_event(event)
    return base64.b64encode(history.SerializeToString()).decode()


def event_digest(event: HistoryEvent) -> str:
    """The digest of an event, equal in all clusters. It leaves out the task id, which differs between clusters."""
    if event.task_id:
        event = HistoryEvent.FromString(event.SerializeToString())
        event.ClearField("task_id")
    return _digest(event)


def _digest(message: Message) -> str:
    return xxhash.xxh64_hexdigest(message.SerializeToString(deterministic=True), seed=DIGEST_SEED)


class HistoryJournal:
    """Writes the committed batches of a host's shards to the journal."""

    def __init__(self, journal: Journal, *, payloads: JournalPayloads) -> None:
        def make(streamed: Streamed) -> HistoryRecord:
            # This runs in the thread of the journal's writer; the look-up in a dictionary needs no lock.
            name = journal.names.find(split_version(streamed.row.namespace_id)[0])
            return to_record(streamed, payloads=payloads, namespace=name)

        self._queue: DurableQueue[Streamed] = journal.history(make)
        self.readers = asyncio.Semaphore(READERS_MAX)

    async def write(self, rows: Sequence[Streamed]) -> None:
        """Write rows; they are on disk when this returns."""
        await self._queue.write(rows, sum(len(streamed.payload or b"") + 1000 for streamed in rows))
