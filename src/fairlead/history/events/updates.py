"""What the events of updates do. A rejected update has none."""

from temporalio.api.history.v1 import HistoryEvent

from fairlead.history.events.refusal import pending, refusal
from fairlead.history.state.pending import UpdateRecord
from fairlead.history.state.run import RunState


def admitted(state: RunState, event: HistoryEvent) -> None:
    """The update was taken over from a branch or run that went another way, and is yet to be delivered."""
    update_id = event.workflow_execution_update_admitted_event_attributes.request.meta.update_id
    if update_id in state.updates:
        raise refusal(state, event, f"update {update_id!r} is known already")
    state.updates[update_id] = UpdateRecord(admitted_event_id=event.event_id)


def accepted(state: RunState, event: HistoryEvent) -> None:
    """The workflow works on it."""
    attributes = event.workflow_execution_update_accepted_event_attributes
    # A request that was admitted by an event is not repeated here; the instance's id is the update's.
    update_id = attributes.accepted_request.meta.update_id or attributes.protocol_instance_id
    record = state.updates.setdefault(update_id, UpdateRecord())
    if record.accepted_event_id:
        raise refusal(state, event, f"update {update_id!r} was accepted by event {record.accepted_event_id}")
    record.accepted_event_id = event.event_id


def completed(state: RunState, event: HistoryEvent) -> None:
    """The update has an outcome."""
    attributes = event.workflow_execution_update_completed_event_attributes
    record = pending(state, event, state.updates, attributes.meta.update_id, "update")
    if record.completed_event_id or record.accepted_event_id != attributes.accepted_event_id:
        raise refusal(
            state,
            event,
            f"update {attributes.meta.update_id!r} was accepted by event {record.accepted_event_id} and completed by "
            f"event {record.completed_event_id}",
        )
    record.completed_event_id = event.event_id
