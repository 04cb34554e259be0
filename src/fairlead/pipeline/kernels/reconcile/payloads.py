"""Checks that the payload of a journaled batch matches its record. Runs in Python workers."""

import base64
import binascii
from collections.abc import Iterable, Sequence

from google.protobuf.message import DecodeError
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.history.events.signal_ids import signal_id
from fairlead.history.shard.journal import event_digest


def payload_fault(
    payload: str | None,
    *,
    run_id: str,
    first_event_id: int,
    digests: Sequence[str] | None,
    types: Sequence[int] | None,
    signals: Sequence[str] | None,
    is_outline: bool = False,
) -> str | None:
    """Return how the payload contradicts its record; None if it does not, or if payload or digests are missing.

    An outline lacks the data of payloads, so that the digests say nothing about it.
    """
    if payload is None or digests is None:
        return None
    try:
        events = History.FromString(base64.b64decode(payload, validate=True)).events
    except (DecodeError, binascii.Error, ValueError):
        return "the payload can't be read"
    if [event.event_id for event in events] != [*range(first_event_id, first_event_id + len(digests))]:
        return "the payload's event ids differ from the record"
    if not is_outline and [event_digest(event) for event in events] != [*digests]:
        return "the payload does not match the digests"
    if types is not None and [event.event_type for event in events] != [*types]:
        return "the payload's event types differ from the record"
    return None if _signals(events, run_id) == [*(signals or ())] else "the payload's signals differ from the record"


def _signals(events: Iterable[HistoryEvent], run_id: str) -> list[str]:
    return [
        signal_id(event, run_id)
        for event in events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    ]
