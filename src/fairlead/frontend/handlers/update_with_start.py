"""Update-with-start: one step of the history service carries out both operations, or neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.api.errors import ApiError, InvalidArgument
from fairlead.api.multi_operation import multi_operation_error, operation_aborted
from fairlead.frontend.gateway.deadlines import HISTORY_WAIT_S_MAX, wait_s
from fairlead.frontend.validation.start import check_start
from fairlead.frontend.validation.update import check_update

if TYPE_CHECKING:
    import temporalio.api.workflowservice.v1 as api

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call

    Operation = api.ExecuteMultiOperationRequest.Operation


async def execute(frontend: Frontend, request: api.ExecuteMultiOperationRequest, call: Call) -> bytes:
    """Start a workflow unless it is running, and send it an update."""
    namespace = await frontend.namespaces.find(request.namespace)
    kinds = [operation.WhichOneof("operation") for operation in request.operations]
    if kinds != ["start_workflow", "update_workflow"]:
        raise InvalidArgument("Operations have to be exactly [Start, Update].")
    first, second = request.operations[0].start_workflow, request.operations[1].update_workflow
    problems = [_start_problem(frontend, namespace, first), _update_problem(frontend, namespace, second)]
    if problems == [None, None] and first.workflow_id != second.workflow_execution.workflow_id:
        problems[1] = InvalidArgument("WorkflowId is not consistent with previous operation(s).")
    if problems != [None, None]:
        # Report the rejected operation; the other operation was not carried out either.
        raise multi_operation_error([problem or operation_aborted() for problem in problems])
    first.namespace = second.namespace = request.namespace
    return await frontend.history.call(
        "ExecuteMultiOperation", namespace.id, first.workflow_id, request, timeout_s=wait_s(call, HISTORY_WAIT_S_MAX)
    )


def _start_problem(
    frontend: Frontend, namespace: Namespace, request: api.StartWorkflowExecutionRequest
) -> ApiError | None:
    try:
        _check_namespace(namespace, request.namespace)
        check_start(frontend, namespace, request)
        if request.cron_schedule:
            raise InvalidArgument("CronSchedule is not allowed.")
        if request.request_eager_execution:
            raise InvalidArgument("RequestEagerExecution is not supported.")
        if request.workflow_start_delay.seconds or request.workflow_start_delay.nanos:
            raise InvalidArgument("WorkflowStartDelay is not supported.")
    except ApiError as problem:
        return problem
    return None


def _update_problem(
    frontend: Frontend, namespace: Namespace, request: api.UpdateWorkflowExecutionRequest
) -> ApiError | None:
    try:
        _check_namespace(namespace, request.namespace)
        check_update(frontend, request)
        if request.first_execution_run_id:
            raise InvalidArgument("FirstExecutionRunId is not allowed.")
        if request.workflow_execution.run_id:
            raise InvalidArgument("RunId is not allowed.")
    except ApiError as problem:
        return problem
    return None


def _check_namespace(namespace: Namespace, name: str) -> None:
    if name and name != namespace.name:
        raise InvalidArgument("Operation namespace did not match request's namespace.")


METHODS: dict[str, Handler] = {"ExecuteMultiOperation": execute}
