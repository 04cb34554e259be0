"""Conversion of the errors of Nexus handlers to Temporal's failures."""

import json

from google.protobuf.json_format import ParseDict, ParseError
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import NexusHandlerErrorRetryBehavior as RetryBehavior
from temporalio.api.failure.v1 import Failure, NexusOperationFailureInfo
from temporalio.api.nexus.v1 import Failure as NexusFailure
from temporalio.api.nexus.v1 import HandlerError, UnsuccessfulOperationError

from fairlead.history.state.pending import PendingNexusOperation

UNSUCCESSFUL = "nexus operation completed unsuccessfully"
# Metadata type of a Nexus failure whose details are a Temporal failure as JSON.
_TEMPORAL_FAILURE = "temporal.api.failure.v1.Failure"
_NESTED_MAX = 20
_STATE_FAILED = "failed"
_STATE_CANCELED = "canceled"
# Types of handler errors for which a retry does not help.
_FINAL_TYPES = frozenset({"BAD_REQUEST", "UNAUTHENTICATED", "UNAUTHORIZED", "NOT_FOUND", "CONFLICT", "NOT_IMPLEMENTED"})


def operation_failure(operation: PendingNexusOperation, token: str, cause: Failure) -> Failure:
    """The failure that the workflow gets for an operation that did not succeed."""
    return Failure(
        message=UNSUCCESSFUL,
        cause=cause,
        nexus_operation_execution_failure_info=NexusOperationFailureInfo(
            scheduled_event_id=operation.scheduled_event_id,
            endpoint=operation.endpoint,
            service=operation.service,
            operation=operation.operation,
            operation_id=token,
            operation_token=token,
        ),
    )


def handler_failure(error_type: str, message: str) -> Failure:
    """A failure that the server reports in place of a handler."""
    failure = Failure(message=message)
    failure.nexus_handler_failure_info.type = error_type
    return failure


def from_handler_error(error: HandlerError) -> Failure:
    """Convert the error that older workers send when they can't handle a request."""
    failure = Failure()
    failure.nexus_handler_failure_info.type = error.error_type
    failure.nexus_handler_failure_info.retry_behavior = error.retry_behavior
    if error.HasField("failure"):
        failure.cause.CopyFrom(from_nexus(error.failure))
    return failure


def is_retryable(failure: Failure) -> bool:
    """Whether the request may be retried: the handler decides, or else the type of its error."""
    info = failure.nexus_handler_failure_info
    if info.retry_behavior == RetryBehavior.NEXUS_HANDLER_ERROR_RETRY_BEHAVIOR_UNSPECIFIED:
        return info.type not in _FINAL_TYPES
    return info.retry_behavior == RetryBehavior.NEXUS_HANDLER_ERROR_RETRY_BEHAVIOR_RETRYABLE


def from_nexus(wanted: NexusFailure, *, is_canceled: bool = False, depth: int = 0) -> Failure:
    """Convert a Nexus failure. If it holds a Temporal failure, decode that; otherwise wrap its metadata and details."""
    failure = _parsed(wanted) if wanted.metadata.get("type") == _TEMPORAL_FAILURE else None
    if failure is None:
        failure = Failure()
        if is_canceled:
            failure.canceled_failure_info.SetInParent()
        elif wanted.metadata or wanted.details:
            failure.application_failure_info.type = "NexusFailure"
            failure.application_failure_info.details.payloads.append(_payload(wanted))
    failure.message = wanted.message
    failure.stack_trace = wanted.stack_trace or failure.stack_trace
    if wanted.HasField("cause") and depth < _NESTED_MAX:
        failure.cause.CopyFrom(from_nexus(wanted.cause, depth=depth + 1))
    return failure


def unsuccessful(error: UnsuccessfulOperationError) -> Failure | None:
    """Convert an operation's failure in the form of older workers; None if its state is neither failed nor canceled."""
    if error.operation_state not in (_STATE_FAILED, _STATE_CANCELED):
        return None
    return from_nexus(error.failure, is_canceled=error.operation_state == _STATE_CANCELED)


def _parsed(wanted: NexusFailure) -> Failure | None:
    try:
        return ParseDict(json.loads(wanted.details or b"{}"), Failure(), ignore_unknown_fields=True)
    except (ValueError, ParseError, RecursionError):
        return None


def _payload(wanted: NexusFailure) -> Payload:
    kept: dict[str, object] = {}
    if wanted.metadata:
        kept["metadata"] = dict(wanted.metadata)
    if wanted.details:
        kept["details"] = json.loads(wanted.details)
    data = json.dumps(kept, separators=(",", ":")).encode()
    return Payload(metadata={"encoding": b"json/plain"}, data=data)
