"""Requests of clients about standalone Nexus operations: start, wait, describe, cancel, terminate, delete."""

from collections.abc import Callable

from google.protobuf.message import Message
from temporalio.api.enums.v1 import NexusOperationIdConflictPolicy as Conflict
from temporalio.api.enums.v1 import NexusOperationIdReusePolicy as Reuse
from temporalio.api.enums.v1 import NexusOperationWaitStage, WorkflowExecutionStatus
from temporalio.api.errordetails.v1 import NexusOperationExecutionAlreadyStartedFailure
from temporalio.api.workflowservice.v1 import (
    DeleteNexusOperationExecutionRequest,
    DeleteNexusOperationExecutionResponse,
    DescribeNexusOperationExecutionRequest,
    DescribeNexusOperationExecutionResponse,
    PollNexusOperationExecutionRequest,
    PollNexusOperationExecutionResponse,
    RequestCancelNexusOperationExecutionRequest,
    RequestCancelNexusOperationExecutionResponse,
    StartNexusOperationExecutionRequest,
    StartNexusOperationExecutionResponse,
    TerminateNexusOperationExecutionRequest,
    TerminateNexusOperationExecutionResponse,
)

from fairlead.api.error_details import packed
from fairlead.api.errors import AlreadyExists, NotFound
from fairlead.api.nexus_endpoints import Endpoints
from fairlead.api.times import from_duration, shorter
from fairlead.history.entities import entity
from fairlead.history.entities.entity import EntityStep
from fairlead.history.entities.long_poll import decode_token, encode_token, wait_until
from fairlead.history.entities.standalone_nexus import machine, worker
from fairlead.history.entities.standalone_nexus.machine import Step
from fairlead.history.entities.standalone_nexus.responses import add_outcome, info_of, polled, row_of
from fairlead.history.entities.standalone_nexus.state import OperationState, Phase
from fairlead.history.entities.standalone_nexus.steps import OPERATION, change, named, read
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.storage.history import CurrentRun

_WAIT_STARTED = NexusOperationWaitStage.NEXUS_OPERATION_WAIT_STAGE_STARTED


async def start(context: OperationContext, request: StartNexusOperationExecutionRequest) -> Message:
    """Start an operation; if its id is in use, the request's policies decide."""
    # Allow one start at a time for an id: the current run can't be replaced between the check and the write.
    async with context.shard.lock(f"{OPERATION.namespace_id(context.namespace.id)}#start", request.operation_id):
        current = await entity.find(context, OPERATION, request.operation_id)
        if current is not None:
            is_repeated = current.request_id == request.request_id
            if is_repeated or not current.is_closed:
                if not is_repeated and (
                    request.id_conflict_policy != Conflict.NEXUS_OPERATION_ID_CONFLICT_POLICY_USE_EXISTING
                ):
                    raise _taken(current)
                return StartNexusOperationExecutionResponse(run_id=current.run_id)
            _check_reuse(request, current)
        return StartNexusOperationExecutionResponse(run_id=await _create(context, request), started=True)


async def _create(context: OperationContext, request: StartNexusOperationExecutionRequest) -> str:
    services, namespace = context.services, context.namespace
    endpoint = await Endpoints(services.store).named(request.endpoint)
    if endpoint is None:
        raise NotFound(f"could not find Nexus endpoint by name: {request.endpoint}")
    now_ns = services.clock_ns()
    whole_ns = from_duration(request.schedule_to_close_timeout)
    state = OperationState(
        operation_id=request.operation_id,
        run_id=services.new_id(),
        request_id=services.new_id(),
        endpoint=request.endpoint,
        endpoint_id=endpoint.id,
        service=request.service,
        operation=request.operation,
        scheduled_ns=now_ns,
        schedule_to_close_ns=whole_ns,
        schedule_to_start_ns=_capped(from_duration(request.schedule_to_start_timeout), whole_ns),
        start_to_close_ns=_capped(from_duration(request.start_to_close_timeout), whole_ns),
        identity=request.identity,
        header=dict(request.nexus_header),
        input=request.input.SerializeToString() if request.HasField("input") else None,
        user_metadata=request.user_metadata.SerializeToString() if request.HasField("user_metadata") else None,
        search_attributes=request.search_attributes.SerializeToString(deterministic=True),
    )
    step: Step = EntityStep(state, now_ns)
    machine.schedule(step)
    await entity.create(
        context,
        OPERATION,
        request.operation_id,
        state.run_id,
        state,
        request_id=request.request_id,
        row=row_of(state, namespace_id=namespace.id, custom=namespace.search_attributes),
        tasks=step.tasks,
    )
    return state.run_id


def _capped(timeout_ns: int, whole_ns: int) -> int:
    """Limit a timeout to the timeout of the whole operation; 0 stays unset."""
    return shorter(timeout_ns, whole_ns) if timeout_ns else 0


def _check_reuse(request: StartNexusOperationExecutionRequest, current: CurrentRun) -> None:
    policy = request.id_reuse_policy
    completed = current.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED
    if policy == Reuse.NEXUS_OPERATION_ID_REUSE_POLICY_REJECT_DUPLICATE or (
        policy == Reuse.NEXUS_OPERATION_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY and completed
    ):
        raise _taken(current)


def _taken(current: CurrentRun) -> AlreadyExists:
    detail = NexusOperationExecutionAlreadyStartedFailure(start_request_id=current.request_id, run_id=current.run_id)
    ids = f"request_id={current.request_id}, run_id={current.run_id}"
    return AlreadyExists(f"nexus operation execution already started: {ids}", packed(detail))


async def poll(context: OperationContext, request: PollNexusOperationExecutionRequest) -> Message:
    """Wait for the start or the end; the response is empty if neither happens in time."""

    def is_there(state: OperationState) -> bool:
        is_started = state.phase is Phase.STARTED and request.wait_stage == _WAIT_STARTED
        return is_started or not state.is_open

    state = await _wait(context, request, is_there)
    return PollNexusOperationExecutionResponse() if state is None else polled(state)


async def describe(context: OperationContext, request: DescribeNexusOperationExecutionRequest) -> Message:
    """Describe an operation; with a long poll token, wait for a change.

    The response is empty if there is no change in time.
    """
    if request.long_poll_token:
        seen = decode_token(request.long_poll_token)
        state = await _wait(context, request, lambda state: state.transitions > seen.transitions)
        if state is None:
            return DescribeNexusOperationExecutionResponse()
    else:
        state = await read(context, request.operation_id, request.run_id)
    answer = DescribeNexusOperationExecutionResponse(
        run_id=state.run_id,
        info=info_of(state, now_ns=context.services.clock_ns()),
        long_poll_token=encode_token(state),
    )
    if request.include_input and state.input is not None:
        answer.input.ParseFromString(state.input)
    if request.include_outcome:
        add_outcome(answer, state)
    return answer


async def _wait(
    context: OperationContext,
    request: PollNexusOperationExecutionRequest | DescribeNexusOperationExecutionRequest,
    is_there: Callable[[OperationState], bool],
) -> OperationState | None:
    return await wait_until(context, OPERATION, request.operation_id, request.run_id, read=read, is_there=is_there)


async def request_cancel(context: OperationContext, request: RequestCancelNexusOperationExecutionRequest) -> Message:
    """Ask the handler to cancel an operation."""
    await change(
        context,
        request.operation_id,
        request.run_id,
        lambda step: machine.request_cancel(
            step, request_id=request.request_id, identity=request.identity, reason=request.reason
        ),
    )
    return RequestCancelNexusOperationExecutionResponse()


async def terminate(context: OperationContext, request: TerminateNexusOperationExecutionRequest) -> Message:
    """End an operation without a request to its handler."""
    await change(
        context,
        request.operation_id,
        request.run_id,
        lambda step: machine.terminate(
            step, request_id=request.request_id, identity=request.identity, reason=request.reason
        ),
    )
    return TerminateNexusOperationExecutionResponse()


async def delete(context: OperationContext, request: DeleteNexusOperationExecutionRequest) -> Message:
    """Delete an operation, open or closed."""
    with named(request.operation_id):
        await entity.delete(context, OPERATION, request.operation_id, request.run_id)
    return DeleteNexusOperationExecutionResponse()


OPERATIONS = {
    **worker.OPERATIONS,
    "StartNexusOperationExecution": Operation(StartNexusOperationExecutionRequest, start),
    "PollNexusOperationExecution": Operation(PollNexusOperationExecutionRequest, poll),
    "DescribeNexusOperationExecution": Operation(DescribeNexusOperationExecutionRequest, describe),
    "RequestCancelNexusOperationExecution": Operation(RequestCancelNexusOperationExecutionRequest, request_cancel),
    "TerminateNexusOperationExecution": Operation(TerminateNexusOperationExecutionRequest, terminate),
    "DeleteNexusOperationExecution": Operation(DeleteNexusOperationExecutionRequest, delete),
}
