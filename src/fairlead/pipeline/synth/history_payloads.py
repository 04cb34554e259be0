"""Payloads for synthetic histories: minimal events that agree with their records, and the digests of these events."""

import base64

from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.history.shard.journal import event_digest
from fairlead.journal.records import HistoryRecord
from fairlead.pipeline.synth.history_runs import SIGNALED


def with_payloads(copies: dict[str, list[HistoryRecord]]) -> None:
    """Give every record of a run its events, the same in all clusters."""
    for records in copies.values():
        for record in records:
            events = _events(record)
            record.event_digests = [event_digest(event) for event in events]
            record.payload = _encode(events)


def spoil_payload(record: HistoryRecord) -> None:
    """Change the last event of a payload, but keep its digest."""
    events = _events(record)
    events[-1].worker_may_ignore = not events[-1].worker_may_ignore
    record.payload = _encode(events)


def _events(record: HistoryRecord) -> list[HistoryEvent]:
    events = [
        HistoryEvent(event_id=event_id, version=record.version, event_type=kind)  # type: ignore[arg-type]
        for event_id, kind in enumerate(record.event_types or (), record.first_event_id)
    ]
    signals = iter(record.signals or ())
    for event in events:
        if event.event_type == SIGNALED:
            event.workflow_execution_signaled_event_attributes.request_id = next(signals)
    return events


def _encode(events: list[HistoryEvent]) -> str:
    return base64.b64encode(History(events=events).SerializeToString()).decode()
