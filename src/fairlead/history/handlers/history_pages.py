"""Pages of a history: stored events are copied into responses without being decoded."""

from collections.abc import Sequence

import msgspec
from google.protobuf.message import Message
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.api.errors import InvalidArgument
from fairlead.api.times import to_timestamp
from fairlead.api.varints import varint
from fairlead.history.events import Batch
from fairlead.history.events.write_workflow_tasks import scheduled_attributes, started_attributes
from fairlead.history.shard.event_reader import PAGE_BYTES_MAX
from fairlead.history.shard.shard import Shard
from fairlead.history.state import RunState, TaskKind, WorkflowTask

PAGE_EVENTS = 256
PAGE_EVENTS_MAX = 1_000
_TOKEN_BYTES_MAX = 4_096
_LENGTH_DELIMITED = 2


class HistoryPageToken(msgspec.Struct, frozen=True, array_like=True):
    """The start of the next page, and the end that the history had when the first page was read.

    `task` is (scheduled event id, attempt) of a workflow task whose events are not stored; they follow the last page.
    """

    run_id: str
    next_event_id: int
    end_event_id: int
    branch_id: str = ""
    task: tuple[int, int] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HistoryPageToken).decode


def encode_page_token(token: HistoryPageToken) -> bytes:
    """The token as bytes, opaque to clients."""
    return _encode(token)


def decode_page_token(token: bytes) -> HistoryPageToken:
    """Decode a token that this server issued; InvalidArgument for any other bytes."""
    if len(token) > _TOKEN_BYTES_MAX:
        raise InvalidArgument("Invalid NextPageToken.")
    try:
        return _decode(token)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgument("Invalid NextPageToken.") from None


def spliced(message: Message, field: str, payloads: Sequence[bytes]) -> bytes:
    """The serialized message, with serialized values appended to one of its fields without being decoded."""
    head = message.SerializeToString()
    if not payloads:
        return head
    number = message.DESCRIPTOR.fields_by_name[field].number
    size = sum(map(len, payloads))
    return b"".join((head, varint(number << 3 | _LENGTH_DELIMITED), varint(size), *payloads))


async def read_page(
    shard: Shard, state: RunState, from_event_id: int, to_event_id: int, *, events_max: int = PAGE_EVENTS
) -> tuple[list[bytes], int]:
    """Serialized `History` messages with the events from `from_event_id` on, and the id of the first event after them.

    A page ends at the end of a batch, so it may have a few more events than `events_max`.
    """
    payloads: list[bytes] = []
    count, next_event_id, size = 0, from_event_id, 0
    while next_event_id < to_event_id and count < events_max and size < PAGE_BYTES_MAX:
        # Don't read more than this page, because the next page would read the same events again.
        until = min(to_event_id, next_event_id + events_max - count)
        batches = await shard.events.read_batches(state, next_event_id, until, limit_bytes=PAGE_BYTES_MAX - size)
        # A read returns at least one batch: one that does not fit begins the next page.
        if not batches or (payloads and len(batches[0].payload) > PAGE_BYTES_MAX - size):
            break
        for batch in batches:
            payloads.append(_cut(batch, next_event_id, to_event_id))
            size += len(batch.payload)
            end = min(batch.last_event_id + 1, to_event_id)
            count += end - next_event_id
            next_event_id = end
    return payloads, next_event_id


def _cut(batch: Batch, from_event_id: int, to_event_id: int) -> bytes:
    if batch.first_event_id >= from_event_id and batch.last_event_id < to_event_id:
        return batch.payload
    events = History.FromString(batch.payload).events
    return History(events=[each for each in events if from_event_id <= each.event_id < to_event_id]).SerializeToString()


def unwritten_events(state: RunState, task: WorkflowTask) -> bytes:
    """The events of a transient or speculative task, which are stored only if it succeeds, for workers and readers."""
    if task.kind is TaskKind.NORMAL:
        return b""
    scheduled = HistoryEvent(
        event_id=task.scheduled_event_id,
        event_time=to_timestamp(task.scheduled_ns),
        event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
        version=task.version,
        workflow_task_scheduled_event_attributes=scheduled_attributes(state, task),
    )
    if not task.is_started:
        return History(events=[scheduled]).SerializeToString()
    started = HistoryEvent(
        event_id=task.started_event_id,
        event_time=to_timestamp(task.started_ns),
        event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
        version=task.version,
        workflow_task_started_event_attributes=started_attributes(task),
    )
    return History(events=[scheduled, started]).SerializeToString()
