"""The API error of an update-with-start that failed: one status for each of its operations."""

from collections.abc import Sequence

from temporalio.api.errordetails.v1 import MultiOperationExecutionFailure
from temporalio.api.failure.v1 import MultiOperationExecutionAborted

from fairlead.api.codes import code_of
from fairlead.api.error_details import packed
from fairlead.api.errors import API_ERRORS, Aborted, ApiError, InvalidArgument
from fairlead.api.status import details_of
from fairlead.core.errors import FairleadError

_Status = MultiOperationExecutionFailure.OperationStatus


def operation_aborted() -> Aborted:
    """The error of an operation that was not carried out because the other operation failed."""
    return Aborted("Operation was aborted.", packed(MultiOperationExecutionAborted()))


def multi_operation_error(outcomes: Sequence[FairleadError | None]) -> ApiError:
    """One error for all operations, with the class of the first that was not just aborted; None means success."""
    failed = next(
        (each for each in outcomes if each is not None and not isinstance(each, Aborted)), operation_aborted()
    )
    kind = next((base for base in type(failed).__mro__ if base in API_ERRORS), InvalidArgument)
    failure = MultiOperationExecutionFailure(statuses=[_status(outcome) for outcome in outcomes])
    return kind("Update-with-Start could not be executed.", packed(failure))


def _status(outcome: FairleadError | None) -> MultiOperationExecutionFailure.OperationStatus:
    if outcome is None:
        return _Status()
    return _Status(code=int(code_of(outcome)), message=str(outcome), details=details_of(outcome))
