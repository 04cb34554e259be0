"""The error of update-with-start has a status for each operation, and the class of the operation that failed."""

import pytest
from google.protobuf.any_pb2 import Any
from temporalio.api.errordetails.v1 import MultiOperationExecutionFailure, NotFoundFailure
from temporalio.api.failure.v1 import MultiOperationExecutionAborted

from fairlead.api.errors import Aborted, ApiError, Gone, InvalidArgument, NotActive, NotFound
from fairlead.api.multi_operation import multi_operation_error, operation_aborted
from fairlead.core.errors import FairleadError, FixRequest
from fairlead.history.state import RunClosed
from fairlead.rpc import Code

OperationStatus = MultiOperationExecutionFailure.OperationStatus


def packed(message: MultiOperationExecutionAborted | NotFoundFailure) -> Any:
    wrapped = Any()
    wrapped.Pack(message)
    return wrapped


ABORTED = OperationStatus(
    code=int(Code.ABORTED), message="Operation was aborted.", details=[packed(MultiOperationExecutionAborted())]
)


def statuses_of(error: ApiError) -> list[MultiOperationExecutionFailure.OperationStatus]:
    failure = MultiOperationExecutionFailure()
    assert Any.FromString(error.detail).Unpack(failure)
    assert str(error) == "Update-with-Start could not be executed."
    return list(failure.statuses)


@pytest.mark.parametrize(
    ("failed", "expected", "status"),
    [
        (InvalidArgument("m"), InvalidArgument, OperationStatus(code=int(Code.INVALID_ARGUMENT), message="m")),
        (FixRequest("m"), InvalidArgument, OperationStatus(code=int(Code.INVALID_ARGUMENT), message="m")),
        (NotActive("m"), NotActive, OperationStatus(code=int(Code.FAILED_PRECONDITION), message="m")),
        (
            NotFound("m"),
            NotFound,
            OperationStatus(code=int(Code.NOT_FOUND), message="m", details=[packed(NotFoundFailure())]),
        ),
        (
            RunClosed("m"),
            Gone,
            OperationStatus(code=int(Code.NOT_FOUND), message="m", details=[packed(NotFoundFailure())]),
        ),
        (Aborted("m"), Aborted, OperationStatus(code=int(Code.ABORTED), message="m")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_operation_that_failed_gives_the_class(
    failed: FairleadError, expected: type[ApiError], status: MultiOperationExecutionFailure.OperationStatus
) -> None:
    for outcomes in ([failed, operation_aborted()], [operation_aborted(), failed]):
        error = multi_operation_error(outcomes)
        assert type(error) is expected
        assert statuses_of(error) == [status if outcome is failed else ABORTED for outcome in outcomes]


def test_an_operation_that_succeeded_has_an_empty_status() -> None:
    error = multi_operation_error([None, InvalidArgument("m")])
    assert statuses_of(error)[0] == OperationStatus()
