"""Requests to Nexus handlers, in the form that workers get."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from temporalio.api.common.v1 import Link, Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.nexus.v1 import CancelOperationRequest, Request, StartOperationRequest
from temporalio.api.workflowservice.v1 import PollNexusTaskQueueResponse

from fairlead.api.links import event_link, to_nexus
from fairlead.api.times import MILLISECOND_NS, shorter, to_timestamp
from fairlead.api.tokens import NexusTaskToken
from fairlead.api.tokens import encode_token as encode_task_token
from fairlead.history.nexus.callbacks import SYSTEM_URL, TOKEN_HEADER, CallbackToken, encode_token
from fairlead.history.state.nexus_calls import CALL_NS_MAX
from fairlead.history.state.pending import NexusProgress, PendingNexusOperation
from fairlead.history.state.run import RunState

REQUEST_TIMEOUT = "request-timeout"
OPERATION_TIMEOUT = "operation-timeout"


class NexusCall(msgspec.Struct, frozen=True, array_like=True):
    """One request as matching stores it. Its timeout counts from `made_ns`."""

    handler_namespace_id: str
    scheduled_event_id: int
    attempt: int
    is_cancel: bool
    made_ns: int


def encode_call(call: NexusCall) -> bytes:
    """Encode a request."""
    return msgspec.msgpack.encode(call)


def decode_call(data: bytes) -> NexusCall:
    """Decode a request that `encode_call` encoded."""
    return msgspec.msgpack.decode(data, type=NexusCall)


@dataclass(frozen=True, slots=True)
class Called:
    """An operation as its handler sees it. `link` leads to the caller; `token` is the handler's operation token."""

    endpoint: str
    service: str
    operation: str
    request_id: str
    token: str
    header: Mapping[str, str]
    payload: Payload | None
    scheduled_ns: int
    schedule_to_close_ns: int
    start_to_close_ns: int
    callback: CallbackToken
    link: Link


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
    """The poll response that contains a request. `event` scheduled the operation, in `namespace`."""
    identity, attributes = state.identity, event.nexus_operation_scheduled_event_attributes
    key = (identity.namespace_id, identity.workflow_id, identity.run_id)
    called = Called(
        endpoint=operation.endpoint,
        service=operation.service,
        operation=operation.operation,
        request_id=operation.request_id,
        token=progress.token,
        header=attributes.nexus_header,
        payload=attributes.input if attributes.HasField("input") else None,
        scheduled_ns=operation.scheduled_ns,
        schedule_to_close_ns=operation.schedule_to_close_ns,
        start_to_close_ns=operation.start_to_close_ns,
        callback=CallbackToken(*key, operation.scheduled_event_id, operation.request_id),
        link=event_link(
            namespace=namespace,
            workflow_id=identity.workflow_id,
            run_id=identity.run_id,
            event_id=event.event_id,
            event_type=event.event_type,
        ),
    )
    return task_of(called, call, now_ns=now_ns)


def task_of(called: Called, call: NexusCall, *, now_ns: int) -> PollNexusTaskQueueResponse:
    """The Nexus task in which a worker gets a request."""
    request = Request(header=called.header, scheduled_time=to_timestamp(call.made_ns), endpoint=called.endpoint)
    whole_ns = called.schedule_to_close_ns
    whole_left_ns = max(MILLISECOND_NS, called.scheduled_ns + whole_ns - now_ns) if whole_ns else 0
    left_ns = max(MILLISECOND_NS, call.made_ns + CALL_NS_MAX - now_ns)
    request.header[REQUEST_TIMEOUT] = _milliseconds(shorter(left_ns, whole_left_ns))
    if call.is_cancel:
        request.capabilities.SetInParent()
        request.cancel_operation.CopyFrom(
            CancelOperationRequest(
                service=called.service,
                operation=called.operation,
                operation_id=called.token,
                operation_token=called.token,
            )
        )
    else:
        request.capabilities.temporal_failure_responses = True
        request.start_operation.CopyFrom(_start(called))
        if timeout_ns := shorter(whole_left_ns, called.start_to_close_ns):
            request.header[OPERATION_TIMEOUT] = _milliseconds(timeout_ns)
    caller = called.callback
    token = NexusTaskToken(
        call.handler_namespace_id,
        caller.workflow_id,
        caller.run_id,
        caller.namespace_id,
        call.scheduled_event_id,
        call.attempt,
        call.is_cancel,
        caller.is_standalone,
        caller.request_id,
    )
    return PollNexusTaskQueueResponse(task_token=encode_task_token(token), request=request)


def _start(called: Called) -> StartOperationRequest:
    return StartOperationRequest(
        service=called.service,
        operation=called.operation,
        request_id=called.request_id,
        callback=SYSTEM_URL,
        callback_header={TOKEN_HEADER: encode_token(called.callback)},
        payload=called.payload,
        links=[to_nexus(called.link)],
    )


def _milliseconds(duration_ns: int) -> str:
    return f"{duration_ns // MILLISECOND_NS}ms"
