"""What is said to a run from outside: signals, requests to end, and its end."""

import asyncio

from google.protobuf.message import Message
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import WorkflowExecutionSignaledEventAttributes
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    DeleteWorkflowExecutionResponse,
    RequestCancelWorkflowExecutionRequest,
    RequestCancelWorkflowExecutionResponse,
    SignalWorkflowExecutionRequest,
    SignalWorkflowExecutionResponse,
    TerminateWorkflowExecutionRequest,
    TerminateWorkflowExecutionResponse,
)

from fairlead.core.errors import RetryLater
from fairlead.history.events import Transaction, request_cancel, signal, terminate
from fairlead.history.refusals import not_found
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Operation, Scope
from fairlead.history.shard import TRANSFER
from fairlead.history.state import RunClosed
from fairlead.storage.history_contract import RunKey


async def signal_workflow(scope: Scope, request: SignalWorkflowExecutionRequest) -> Message:
    """Hand a signal to a workflow."""
    attributes = WorkflowExecutionSignaledEventAttributes(
        signal_name=request.signal_name,
        input=request.input if request.HasField("input") else None,
        identity=request.identity,
        header=request.header if request.HasField("header") else None,
        request_id=request.request_id,
    )
    execution = request.workflow_execution
    await scope.shard.change(
        scope.namespace,
        execution.workflow_id,
        execution.run_id,
        lambda transaction, _run: signal(transaction, attributes, links=request.links),
    )
    return SignalWorkflowExecutionResponse()


async def load_of_chain(scope: Scope, workflow_id: str, run_id: str, first_run_id: str) -> LoadedRun:
    """A run, if it is one of the chain that began with `first_run_id`, where that is given."""
    run = await scope.shard.load(scope.namespace.id, workflow_id, run_id)
    if first_run_id and run.state.started.first_run_id != first_run_id:
        raise not_found("workflow execution not found")
    return run


async def cancel(scope: Scope, request: RequestCancelWorkflowExecutionRequest) -> Message:
    """Ask a workflow to end; it hears of that once."""
    execution = request.workflow_execution
    shard = scope.shard
    async with shard.lock(scope.namespace.id, execution.workflow_id):
        run = await shard.load(scope.namespace.id, execution.workflow_id, execution.run_id)
        first_run_id = request.first_execution_run_id
        # What has ended, or is not there any more, need not be asked to end.
        if not run.state.is_open or (first_run_id and run.state.started.first_run_id != first_run_id):
            return RequestCancelWorkflowExecutionResponse()

        def step(transaction: Transaction, _run: LoadedRun) -> bool:
            return request_cancel(
                transaction,
                request_id=request.request_id,
                cause=request.reason,
                identity=request.identity,
                links=request.links,
            )

        await shard.step(scope.namespace, run, step)
    return RequestCancelWorkflowExecutionResponse()


async def terminate_workflow(scope: Scope, request: TerminateWorkflowExecutionRequest) -> Message:
    """End a workflow without asking it."""
    execution = request.workflow_execution
    shard = scope.shard
    async with shard.lock(scope.namespace.id, execution.workflow_id):
        run = await load_of_chain(scope, execution.workflow_id, execution.run_id, request.first_execution_run_id)
        if not run.state.is_open:
            raise RunClosed

        def step(transaction: Transaction, _run: LoadedRun) -> None:
            terminate(
                transaction,
                reason=request.reason,
                identity=request.identity,
                details=request.details if request.HasField("details") else None,
            )

        await shard.step(scope.namespace, run, step)
    return TerminateWorkflowExecutionResponse()


async def delete(scope: Scope, request: DeleteWorkflowExecutionRequest) -> Message:
    """Delete a run with all that is known of it; one that is open is terminated first."""
    execution: WorkflowExecution = request.workflow_execution
    shard = scope.shard
    async with shard.lock(scope.namespace.id, execution.workflow_id):
        run = await shard.load(scope.namespace.id, execution.workflow_id, execution.run_id)
        key = run.key
        if run.state.is_open:
            await shard.step(
                scope.namespace,
                run,
                lambda transaction, _run: terminate(
                    transaction, reason="Delete workflow execution", identity="history-service"
                ),
            )
    await _until_told(scope, key)
    async with shard.lock(*key[:2]):
        await shard.delete(await shard.load(*key))
    return DeleteWorkflowExecutionResponse()


class StillClosing(RetryLater):
    """The parent, the children or others of a run that is to be deleted have not heard of its end yet."""


async def _until_told(scope: Scope, key: RunKey) -> None:
    """Wait until those have heard of a run's end who are to: when it is deleted, there is nothing to tell any more."""
    end_s = asyncio.get_running_loop().time() + scope.timeout_s
    wait_s = 0.001
    while not scope.shard.is_lost and scope.shard.queues[TRANSFER].has_any_of(key):
        if asyncio.get_running_loop().time() > end_s:
            raise StillClosing(f"run {key.run_id} is closed, but not all have heard of that: delete it again later")
        await asyncio.sleep(wait_s)
        wait_s = min(wait_s * 2, 0.1)


OPERATIONS = {
    "SignalWorkflowExecution": Operation(SignalWorkflowExecutionRequest, signal_workflow),
    "RequestCancelWorkflowExecution": Operation(RequestCancelWorkflowExecutionRequest, cancel),
    "TerminateWorkflowExecution": Operation(TerminateWorkflowExecutionRequest, terminate_workflow),
    "DeleteWorkflowExecution": Operation(DeleteWorkflowExecutionRequest, delete),
}
