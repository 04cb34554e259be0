"""Outlines of events: the data of payloads is gone, all the rest is there."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from temporalio.api.common.v1 import Callback, Memo, Payload, Payloads, SearchAttributes
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import (
    ActivityTaskFailedEventAttributes,
    History,
    HistoryEvent,
    MarkerRecordedEventAttributes,
    NexusOperationScheduledEventAttributes,
    WorkflowExecutionStartedEventAttributes,
)
from temporalio.api.sdk.v1 import UserMetadata

from fairlead.history.shard.journal import event_digest, to_record
from fairlead.history.shard.outline import SIZE_KEY, outline_event
from fairlead.history.shard.stream_rows import Streamed, StreamRow
from fairlead.settings.static.journal import JournalPayloads
from tests.history.recordings import NAMES, load

SECRET = b"4111-1111-1111-1111"
ROW = StreamRow("ns", "w", "r", "t", "b", 1, 1, 21, ((1, 21),), 1, "", 5)


def a_payload() -> Payload:
    return Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"k1"}, data=SECRET)


def payloads() -> Payloads:
    return Payloads(payloads=[a_payload()])


def events_with_secrets() -> list[HistoryEvent]:
    cause = Failure(message="cause", encoded_attributes=a_payload())
    cause.application_failure_info.details.CopyFrom(payloads())
    return [
        HistoryEvent(
            user_metadata=UserMetadata(summary=a_payload()),
            workflow_execution_started_event_attributes=WorkflowExecutionStartedEventAttributes(
                input=payloads(),
                memo=Memo(fields={"m": a_payload()}),
                search_attributes=SearchAttributes(indexed_fields={"s": a_payload()}),
                completion_callbacks=[
                    Callback(nexus=Callback.Nexus(url="http://x", header={"authorization": SECRET.decode()})),
                    Callback(internal=Callback.Internal(data=SECRET)),
                ],
            ),
        ),
        HistoryEvent(
            activity_task_failed_event_attributes=ActivityTaskFailedEventAttributes(
                failure=Failure(message="outer", cause=cause)
            )
        ),
        HistoryEvent(
            marker_recorded_event_attributes=MarkerRecordedEventAttributes(
                marker_name="side effect", details={"data": payloads()}
            )
        ),
        HistoryEvent(
            nexus_operation_scheduled_event_attributes=NexusOperationScheduledEventAttributes(
                input=a_payload(), nexus_header={"token": SECRET.decode()}
            )
        ),
    ]


def all_payloads(message: Any) -> Iterator[Payload]:
    """Every payload below a message, found without the code under test."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            inner = [value[name] for name in sorted(value)]
        else:
            inner = list(value) if field.is_repeated else [value]
        for one in inner:
            if not isinstance(one, str | bytes):
                yield from all_payloads(one)


@pytest.mark.parametrize("number", range(4))
def test_no_payload_data_is_left_at_any_depth(number: int) -> None:
    event = events_with_secrets()[number]
    before = len(list(all_payloads(event)))
    outline_event(event)
    assert SECRET not in event.SerializeToString()
    found = list(all_payloads(event))
    assert len(found) == before
    for payload in found:
        assert dict(payload.metadata) == {
            "encoding": b"binary/encrypted",
            "encryption-key-id": b"k1",
            SIZE_KEY: str(len(SECRET)).encode(),
        }


def test_the_names_of_headers_stay() -> None:
    event = events_with_secrets()[3]
    outline_event(event)
    assert dict(event.nexus_operation_scheduled_event_attributes.nexus_header) == {"token": ""}


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_history_loses_nothing_but_the_data_of_payloads(name: str) -> None:
    for event in load(name):
        outlined = HistoryEvent.FromString(event.SerializeToString())
        outline_event(outlined)
        sizes = [len(payload.data) for payload in all_payloads(event)]
        assert [int(payload.metadata[SIZE_KEY]) for payload in all_payloads(outlined)] == sizes
        # With the data put back, the events are equal.
        for was, now in zip(all_payloads(event), all_payloads(outlined), strict=True):
            del now.metadata[SIZE_KEY]
            now.data = was.data
        assert outlined == event


def test_a_record_has_an_outline_instead_of_a_payload_and_digests_of_the_whole_events() -> None:
    events = events_with_secrets()
    record = to_record(
        Streamed(9, ROW, History(events=events).SerializeToString()), payloads=JournalPayloads.KEYS, namespace="n"
    )
    assert record.payload is None
    outline = base64.b64decode(record.outline or "")
    assert len(History.FromString(outline).events) == len(events)
    assert SECRET not in outline
    assert record.event_digests == [event_digest(event) for event in events]
