"""An update together with the start of its workflow: both or neither, in one step of the history service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.any_pb2 import Any
from temporalio.api.errordetails.v1 import MultiOperationExecutionFailure
from temporalio.api.failure.v1 import MultiOperationExecutionAborted

from fairlead.frontend.check_start import check_start
from fairlead.frontend.check_update import check_update
from fairlead.frontend.deadlines import HISTORY_WAIT_S_MAX, wait_s
from fairlead.history.refusals import Refused, invalid, refused
from fairlead.rpc import Code

if TYPE_CHECKING:
    import temporalio.api.workflowservice.v1 as api

    from fairlead.frontend.context import Frontend, Handler
    from fairlead.history.namespaces import Namespace
    from fairlead.rpc import Call

    Operation = api.ExecuteMultiOperationRequest.Operation


async def execute(frontend: Frontend, request: api.ExecuteMultiOperationRequest, call: Call) -> bytes:
    """Start a workflow unless it is running, and send it an update."""
    namespace = await frontend.namespaces.find(request.namespace)
    kinds = [operation.WhichOneof("operation") for operation in request.operations]
    if kinds != ["start_workflow", "update_workflow"]:
        raise invalid("Operations have to be exactly [Start, Update].")
    first, second = request.operations[0].start_workflow, request.operations[1].update_workflow
    problems = [_start_problem(frontend, namespace, first), _update_problem(frontend, namespace, second)]
    if problems == [None, None] and first.workflow_id != second.workflow_execution.workflow_id:
        problems[1] = invalid("WorkflowId is not consistent with previous operation(s).")
    if problems != [None, None]:
        raise failure_of(problems)
    first.namespace = second.namespace = request.namespace
    return await frontend.history.call(
        "ExecuteMultiOperation", namespace.id, first.workflow_id, request, timeout_s=wait_s(call, HISTORY_WAIT_S_MAX)
    )


def failure_of(problems: list[Refused | None]) -> Refused:
    """What a client is told where one operation was refused: the others were not done either."""
    aborted = Any()
    aborted.Pack(MultiOperationExecutionAborted())
    failure = MultiOperationExecutionFailure()
    code = int(Code.ABORTED)
    for problem in problems:
        if problem is None:
            failure.statuses.add(code=int(Code.ABORTED), message="Operation was aborted.", details=[aborted])
        else:
            details = [Any.FromString(problem.detail)] if problem.detail else []
            failure.statuses.add(code=problem.code, message=str(problem), details=details)
            code = problem.code if code == Code.ABORTED else code
    return refused(Code(code), "Update-with-Start could not be executed.", failure)


def _start_problem(
    frontend: Frontend, namespace: Namespace, request: api.StartWorkflowExecutionRequest
) -> Refused | None:
    try:
        _check_namespace(namespace, request.namespace)
        check_start(frontend, namespace, request)
        if request.cron_schedule:
            raise invalid("CronSchedule is not allowed.")
        if request.request_eager_execution:
            raise invalid("RequestEagerExecution is not supported.")
        if request.workflow_start_delay.seconds or request.workflow_start_delay.nanos:
            raise invalid("WorkflowStartDelay is not supported.")
    except Refused as problem:
        return problem
    return None


def _update_problem(
    frontend: Frontend, namespace: Namespace, request: api.UpdateWorkflowExecutionRequest
) -> Refused | None:
    try:
        _check_namespace(namespace, request.namespace)
        check_update(frontend, request)
        if request.first_execution_run_id:
            raise invalid("FirstExecutionRunId is not allowed.")
        if request.workflow_execution.run_id:
            raise invalid("RunId is not allowed.")
    except Refused as problem:
        return problem
    return None


def _check_namespace(namespace: Namespace, name: str) -> None:
    if name and name != namespace.name:
        raise invalid("Operation namespace did not match request's namespace.")


METHODS: dict[str, Handler] = {"ExecuteMultiOperation": execute}
