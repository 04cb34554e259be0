"""How an operator has a run wait, and go on."""

from google.protobuf.message import Message
from temporalio.api.workflowservice.v1 import (
    PauseWorkflowExecutionRequest,
    PauseWorkflowExecutionResponse,
    UnpauseWorkflowExecutionRequest,
    UnpauseWorkflowExecutionResponse,
)

from fairlead.history.events import Transaction, pause_run, unpause_run
from fairlead.history.events.write_options import waiting_pause
from fairlead.history.refusals import failed_precondition
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Operation, Scope


async def pause(scope: Scope, request: PauseWorkflowExecutionRequest) -> Message:
    """Have a run wait; the same request again changes nothing."""
    shard = scope.shard
    async with shard.lock(scope.namespace.id, request.workflow_id):
        run = await shard.load(scope.namespace.id, request.workflow_id, request.run_id)
        state = run.state
        state.check_open()
        request_id = state.pause.request_id if state.pause is not None else waiting_pause(state)
        if request_id is not None:
            if request.request_id and request_id == request.request_id:
                return PauseWorkflowExecutionResponse()
            raise failed_precondition("workflow is already paused.")

        def step(transaction: Transaction, _run: LoadedRun) -> None:
            pause_run(transaction, identity=request.identity, reason=request.reason, request_id=request.request_id)

        await shard.step(scope.namespace, run, step)
    return PauseWorkflowExecutionResponse()


async def unpause(scope: Scope, request: UnpauseWorkflowExecutionRequest) -> Message:
    """Have a run go on."""

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        is_done = unpause_run(
            transaction, identity=request.identity, reason=request.reason, request_id=request.request_id
        )
        if not is_done:
            raise failed_precondition("workflow is not paused.")

    await scope.shard.change(scope.namespace, request.workflow_id, request.run_id, step)
    return UnpauseWorkflowExecutionResponse()


OPERATIONS = {
    "PauseWorkflowExecution": Operation(PauseWorkflowExecutionRequest, pause),
    "UnpauseWorkflowExecution": Operation(UnpauseWorkflowExecutionRequest, unpause),
}
