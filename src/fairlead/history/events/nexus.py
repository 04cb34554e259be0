"""Effects of the events of Nexus operations on the calling workflow."""

from temporalio.api.history.v1 import HistoryEvent

from fairlead.api.times import from_duration, from_timestamp
from fairlead.history.events.errors import pending
from fairlead.history.state.pending import PendingNexusOperation
from fairlead.history.state.run import RunState

_NOUN = "Nexus operation scheduled by event"


def scheduled(state: RunState, event: HistoryEvent) -> None:
    """NexusOperationScheduled: the operation becomes pending."""
    attributes = event.nexus_operation_scheduled_event_attributes
    state.nexus_operations[event.event_id] = PendingNexusOperation(
        scheduled_event_id=event.event_id,
        version=event.version,
        endpoint=attributes.endpoint,
        service=attributes.service,
        operation=attributes.operation,
        request_id=attributes.request_id,
        scheduled_ns=from_timestamp(event.event_time),
        schedule_to_close_ns=from_duration(attributes.schedule_to_close_timeout),
        endpoint_id=attributes.endpoint_id,
        schedule_to_start_ns=from_duration(attributes.schedule_to_start_timeout),
        start_to_close_ns=from_duration(attributes.start_to_close_timeout),
    )


def started(state: RunState, event: HistoryEvent) -> None:
    """NexusOperationStarted: the operation is running, and a callback will report its end."""
    attributes = event.nexus_operation_started_event_attributes
    operation = pending(state, event, state.nexus_operations, attributes.scheduled_event_id, _NOUN)
    operation.started_event_id = event.event_id
    operation.operation_token = attributes.operation_token or attributes.operation_id
    operation.started_ns = from_timestamp(event.event_time)


def cancel_requested(state: RunState, event: HistoryEvent) -> None:
    """NexusOperationCancelRequested: remember the event of the request."""
    attributes = event.nexus_operation_cancel_requested_event_attributes
    operation = pending(state, event, state.nexus_operations, attributes.scheduled_event_id, _NOUN)
    operation.cancel_requested_event_id = event.event_id


def cancel_answered(_state: RunState, _event: HistoryEvent) -> None:
    """The result of a cancel request: no effect, because the operation continues until its end is reported."""


def completed(state: RunState, event: HistoryEvent) -> None:
    """NexusOperationCompleted: the operation is no longer pending."""
    _end(state, event, event.nexus_operation_completed_event_attributes.scheduled_event_id)


def failed(state: RunState, event: HistoryEvent) -> None:
    """NexusOperationFailed: the operation is no longer pending."""
    _end(state, event, event.nexus_operation_failed_event_attributes.scheduled_event_id)


def canceled(state: RunState, event: HistoryEvent) -> None:
    """NexusOperationCanceled: the operation is no longer pending."""
    _end(state, event, event.nexus_operation_canceled_event_attributes.scheduled_event_id)


def timed_out(state: RunState, event: HistoryEvent) -> None:
    """NexusOperationTimedOut: the operation is no longer pending."""
    _end(state, event, event.nexus_operation_timed_out_event_attributes.scheduled_event_id)


def _end(state: RunState, event: HistoryEvent, scheduled_event_id: int) -> None:
    pending(state, event, state.nexus_operations, scheduled_event_id, _NOUN)
    del state.nexus_operations[scheduled_event_id]
