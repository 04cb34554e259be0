"""Validation of requests about standalone Nexus operations, in the order and the words of Temporal's server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from temporalio.api.enums.v1 import NexusOperationWaitStage as WaitStage

from fairlead.api.errors import InvalidArgument, NotFound
from fairlead.api.search.attributes import problem_of
from fairlead.api.times import DURATION_NS_MAX, from_duration, to_duration
from fairlead.frontend.validation.common import blob_size_max, check_metadata, is_longer, is_run_id, is_too_large
from fairlead.settings.dynamic.limits import MAX_ID_LENGTH

if TYPE_CHECKING:
    from temporalio.api.workflowservice.v1 import (
        PollNexusOperationExecutionRequest,
        StartNexusOperationExecutionRequest,
    )

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend

NAME_BYTES_MAX = 1_000
REASON_BYTES_MAX = 1_000
HEADER_BYTES_MAX = 8_192
# Headers that the server itself sets on its requests to handlers.
RESERVED_HEADERS = frozenset(
    {
        "request-timeout",
        "xdc-redirection",
        "xdc-redirection-api",
        "caller-name",
        "caller-type",
        "call-initiation",
        "principal-type",
        "principal-name",
    }
)
_TIMEOUTS = ("schedule_to_close_timeout", "schedule_to_start_timeout", "start_to_close_timeout")


class WithOperation(Protocol):
    """A request about one operation."""

    operation_id: str
    run_id: str


class WithRequester(WithOperation, Protocol):
    """A request to end an operation."""

    identity: str
    request_id: str
    reason: str


def check_operation(frontend: Frontend, request: WithOperation) -> None:
    """Reject a request without a valid operation id, or with a run id that is not a UUID."""
    _check_id(frontend, request.operation_id)
    if request.run_id and not is_run_id(request.run_id):
        raise InvalidArgument("run_id is not a valid UUID")
    if "\0" in request.operation_id:
        # No store holds such an id, and PostgreSQL can't look it up.
        raise NotFound(f"operation not found for ID: {request.operation_id}")


def check_poll(frontend: Frontend, request: PollNexusOperationExecutionRequest) -> None:
    """Reject an unknown wait stage; by default a poll waits for the end."""
    check_operation(frontend, request)
    if request.wait_stage not in WaitStage.values():
        raise InvalidArgument(f"unsupported wait_stage: {request.wait_stage}")


def check_requester(frontend: Frontend, request: WithRequester) -> None:
    """Check a request to end an operation; fill in its request id."""
    request.request_id = request.request_id or frontend.new_id()
    _check_length(frontend, request.request_id, "request_id")
    check_operation(frontend, request)
    _check_length(frontend, request.identity, "identity")
    if is_longer(request.reason, REASON_BYTES_MAX):
        size = len(request.reason.encode())
        raise InvalidArgument(f"reason exceeds length limit. Length={size} Limit={REASON_BYTES_MAX}")


def check_start(frontend: Frontend, namespace: Namespace, request: StartNexusOperationExecutionRequest) -> None:
    """Reject an operation that can't be started; fill in the request id and put the headers in lower case."""
    request.request_id = request.request_id or frontend.new_id()
    _check_length(frontend, request.request_id, "request_id")
    _check_id(frontend, request.operation_id)
    if "\0" in request.operation_id:
        raise InvalidArgument("operation_id contains a NUL character: remove it")
    _check_length(frontend, request.identity, "identity")
    if not request.endpoint:
        raise InvalidArgument("endpoint is required")
    for name, value in (("service", request.service), ("operation", request.operation)):
        if not value:
            raise InvalidArgument(f"{name} is required")
        if is_longer(value, NAME_BYTES_MAX):
            raise InvalidArgument(f"{name} exceeds length limit. Length={len(value.encode())} Limit={NAME_BYTES_MAX}")
    _check_timeouts(request)
    if is_too_large(frontend, namespace, request.input, request, request.operation_id):
        size, size_max = request.input.ByteSize(), blob_size_max(frontend, namespace)
        raise InvalidArgument(f"input exceeds size limit. Length={size} Limit={size_max}")
    _check_header(request)
    check_metadata(frontend, namespace, request.user_metadata)
    problem = problem_of(request.search_attributes, namespace)
    if problem is not None:
        raise InvalidArgument(problem)


def _check_timeouts(request: StartNexusOperationExecutionRequest) -> None:
    for name in _TIMEOUTS:
        duration_ns = from_duration(getattr(request, name))
        if duration_ns < 0:
            raise InvalidArgument(f"{name} is invalid: negative duration")
        if duration_ns > DURATION_NS_MAX:
            getattr(request, name).CopyFrom(to_duration(DURATION_NS_MAX))


def _check_header(request: StartNexusOperationExecutionRequest) -> None:
    given = dict(request.nexus_header)
    for name in given:
        if name.lower() in RESERVED_HEADERS:
            raise InvalidArgument(f'nexus_header contains a disallowed key: "{name}"')
    if sum(len(name.encode()) + len(value.encode()) for name, value in given.items()) > HEADER_BYTES_MAX:
        raise InvalidArgument("nexus_header exceeds size limit")
    request.nexus_header.clear()
    for name, value in given.items():
        request.nexus_header[name.lower()] = value


def _check_id(frontend: Frontend, operation_id: str) -> None:
    if not operation_id:
        raise InvalidArgument("operation_id is required")
    _check_length(frontend, operation_id, "operation_id")


def _check_length(frontend: Frontend, text: str, noun: str) -> None:
    length_max = frontend.settings.get(MAX_ID_LENGTH)
    if is_longer(text, length_max):
        raise InvalidArgument(f"{noun} exceeds length limit. Length={len(text.encode())} Limit={length_max}")
