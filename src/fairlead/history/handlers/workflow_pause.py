"""Pause and unpause a run."""

from google.protobuf.message import Message
from temporalio.api.workflowservice.v1 import (
    PauseWorkflowExecutionRequest,
    PauseWorkflowExecutionResponse,
    UnpauseWorkflowExecutionRequest,
    UnpauseWorkflowExecutionResponse,
)

from fairlead.api.errors import FailedPrecondition
from fairlead.history.events import Transaction, pause_run, unpause_run
from fairlead.history.events.write_options import waiting_pause
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.run_cache import LoadedRun


async def pause(context: OperationContext, request: PauseWorkflowExecutionRequest) -> Message:
    """Pause a run; a retry of the request changes nothing."""
    shard = context.shard
    async with shard.lock(context.namespace.id, request.workflow_id):
        run = await shard.load(context.namespace.id, request.workflow_id, request.run_id)
        state = run.state
        state.check_open()
        request_id = state.pause.request_id if state.pause is not None else waiting_pause(state)
        if request_id is not None:
            if request.request_id and request_id == request.request_id:
                return PauseWorkflowExecutionResponse()
            raise FailedPrecondition("workflow is already paused.")

        def step(transaction: Transaction, _run: LoadedRun) -> None:
            pause_run(transaction, identity=request.identity, reason=request.reason, request_id=request.request_id)

        await shard.step(context.namespace, run, step)
    return PauseWorkflowExecutionResponse()


async def unpause(context: OperationContext, request: UnpauseWorkflowExecutionRequest) -> Message:
    """Unpause a run."""

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        is_done = unpause_run(
            transaction, identity=request.identity, reason=request.reason, request_id=request.request_id
        )
        if not is_done:
            raise FailedPrecondition("workflow is not paused.")

    await context.shard.change(context.namespace, request.workflow_id, request.run_id, step)
    return UnpauseWorkflowExecutionResponse()


OPERATIONS = {
    "PauseWorkflowExecution": Operation(PauseWorkflowExecutionRequest, pause),
    "UnpauseWorkflowExecution": Operation(UnpauseWorkflowExecutionRequest, unpause),
}
