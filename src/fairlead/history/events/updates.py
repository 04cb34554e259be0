"""Effects of the events of updates. A rejected update has no events."""

from collections.abc import Iterable

from temporalio.api.common.v1 import Callback
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.update.v1 import Request

from fairlead.api.times import from_timestamp
from fairlead.history.events.errors import cannot_follow, pending
from fairlead.history.state.pending import UpdateCallback, UpdateRecord
from fairlead.history.state.run import RunState


def admitted(state: RunState, event: HistoryEvent) -> None:
    """UpdateAdmitted: an update of another branch or run, which is not delivered yet."""
    request = event.workflow_execution_update_admitted_event_attributes.request
    update_id = request.meta.update_id
    if update_id in state.updates:
        raise cannot_follow(state, event, f"update {update_id!r} is known already")
    state.updates[update_id] = UpdateRecord(admitted_event_id=event.event_id)
    _register(state.updates[update_id], request, event)


def accepted(state: RunState, event: HistoryEvent) -> None:
    """UpdateAccepted: the workflow handles the update."""
    attributes = event.workflow_execution_update_accepted_event_attributes
    # If an earlier event admitted the update, this event has no request, and its protocol instance id is the update id.
    update_id = attributes.accepted_request.meta.update_id or attributes.protocol_instance_id
    record = state.updates.setdefault(update_id, UpdateRecord())
    if record.accepted_event_id:
        raise cannot_follow(state, event, f"update {update_id!r} was accepted by event {record.accepted_event_id}")
    record.accepted_event_id = event.event_id
    _register(record, attributes.accepted_request, event)


def _register(record: UpdateRecord, request: Request, event: HistoryEvent) -> None:
    record.request_id = request.request_id or record.request_id
    add_callbacks(record, request.completion_callbacks, event)


def add_callbacks(record: UpdateRecord, callbacks: Iterable[Callback], event: HistoryEvent) -> None:
    """Register the callbacks that an event brings."""
    now_ns = from_timestamp(event.event_time)
    record.callbacks = [
        *record.callbacks,
        *(UpdateCallback(callback.SerializeToString(deterministic=True), now_ns) for callback in callbacks),
    ]


def completed(state: RunState, event: HistoryEvent) -> None:
    """UpdateCompleted: the update has an outcome."""
    attributes = event.workflow_execution_update_completed_event_attributes
    record = pending(state, event, state.updates, attributes.meta.update_id, "update")
    if record.completed_event_id or record.accepted_event_id != attributes.accepted_event_id:
        raise cannot_follow(
            state,
            event,
            f"update {attributes.meta.update_id!r} was accepted by event {record.accepted_event_id} and completed by "
            f"event {record.completed_event_id}",
        )
    record.completed_event_id = event.event_id
