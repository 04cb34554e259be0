"""The journal of a host's shards: what is kept there of each batch of events that was written."""

import asyncio
import base64
from collections.abc import Sequence

import xxhash
from google.protobuf.message import DecodeError, Message
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.history.applying.debts import signal_id
from fairlead.history.stream_rows import Streamed
from fairlead.journal import DurableQueue, HistoryRecord, Journal, VersionItem
from fairlead.telemetry import get_log

# Shards that read at a time: each holds so much in memory until the journal has room for it.
READERS_MAX = 4
DIGEST_SEED = 0

_log = get_log("history.journal")


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
    for event in events:
        # As `event_digest` does, but these are nobody else's: no copy is made.
        event.ClearField("task_id")
    record.event_digests = [_digest(event) for event in events]
    record.signals = [
        signal_id(event, row.run_id)
        for event in events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    ] or None
    record.payload = base64.b64encode(payload).decode() if with_payload else None
    return record


def event_digest(event: HistoryEvent) -> str:
    """The same wherever the event is: its task id, which is of the cluster that has it, is left out."""
    if event.task_id:
        event = HistoryEvent.FromString(event.SerializeToString())
        event.ClearField("task_id")
    return _digest(event)


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
