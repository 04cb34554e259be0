"""Update-with-start: starts a workflow if necessary and updates it, in one operation."""

from google.protobuf.message import Message
from temporalio.api.common.v1 import Link
from temporalio.api.enums.v1 import EventType, WorkflowExecutionStatus
from temporalio.api.enums.v1 import WorkflowIdConflictPolicy as Conflict
from temporalio.api.workflowservice.v1 import (
    ExecuteMultiOperationRequest,
    ExecuteMultiOperationResponse,
    StartWorkflowExecutionRequest,
    StartWorkflowExecutionResponse,
    UpdateWorkflowExecutionRequest,
    UpdateWorkflowExecutionResponse,
)

from fairlead.api.errors import Aborted, ApiError, DeadlineExceeded, NotFound
from fairlead.api.multi_operation import multi_operation_error, operation_aborted
from fairlead.core.errors import FixRequest
from fairlead.history.handlers.start import Begin, begin, start_answer
from fairlead.history.handlers.update import Asked, answer, ask
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.storage.history import RunKey


async def execute(context: OperationContext, request: ExecuteMultiOperationRequest) -> Message:
    """Start a workflow and update it, or update the existing run.

    If the start fails, there is no update.
    """
    start, update = request.operations[0].start_workflow, request.operations[1].update_workflow
    try:
        return await _update_with_start(context, start, update)
    except _ClosedMeanwhile:
        # The run to update has closed: try once more, which starts a new run.
        try:
            return await _update_with_start(context, start, update)
        except _ClosedMeanwhile as closed:
            raise update_failed(Aborted(str(closed))) from closed


class _ClosedMeanwhile(FixRequest):
    """The run closed before a worker accepted the update."""


async def _update_with_start(
    context: OperationContext, start: StartWorkflowExecutionRequest, update: UpdateWorkflowExecutionRequest
) -> ExecuteMultiOperationResponse:
    async with context.shard.lock(context.namespace.id, start.workflow_id):
        run = await _existing(context, start, update)
        if run is None:
            started, asked = await _start(context, start, update)
        else:
            asked = await _ask(context, run, update)
            started = _existing_answer(context, run, asked)
    is_new = run is None
    try:
        updated = await answer(context, update, asked)
    except DeadlineExceeded:
        raise
    except (ApiError, FixRequest) as failure:
        if isinstance(failure, NotFound) and not is_new:
            raise _ClosedMeanwhile(str(failure)) from failure
        raise update_failed(failure, was_started=is_new) from failure
    if not is_new and asked.is_answered:
        updated.ClearField("link")
    return _response(started, updated)


async def _existing(
    context: OperationContext, start: StartWorkflowExecutionRequest, update: UpdateWorkflowExecutionRequest
) -> LoadedRun | None:
    """The existing run, if the update applies to it."""
    current = await context.shard.current_runs.find(context.namespace.id, start.workflow_id)
    if current is None:
        return None
    run = await context.shard.load(*RunKey.of(current))
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
    context: OperationContext, start: StartWorkflowExecutionRequest, update: UpdateWorkflowExecutionRequest
) -> tuple[StartWorkflowExecutionResponse, Asked]:
    try:
        begun = await begin(context, Begin(start, may_start_task=False))
    except (ApiError, FixRequest) as failure:
        raise multi_operation_error([failure, operation_aborted()]) from failure
    run = begun.run or await context.shard.load(context.namespace.id, start.workflow_id, begun.run_id)
    # The lock is still held, so no worker has the first workflow task: the task can deliver the update.
    asked = await _ask(context, run, update)
    return StartWorkflowExecutionResponse.FromString(await start_answer(context, start, begun)), asked


async def _ask(context: OperationContext, run: LoadedRun, update: UpdateWorkflowExecutionRequest) -> Asked:
    try:
        return await ask(context, run, update)
    except (ApiError, FixRequest) as failure:
        raise update_failed(failure) from failure


def _existing_answer(context: OperationContext, run: LoadedRun, asked: Asked) -> StartWorkflowExecutionResponse:
    response = StartWorkflowExecutionResponse(
        run_id=run.key.run_id, started=False, status=WorkflowExecutionStatus.ValueType(run.state.status)
    )
    if not asked.is_answered:
        event = response.link.workflow_event
        event.namespace, event.workflow_id, event.run_id = context.namespace.name, run.key.workflow_id, run.key.run_id
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


def update_failed(failure: ApiError | FixRequest, *, was_started: bool = False) -> ApiError:
    """The API error for an update that failed, after its start succeeded or was aborted."""
    return multi_operation_error([None if was_started else operation_aborted(), failure])


OPERATIONS = {"ExecuteMultiOperation": Operation(ExecuteMultiOperationRequest, execute)}
