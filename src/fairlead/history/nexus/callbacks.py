"""Completion callbacks: they report the close of a handler's workflow to the operation in the calling workflow."""

import base64
import binascii

import msgspec
from temporalio.api.common.v1 import Callback, Payload
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent

SYSTEM_URL = "temporal://system"
TOKEN_HEADER = "temporal-callback-token"  # noqa: S105 - the name of a header
OPERATION_TOKEN_HEADER = "nexus-operation-token"  # noqa: S105
NO_RESULT = Payload(metadata={"encoding": b"binary/null"})


class CallbackToken(msgspec.Struct, frozen=True, array_like=True):
    """The operation to which a callback reports.

    For a standalone operation, `workflow_id` is the operation's id and `scheduled_event_id` is 0.
    """

    namespace_id: str
    workflow_id: str
    run_id: str
    scheduled_event_id: int
    request_id: str
    is_standalone: bool = False


class OperationEnded(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of an asynchronous operation: `result` is a Payload, `failure` a Failure."""

    to: CallbackToken
    operation_token: str
    started_ns: int
    link: bytes
    result: bytes
    failure: bytes | None


def encode_token(token: CallbackToken) -> str:
    """The token as a header value."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(token)).decode()


def decode_token(text: str) -> CallbackToken | None:
    """The token in a header value; None if this server did not issue it."""
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(text), type=CallbackToken)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None


def token_of(callback: Callback) -> CallbackToken | None:
    """The operation to which a callback reports; None if this server did not issue the token."""
    return decode_token(callback.nexus.header.get(TOKEN_HEADER, ""))


def outcome_of(event: HistoryEvent) -> tuple[Payload, Failure | None]:
    """The result or failure of an operation, as the last event of the handler's workflow tells."""
    match event.WhichOneof("attributes"):
        case "workflow_execution_completed_event_attributes":
            payloads = event.workflow_execution_completed_event_attributes.result.payloads
            return (payloads[0] if payloads else NO_RESULT), None
        case "workflow_execution_failed_event_attributes":
            return NO_RESULT, event.workflow_execution_failed_event_attributes.failure
        case "workflow_execution_canceled_event_attributes":
            failure = Failure(message="operation canceled")
            canceled = event.workflow_execution_canceled_event_attributes
            failure.canceled_failure_info.SetInParent()
            if canceled.HasField("details"):
                failure.canceled_failure_info.details.CopyFrom(canceled.details)
            return NO_RESULT, failure
        case "workflow_execution_timed_out_event_attributes":
            failure = Failure(message="operation exceeded internal timeout")
            failure.timeout_failure_info.SetInParent()
            return NO_RESULT, failure
        case _:
            failure = Failure(message="operation terminated")
            failure.terminated_failure_info.SetInParent()
            return NO_RESULT, failure
