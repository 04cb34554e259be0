"""The steps of updates that leave events. Those that wait, and those that are rejected, leave none."""

from temporalio.api.enums.v1 import UpdateAdmittedEventOrigin
from temporalio.api.history.v1 import (
    HistoryEvent,
    WorkflowExecutionUpdateAcceptedEventAttributes,
    WorkflowExecutionUpdateAdmittedEventAttributes,
    WorkflowExecutionUpdateCompletedEventAttributes,
)
from temporalio.api.update.v1 import Acceptance, Request, Response

from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_workflow_tasks import wake
from fairlead.history.state.errors import BadRequest


def admit_update(transaction: Transaction, request: Request, origin: UpdateAdmittedEventOrigin.ValueType) -> None:
    """Keep an update that was accepted on a line of events that is left: it is delivered again."""
    transaction.state.check_open()
    transaction.add(WorkflowExecutionUpdateAdmittedEventAttributes(request=request, origin=origin))
    wake(transaction)


def accept_update(transaction: Transaction, update_id: str, acceptance: Acceptance) -> HistoryEvent:
    """The workflow works on it. The request is written unless an event holds it already."""
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
        )
    )


def complete_update(transaction: Transaction, update_id: str, response: Response) -> HistoryEvent:
    """The update has an outcome."""
    record = transaction.state.updates.get(update_id)
    if record is None or not record.accepted_event_id or record.completed_event_id:
        raise BadRequest(f"update {update_id!r} is not accepted, or is completed")
    return transaction.add(
        WorkflowExecutionUpdateCompletedEventAttributes(
            meta=response.meta, accepted_event_id=record.accepted_event_id, outcome=response.outcome
        )
    )
