"""Requests to Nexus handlers, as workers get them."""

import msgspec
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.nexus.v1 import CancelOperationRequest, Request, StartOperationRequest
from temporalio.api.workflowservice.v1 import PollNexusTaskQueueResponse

from fairlead.history.events.write_nexus import CALL_NS_MAX
from fairlead.history.nexus.callbacks import SYSTEM_URL, TOKEN_HEADER, CallbackToken, encode_token
from fairlead.history.nexus.links import event_link, to_nexus
from fairlead.history.state.pending import NexusProgress, PendingNexusOperation
from fairlead.history.state.run import RunState
from fairlead.history.state.times import MILLISECOND_NS, shorter, to_timestamp
from fairlead.history.tokens import NexusTaskToken
from fairlead.history.tokens import encode_token as encode_task_token

REQUEST_TIMEOUT = "request-timeout"
OPERATION_TIMEOUT = "operation-timeout"


class NexusCall(msgspec.Struct, frozen=True, array_like=True):
    """One request, as matching keeps it: where the handler is, and until when it may answer."""

    handler_namespace_id: str
    scheduled_event_id: int
    attempt: int
    is_cancel: bool
    made_ns: int


def encode_call(call: NexusCall) -> bytes:
    """The request as bytes."""
    return msgspec.msgpack.encode(call)


def decode_call(data: bytes) -> NexusCall:
    """The request that `encode_call` was given."""
    return msgspec.msgpack.decode(data, type=NexusCall)


def poll_answer(
    state: RunState,
    operation: PendingNexusOperation,
    progress: NexusProgress,
    event: HistoryEvent,
    call: NexusCall,
    *,
    namespace: str,
    now_ns: int,
) -> PollNexusTaskQueueResponse:
    """What a worker is given. `event` is the one with which the operation was scheduled, in `namespace`."""
    identity, attributes = state.identity, event.nexus_operation_scheduled_event_attributes
    request = Request(
        header=attributes.nexus_header, scheduled_time=to_timestamp(call.made_ns), endpoint=operation.endpoint
    )
    whole_ns = operation.schedule_to_close_ns
    whole_left_ns = max(MILLISECOND_NS, operation.scheduled_ns + whole_ns - now_ns) if whole_ns else 0
    left_ns = max(MILLISECOND_NS, call.made_ns + CALL_NS_MAX - now_ns)
    request.header[REQUEST_TIMEOUT] = _milliseconds(shorter(left_ns, whole_left_ns))
    if call.is_cancel:
        request.capabilities.SetInParent()
        request.cancel_operation.CopyFrom(
            CancelOperationRequest(
                service=operation.service,
                operation=operation.operation,
                operation_id=progress.token,
                operation_token=progress.token,
            )
        )
    else:
        request.capabilities.temporal_failure_responses = True
        request.start_operation.CopyFrom(_start(state, operation, event, namespace))
        if timeout_ns := shorter(whole_left_ns, operation.start_to_close_ns):
            request.header[OPERATION_TIMEOUT] = _milliseconds(timeout_ns)
    token = NexusTaskToken(
        call.handler_namespace_id,
        identity.workflow_id,
        identity.run_id,
        identity.namespace_id,
        call.scheduled_event_id,
        call.attempt,
        call.is_cancel,
    )
    return PollNexusTaskQueueResponse(task_token=encode_task_token(token), request=request)


def _start(
    state: RunState, operation: PendingNexusOperation, event: HistoryEvent, namespace: str
) -> StartOperationRequest:
    identity, attributes = state.identity, event.nexus_operation_scheduled_event_attributes
    key = (identity.namespace_id, identity.workflow_id, identity.run_id)
    callback = CallbackToken(*key, operation.scheduled_event_id, operation.request_id)
    link = event_link(
        namespace=namespace,
        workflow_id=identity.workflow_id,
        run_id=identity.run_id,
        event_id=event.event_id,
        event_type=event.event_type,
    )
    return StartOperationRequest(
        service=operation.service,
        operation=operation.operation,
        request_id=operation.request_id,
        callback=SYSTEM_URL,
        callback_header={TOKEN_HEADER: encode_token(callback)},
        payload=attributes.input if attributes.HasField("input") else None,
        links=[to_nexus(link)],
    )


def _milliseconds(duration_ns: int) -> str:
    return f"{duration_ns // MILLISECOND_NS}ms"
