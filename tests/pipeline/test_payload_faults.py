"""A journaled outline must match its record's event types; a payload must also match the digests of the events."""

import base64

from pyspark.sql import SparkSession
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent, WorkflowExecutionSignaledEventAttributes

from fairlead.history.shard.journal import to_record
from fairlead.history.shard.stream_rows import Streamed, StreamRow
from fairlead.journal import HistoryRecord
from fairlead.pipeline.schemas import HISTORY_RECORD
from fairlead.pipeline.stages.payloads import with_payload_faults
from fairlead.settings.static.journal import JournalPayloads

ROW = StreamRow("ns", "w", "r", "t", "b", 3, 3, 21, ((3, 21),), 1, "", 5)
SIGNAL = HistoryEvent(
    event_id=3,
    event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
    workflow_execution_signaled_event_attributes=WorkflowExecutionSignaledEventAttributes(
        request_id="once", input=Payloads(payloads=[Payload(data=b"private")])
    ),
)
OTHER = HistoryEvent(event_id=3, event_type=EventType.EVENT_TYPE_TIMER_STARTED)


def record_of(payloads: JournalPayloads) -> HistoryRecord:
    return to_record(Streamed(9, ROW, History(events=[SIGNAL]).SerializeToString()), payloads=payloads)


def encoded(event: HistoryEvent) -> str:
    return base64.b64encode(History(events=[event]).SerializeToString()).decode()


def test_an_outline_is_checked_for_its_events_and_a_payload_for_its_content_as_well(spark: SparkSession) -> None:
    whole, outlined, bare = (
        record_of(form) for form in (JournalPayloads.WHOLE, JournalPayloads.KEYS, JournalPayloads.NONE)
    )
    # The outline in the place of the payload: its content is not what was written.
    emptied = record_of(JournalPayloads.WHOLE)
    emptied.payload = outlined.outline
    spoilt, unreadable = record_of(JournalPayloads.KEYS), record_of(JournalPayloads.KEYS)
    spoilt.outline, unreadable.outline = encoded(OTHER), "////"
    rows = [
        {"payload": each.payload, "outline": each.outline, "run_id": each.run_id, "first_event_id": 3}
        | {"event_digests": each.event_digests, "event_types": each.event_types, "signals": each.signals}
        for each in (whole, outlined, bare, emptied, spoilt, unreadable)
    ]
    frame = spark.createDataFrame(
        [tuple(row.get(name) for name in HISTORY_RECORD.names) for row in rows], HISTORY_RECORD
    )
    assert [row.payload_fault for row in with_payload_faults(frame).collect()] == [
        None,
        None,
        None,
        "the payload does not match the digests",
        "the payload's event types differ from the record",
        "the payload can't be read",
    ]
