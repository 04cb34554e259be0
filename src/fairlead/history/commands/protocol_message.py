"""Handles the command PROTOCOL_MESSAGE, which determines when an update's message takes effect among the commands."""

from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.protocol.v1 import Message
from temporalio.api.update.v1 import Acceptance, Rejection, Response

from fairlead.history.commands.checks import check, check_size
from fairlead.history.commands.task_response import TaskResponse, UpdateAccepted, UpdateCompleted, UpdateRejected
from fairlead.history.events.write_updates import accept_update, complete_update
from fairlead.history.state.errors import BadCommand, BadRequest

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_UPDATE_WORKFLOW_EXECUTION_MESSAGE


def handle(answer: TaskResponse, command: Command) -> None:
    """Carry out the message that the command names."""
    check(
        command.HasField("protocol_message_command_attributes"),
        _CAUSE,
        "ProtocolMessageCommandAttributes is not set on ProtocolMessageCommand.",
    )
    message_id = command.protocol_message_command_attributes.message_id
    check(bool(message_id), _CAUSE, "MessageID is not set on ProtocolMessageCommand.")
    message = answer.messages.pop(message_id, None)
    if message is None:
        raise BadCommand(_CAUSE, f"ProtocolMessageCommand referenced absent message ID {message_id}")
    handle_message(answer, message)


def handle_message(answer: TaskResponse, message: Message) -> None:
    """Write the event for an update's acceptance or outcome; a rejection is only reported to the caller."""
    kind = message.body.TypeName()
    check_size(answer, message.body.ByteSize(), _CAUSE, f"Message type {kind} exceeds size limit.")
    update_id = message.protocol_instance_id
    if update_id not in answer.dependencies.updates and update_id not in answer.transaction.state.updates:
        _check_known(message)
    try:
        if kind == Acceptance.DESCRIPTOR.full_name:
            _accept(answer, update_id, message)
        elif kind == Response.DESCRIPTOR.full_name:
            response = Response()
            message.body.Unpack(response)
            event = complete_update(answer.transaction, update_id, response)
            answer.update_news.append(UpdateCompleted(update_id, event.event_id, response.outcome))
        elif kind == Rejection.DESCRIPTOR.full_name:
            rejection = Rejection()
            message.body.Unpack(rejection)
            answer.update_news.append(UpdateRejected(update_id, rejection.failure))
        else:
            raise BadCommand(_CAUSE, f"unsupported protocol type {kind}")
    except BadRequest as wrong:
        name = f"*update.{message.body.TypeName().rpartition('.')[2]}"
        raise BadCommand(
            _CAUSE,
            f"invalid state transition attempted for Update {update_id}: received {name} message while in state "
            f"{_position(answer, update_id)}",
        ) from wrong


def _check_known(message: Message) -> None:
    """Check a message for an unknown update: it must be a rejection, or an acceptance that contains the request.

    The server may have lost the update; the acceptance then restores it. A rejection is ignored, since no caller waits
    for it.
    """
    acceptance = Acceptance()
    is_reported_whole = message.body.Unpack(acceptance) and acceptance.HasField("accepted_request")
    check(
        is_reported_whole or message.body.Is(Rejection.DESCRIPTOR),
        _CAUSE,
        f"update {message.protocol_instance_id} wasn't found on the server. This is most likely a transient error "
        "which will be resolved automatically by retries",
    )


def _position(answer: TaskResponse, update_id: str) -> str:
    """The stage of an update, in Temporal's words."""
    record = answer.transaction.state.updates.get(update_id)
    if record is None or not record.accepted_event_id:
        return "Sent"
    return "Completed" if record.completed_event_id else "Accepted"


def _accept(answer: TaskResponse, update_id: str, message: Message) -> None:
    acceptance = Acceptance()
    message.body.Unpack(acceptance)
    request = answer.dependencies.updates.get(update_id)
    # Callbacks may have been added after the worker received its copy of the request.
    if request is not None and (request.completion_callbacks or not acceptance.HasField("accepted_request")):
        acceptance.accepted_request.CopyFrom(request)
    event = accept_update(answer.transaction, update_id, acceptance)
    answer.update_news.append(UpdateAccepted(update_id, event.event_id))
