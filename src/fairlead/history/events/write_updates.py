"""The steps of updates that write events. A waiting or rejected update has no events."""

from collections.abc import Iterable

from temporalio.api.enums.v1 import UpdateAdmittedEventOrigin
from temporalio.api.history.v1 import (
    HistoryEvent,
    WorkflowExecutionOptionsUpdatedEventAttributes,
    WorkflowExecutionUpdateAcceptedEventAttributes,
    WorkflowExecutionUpdateAdmittedEventAttributes,
    WorkflowExecutionUpdateCompletedEventAttributes,
)
from temporalio.api.update.v1 import Acceptance, Request, Response

from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_workflow_tasks import wake
from fairlead.history.state.errors import BadRequest
from fairlead.history.state.run import RunState
from fairlead.history.state.tasks import DeliverUpdateCallback


def admit_update(transaction: Transaction, request: Request, origin: UpdateAdmittedEventOrigin.ValueType) -> None:
    """Admit an update that was accepted on another branch or run, which is not current: it is delivered again."""
    transaction.state.check_open()
    transaction.add(WorkflowExecutionUpdateAdmittedEventAttributes(request=request, origin=origin))
    wake(transaction)


def accept_update(transaction: Transaction, update_id: str, acceptance: Acceptance) -> HistoryEvent:
    """Record that the workflow accepted the update.

    The event contains the request, unless an earlier event that admitted the update does.
    """
    record = transaction.state.updates.get(update_id)
    if record is not None and record.accepted_event_id:
        raise BadRequest(f"update {update_id!r} was accepted before")
    admitted = record is not None and record.admitted_event_id > 0
    return transaction.add(
        WorkflowExecutionUpdateAcceptedEventAttributes(
            protocol_instance_id=update_id,
            accepted_request_message_id=acceptance.accepted_request_message_id,
            accepted_request_sequencing_event_id=acceptance.accepted_request_sequencing_event_id,
            accepted_request=None if admitted else acceptance.accepted_request,
        ),
        links=() if admitted else acceptance.accepted_request.links,
    )


def attach_to_update(transaction: Transaction, update_id: str, request: Request) -> None:
    """Add the callbacks of another request for an accepted update."""
    transaction.state.check_open()
    attributes = WorkflowExecutionOptionsUpdatedEventAttributes()
    attributes.workflow_update_options.add(
        update_id=update_id,
        attached_request_id=request.request_id,
        attached_completion_callbacks=request.completion_callbacks,
    )
    transaction.add(attributes)


def complete_update(transaction: Transaction, update_id: str, response: Response) -> HistoryEvent:
    """Record the update's outcome."""
    record = transaction.state.updates.get(update_id)
    if record is None or not record.accepted_event_id or record.completed_event_id:
        raise BadRequest(f"update {update_id!r} is not accepted, or is completed")
    event = transaction.add(
        WorkflowExecutionUpdateCompletedEventAttributes(
            meta=response.meta, accepted_event_id=record.accepted_event_id, outcome=response.outcome
        )
    )
    leave_update_callbacks(transaction, update_id, event.event_id)
    return event


def leave_update_callbacks(transaction: Transaction, update_id: str, event_id: int) -> None:
    """Add the tasks that report an update's end to its callbacks; `event_id` is the event with the end."""
    state = transaction.state
    # Count callbacks that were attached during the workflow task: they are registered when it ends, in this step.
    waiting = sum(
        len(update.attached_completion_callbacks)
        for stored in state.live.buffered
        for update in _attached(stored)
        if update.update_id == update_id
    )
    delivered = state.live.update_callbacks.get(update_id, {})
    for number in range(len(state.updates[update_id].callbacks) + waiting):
        if number not in delivered:
            transaction.add_task(DeliverUpdateCallback(state.version_at(event_id), event_id, update_id, number))


def is_attached(state: RunState, update_id: str, request_id: str) -> bool:
    """Whether the callbacks of this request for the update are registered, or are in a buffered event."""
    if request_id in state.attached_request_ids or state.updates[update_id].request_id == request_id:
        return True
    return any(
        update.attached_request_id == request_id for stored in state.live.buffered for update in _attached(stored)
    )


def _attached(stored: bytes) -> Iterable[WorkflowExecutionOptionsUpdatedEventAttributes.WorkflowUpdateOptionsUpdate]:
    event = HistoryEvent.FromString(stored)
    return event.workflow_execution_options_updated_event_attributes.workflow_update_options
