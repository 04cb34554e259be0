"""Every kind of error is sent with the status code and details of Temporal's server."""

import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from temporalio.api.common.v1 import GrpcStatus
from temporalio.api.enums.v1 import ResourceExhaustedCause, ResourceExhaustedScope, WorkflowTaskFailedCause
from temporalio.api.errordetails.v1 import (
    NamespaceNotFoundFailure,
    NotFoundFailure,
    ResourceExhaustedFailure,
    WorkflowExecutionAlreadyStartedFailure,
)

from fairlead.api.codes import CODES, code_of
from fairlead.api.error_details import already_started, exhausted, namespace_not_found
from fairlead.api.errors import (
    API_ERRORS,
    Aborted,
    AlreadyExists,
    ApiError,
    DeadlineExceeded,
    Exhausted,
    FailedPrecondition,
    Gone,
    InvalidArgument,
    NotActive,
    NotFound,
    OutOfRange,
    PermissionDenied,
    Unimplemented,
)
from fairlead.api.status import status_of
from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryElsewhere, RetryLater
from fairlead.history.state import BadCommand, BadRequest, NotPending, RunClosed, TooManySignals
from fairlead.rpc import Code, RpcStatus
from fairlead.rpc.hosts.caller import CallLost, Overloaded, Unreachable
from fairlead.rpc.hosts.wire import MalformedRequest
from fairlead.storage.history import BadSearch, LeaseLost, OutcomeUnknown, StoreUnavailable

BUSY = ResourceExhaustedFailure(
    cause=ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_BUSY_WORKFLOW,
    scope=ResourceExhaustedScope.RESOURCE_EXHAUSTED_SCOPE_NAMESPACE,
)
OVERLOADED = ResourceExhaustedFailure(
    cause=ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_SYSTEM_OVERLOADED,
    scope=ResourceExhaustedScope.RESOURCE_EXHAUSTED_SCOPE_SYSTEM,
)
STARTED = WorkflowExecutionAlreadyStartedFailure(start_request_id="request", run_id="run")
FAILED_TASK = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND


@pytest.mark.parametrize(
    ("error", "code", "detail"),
    [
        (InvalidArgument("m"), Code.INVALID_ARGUMENT, None),
        (NotFound("m"), Code.NOT_FOUND, NotFoundFailure()),
        (already_started("m", request_id="request", run_id="run"), Code.ALREADY_EXISTS, STARTED),
        (FailedPrecondition("m"), Code.FAILED_PRECONDITION, None),
        (AlreadyExists("m"), Code.ALREADY_EXISTS, None),
        (NotActive("m"), Code.FAILED_PRECONDITION, None),
        (PermissionDenied("m"), Code.PERMISSION_DENIED, None),
        (Unimplemented("m"), Code.UNIMPLEMENTED, None),
        (OutOfRange("m"), Code.OUT_OF_RANGE, None),
        (Exhausted("m"), Code.RESOURCE_EXHAUSTED, None),
        (DeadlineExceeded("m"), Code.DEADLINE_EXCEEDED, None),
        (Aborted("m"), Code.ABORTED, None),
        (Gone("m"), Code.NOT_FOUND, NotFoundFailure()),
        (exhausted("m", BUSY.cause), Code.RESOURCE_EXHAUSTED, BUSY),
        (NotPending("m"), Code.NOT_FOUND, NotFoundFailure()),
        (BadRequest("m"), Code.INVALID_ARGUMENT, None),
        (BadCommand(FAILED_TASK, "m"), Code.INVALID_ARGUMENT, None),
        (TooManySignals("m"), Code.INVALID_ARGUMENT, None),
        (Overloaded("m"), Code.RESOURCE_EXHAUSTED, OVERLOADED),
        (BadSearch("m"), Code.INVALID_ARGUMENT, None),
        (MalformedRequest("m"), Code.INVALID_ARGUMENT, None),
        (FixRequest("m"), Code.INVALID_ARGUMENT, None),
        (RetryElsewhere("m"), Code.UNAVAILABLE, None),
        (RetryLater("m"), Code.UNAVAILABLE, None),
        (LeaseLost("m"), Code.UNAVAILABLE, None),
        (StoreUnavailable("m"), Code.UNAVAILABLE, None),
        (OutcomeUnknown("m"), Code.UNAVAILABLE, None),
        (Unreachable("m"), Code.UNAVAILABLE, None),
        (CallLost("m"), Code.UNAVAILABLE, None),
        (GiveUp("m"), Code.INTERNAL, None),
        (FairleadError("m"), Code.INTERNAL, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_sent_with_its_code_and_detail(error: FairleadError, code: Code, detail: Message | None) -> None:
    """FL-79: one table maps classes to gRPC codes."""
    status = status_of(error)
    assert (status.code, status.message) == (code, "m")
    if detail is None:
        assert status.details is None
    else:
        packed = Any()
        packed.Pack(detail)
        assert status.details is not None
        assert GrpcStatus.FromString(status.details) == GrpcStatus(code=int(code), message="m", details=[packed])


def test_a_closed_run_and_an_unknown_namespace_are_sent_as_not_found() -> None:
    closed = status_of(RunClosed())
    assert (closed.code, closed.message) == (Code.NOT_FOUND, "workflow execution already completed")
    unknown = status_of(namespace_not_found("n"))
    assert unknown.details is not None
    [detail] = GrpcStatus.FromString(unknown.details).details
    failure = NamespaceNotFoundFailure()
    assert detail.Unpack(failure)
    assert failure.namespace == "n"


def test_a_status_error_is_sent_unchanged() -> None:
    status = RpcStatus(Code.ABORTED, "m", b"details")
    assert status_of(status) is status
    assert code_of(status) is Code.ABORTED


def test_every_api_error_has_an_entry_and_one_of_the_four_kinds() -> None:
    kinds = (FixRequest, RetryElsewhere, RetryLater, GiveUp)
    for known in API_ERRORS:
        assert known in CODES
        assert sum(issubclass(known, kind) for kind in kinds) == 1
    assert set(API_ERRORS) == set(ApiError.__subclasses__())
