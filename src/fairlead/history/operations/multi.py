"""Several operations as one: a workflow is started if need be, and gets an update."""

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from temporalio.api.common.v1 import Link
from temporalio.api.enums.v1 import EventType, WorkflowExecutionStatus
from temporalio.api.enums.v1 import WorkflowIdConflictPolicy as Conflict
from temporalio.api.errordetails.v1 import MultiOperationExecutionFailure
from temporalio.api.failure.v1 import MultiOperationExecutionAborted
from temporalio.api.workflowservice.v1 import (
    ExecuteMultiOperationRequest,
    ExecuteMultiOperationResponse,
    StartWorkflowExecutionRequest,
    StartWorkflowExecutionResponse,
    UpdateWorkflowExecutionRequest,
    UpdateWorkflowExecutionResponse,
)

from fairlead.core.errors import FixRequest
from fairlead.history.operations.start import Begin, begin, start_answer
from fairlead.history.operations.update import Asked, answer, ask
from fairlead.history.refusals import Refused, refused
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Operation, Scope
from fairlead.history.state import RunClosed
from fairlead.history.state.errors import NotPending
from fairlead.rpc import Code

_Status = MultiOperationExecutionFailure.OperationStatus
_MESSAGE = "Update-with-Start could not be executed."


async def execute(scope: Scope, request: ExecuteMultiOperationRequest) -> Message:
    """Start a workflow and update it, or update the one that is there; both or none."""
    start, update = request.operations[0].start_workflow, request.operations[1].update_workflow
    try:
        return await _update_with_start(scope, start, update)
    except _ClosedMeanwhile:
        # The run that was to be updated has ended: now the start is wanted.
        try:
            return await _update_with_start(scope, start, update)
        except _ClosedMeanwhile as closed:
            raise update_failed(Refused(str(closed), int(Code.ABORTED))) from closed


class _ClosedMeanwhile(FixRequest):
    """The update came to a run that ended before a worker accepted it."""


async def _update_with_start(
    scope: Scope, start: StartWorkflowExecutionRequest, update: UpdateWorkflowExecutionRequest
) -> ExecuteMultiOperationResponse:
    async with scope.shard.lock(scope.namespace.id, start.workflow_id):
        run = await _existing(scope, start, update)
        if run is None:
            started, asked = await _start(scope, start, update)
        else:
            asked = await _ask(scope, run, update)
            started = _existing_answer(scope, run, asked)
    is_new = run is None
    try:
        updated = await answer(scope, update, asked)
    except FixRequest as failure:
        code = failure.code if isinstance(failure, Refused) else Code.INVALID_ARGUMENT
        if code == Code.DEADLINE_EXCEEDED:
            raise
        if code == Code.NOT_FOUND and not is_new:
            raise _ClosedMeanwhile(str(failure)) from failure
        raise update_failed(failure, was_started=is_new) from failure
    if not is_new and asked.is_answered:
        updated.ClearField("link")
    return _response(started, updated)


async def _existing(
    scope: Scope, start: StartWorkflowExecutionRequest, update: UpdateWorkflowExecutionRequest
) -> LoadedRun | None:
    """The run that is there, if the update is for that one."""
    current = await scope.shard.current(scope.namespace.id, start.workflow_id)
    if current is None:
        return None
    run = await scope.shard.load(*current[:3])
    record = run.state.updates.get(update.request.meta.update_id)
    if record is not None and record.completed_event_id:
        return run
    if not run.state.is_open:
        return None
    is_same_start = bool(start.request_id) and current.request_id == start.request_id
    is_known = run.update_registry().find(run.state, update.request.meta.update_id) is not None
    is_wanted = start.workflow_id_conflict_policy == Conflict.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING
    return run if is_same_start or is_known or is_wanted else None


async def _start(
    scope: Scope, start: StartWorkflowExecutionRequest, update: UpdateWorkflowExecutionRequest
) -> tuple[StartWorkflowExecutionResponse, Asked]:
    try:
        begun = await begin(scope, Begin(start))
    except FixRequest as failure:
        raise start_failed(failure) from failure
    run = begun.run or await scope.shard.load(scope.namespace.id, start.workflow_id, begun.run_id)
    # The lock is still held: no worker has the first workflow task yet, so the update goes with it.
    asked = await _ask(scope, run, update)
    return StartWorkflowExecutionResponse.FromString(await start_answer(scope, start, begun)), asked


async def _ask(scope: Scope, run: LoadedRun, update: UpdateWorkflowExecutionRequest) -> Asked:
    try:
        return await ask(scope, run, update)
    except FixRequest as failure:
        raise update_failed(failure) from failure


def _existing_answer(scope: Scope, run: LoadedRun, asked: Asked) -> StartWorkflowExecutionResponse:
    response = StartWorkflowExecutionResponse(
        run_id=run.key.run_id, started=False, status=WorkflowExecutionStatus.ValueType(run.state.status)
    )
    if not asked.is_answered:
        event = response.link.workflow_event
        event.namespace, event.workflow_id, event.run_id = scope.namespace.name, run.key.workflow_id, run.key.run_id
        event.event_ref.CopyFrom(
            Link.WorkflowEvent.EventReference(event_id=1, event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED)
        )
    return response


def _response(
    started: StartWorkflowExecutionResponse, updated: UpdateWorkflowExecutionResponse
) -> ExecuteMultiOperationResponse:
    response = ExecuteMultiOperationResponse()
    response.responses.add().start_workflow.CopyFrom(started)
    response.responses.add().update_workflow.CopyFrom(updated)
    return response


def start_failed(failure: FixRequest) -> Refused:
    """The refusal for a start's sake; the update was aborted with it."""
    return _failed(_status_of(failure), _aborted())


def update_failed(failure: FixRequest, *, was_started: bool = False) -> Refused:
    """The refusal for an update's sake; the start was aborted with it, or is done."""
    return _failed(_Status() if was_started else _aborted(), _status_of(failure))


def _failed(
    start: MultiOperationExecutionFailure.OperationStatus, update: MultiOperationExecutionFailure.OperationStatus
) -> Refused:
    """One refusal with a status for each: its own code is that of the one that failed."""
    code = next((each.code for each in (start, update) if each.code not in (Code.OK, Code.ABORTED)), Code.ABORTED)
    return refused(Code(code), _MESSAGE, MultiOperationExecutionFailure(statuses=[start, update]))


def _status_of(failure: FixRequest) -> MultiOperationExecutionFailure.OperationStatus:
    if not isinstance(failure, Refused):
        code = Code.NOT_FOUND if isinstance(failure, RunClosed | NotPending) else Code.INVALID_ARGUMENT
        return _Status(code=int(code), message=str(failure))
    status = _Status(code=failure.code, message=str(failure))
    if failure.detail:
        status.details.append(Any.FromString(failure.detail))
    return status


def _aborted() -> MultiOperationExecutionFailure.OperationStatus:
    detail = Any()
    detail.Pack(MultiOperationExecutionAborted())
    return _Status(code=int(Code.ABORTED), message="Operation was aborted.", details=[detail])


OPERATIONS = {"ExecuteMultiOperation": Operation(ExecuteMultiOperationRequest, execute)}
