"""Every kind of error becomes the code and the details that Temporal's server sends."""

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

from fairlead.cluster.calls import CallLost, Exhausted, Unreachable
from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryElsewhere, RetryLater
from fairlead.frontend.errors import status_of
from fairlead.history.refusals import (
    already_started,
    exhausted,
    failed_precondition,
    invalid,
    namespace_not_found,
    not_found,
    unimplemented,
)
from fairlead.history.state import BadCommand, BadRequest, Busy, NotPending, RunClosed
from fairlead.rpc import Code, RpcStatus
from fairlead.storage.history_contract import BadSearch, LeaseLost, OutcomeUnknown, StoreUnavailable

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
        (invalid("m"), Code.INVALID_ARGUMENT, None),
        (not_found("m"), Code.NOT_FOUND, NotFoundFailure()),
        (already_started("m", request_id="request", run_id="run"), Code.ALREADY_EXISTS, STARTED),
        (failed_precondition("m"), Code.FAILED_PRECONDITION, None),
        (unimplemented("m"), Code.UNIMPLEMENTED, None),
        (exhausted("m", BUSY.cause), Code.RESOURCE_EXHAUSTED, BUSY),
        (NotPending("m"), Code.NOT_FOUND, NotFoundFailure()),
        (BadRequest("m"), Code.INVALID_ARGUMENT, None),
        (BadCommand(FAILED_TASK, "m"), Code.INVALID_ARGUMENT, None),
        (Busy("m"), Code.RESOURCE_EXHAUSTED, BUSY),
        (Exhausted("m"), Code.RESOURCE_EXHAUSTED, OVERLOADED),
        (BadSearch("m"), Code.INVALID_ARGUMENT, None),
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
def test_an_error_has_its_code_and_its_detail(error: FairleadError, code: Code, detail: Message | None) -> None:
    status = status_of(error)
    assert (status.code, status.message) == (code, "m")
    if detail is None:
        assert status.details is None
    else:
        packed = Any()
        packed.Pack(detail)
        assert status.details is not None
        assert GrpcStatus.FromString(status.details) == GrpcStatus(code=int(code), message="m", details=[packed])


def test_a_closed_run_and_an_unknown_namespace_are_not_found() -> None:
    closed = status_of(RunClosed())
    assert (closed.code, closed.message) == (Code.NOT_FOUND, "workflow execution already completed")
    unknown = status_of(namespace_not_found("n"))
    assert unknown.details is not None
    [detail] = GrpcStatus.FromString(unknown.details).details
    failure = NamespaceNotFoundFailure()
    assert detail.Unpack(failure)
    assert failure.namespace == "n"


def test_a_status_goes_out_as_it_is() -> None:
    status = RpcStatus(Code.ABORTED, "m", b"details")
    assert status_of(status) is status
