"""Signals, cancel requests, termination and deletion of a run."""

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

from fairlead.aio.backoff import Backoff
from fairlead.api.errors import NotFound
from fairlead.api.links import signal_link
from fairlead.core.errors import RetryLater
from fairlead.history.events import Transaction, request_cancel, signal, terminate
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import RunClosed
from fairlead.storage.history import RunKey


async def signal_workflow(context: OperationContext, request: SignalWorkflowExecutionRequest) -> Message:
    """Signal a workflow. Waiting signals for the same run are written in one commit."""
    attributes = WorkflowExecutionSignaledEventAttributes(
        signal_name=request.signal_name,
        input=request.input if request.HasField("input") else None,
        identity=request.identity,
        header=request.header if request.HasField("header") else None,
        request_id=request.request_id,
    )
    execution = request.workflow_execution

    def step(transaction: Transaction, run: LoadedRun, signals_before: int) -> str:
        signal(transaction, attributes, links=request.links, signals_before=signals_before)
        return run.key.run_id

    key = RunKey(context.namespace.id, execution.workflow_id, execution.run_id)
    run_id = await context.shard.grouped_steps.change(context.namespace, key, step, size_bytes=attributes.ByteSize())
    link = signal_link(
        namespace=context.namespace.name,
        workflow_id=execution.workflow_id,
        run_id=run_id,
        request_id=attributes.request_id,
    )
    return SignalWorkflowExecutionResponse(link=link)


async def load_of_chain(context: OperationContext, workflow_id: str, run_id: str, first_run_id: str) -> LoadedRun:
    """Load a run; raise an error if it is not in the chain that begins with `first_run_id` (if given)."""
    run = await context.shard.load(context.namespace.id, workflow_id, run_id)
    if first_run_id and run.state.started.first_run_id != first_run_id:
        raise NotFound("workflow execution not found")
    return run


async def cancel(context: OperationContext, request: RequestCancelWorkflowExecutionRequest) -> Message:
    """Request a workflow's cancellation; the workflow sees only the first request."""
    execution = request.workflow_execution
    shard = context.shard
    async with shard.lock(context.namespace.id, execution.workflow_id):
        run = await shard.load(context.namespace.id, execution.workflow_id, execution.run_id)
        first_run_id = request.first_execution_run_id
        # A closed run, or a run of another chain, needs no cancel request.
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

        await shard.step(context.namespace, run, step)
    return RequestCancelWorkflowExecutionResponse()


async def terminate_workflow(context: OperationContext, request: TerminateWorkflowExecutionRequest) -> Message:
    """Terminate a workflow."""
    execution = request.workflow_execution
    shard = context.shard
    async with shard.lock(context.namespace.id, execution.workflow_id):
        run = await load_of_chain(context, execution.workflow_id, execution.run_id, request.first_execution_run_id)
        if not run.state.is_open:
            raise RunClosed

        def step(transaction: Transaction, _run: LoadedRun) -> None:
            terminate(
                transaction,
                reason=request.reason,
                identity=request.identity,
                details=request.details if request.HasField("details") else None,
            )

        await shard.step(context.namespace, run, step)
    return TerminateWorkflowExecutionResponse()


async def delete(context: OperationContext, request: DeleteWorkflowExecutionRequest) -> Message:
    """Delete a run with all its records; an open run is terminated first."""
    execution: WorkflowExecution = request.workflow_execution
    shard = context.shard
    async with shard.lock(context.namespace.id, execution.workflow_id):
        run = await shard.load(context.namespace.id, execution.workflow_id, execution.run_id)
        key = run.key
        if run.state.is_open:
            await shard.step(
                context.namespace,
                run,
                lambda transaction, _run: terminate(
                    transaction, reason="Delete workflow execution", identity="history-service"
                ),
            )
    await _until_notified(context, key)
    async with shard.lock(*key.workflow):
        await shard.writer.delete(await shard.load(*key))
    return DeleteWorkflowExecutionResponse()


class StillClosing(RetryLater):
    """Tasks that report a run's close, for example to its parent, are still pending: delete the run later."""


async def _until_notified(context: OperationContext, key: RunKey) -> None:
    """Wait until a run's close has been reported: the tasks that report it read the run."""
    end_s = asyncio.get_running_loop().time() + context.timeout_s
    backoff = Backoff(0.001, 0.1, random=context.services.uniform)
    while not context.shard.ownership.is_lost and context.shard.queues.transfer.has_any_of(key):
        if asyncio.get_running_loop().time() > end_s:
            raise StillClosing(
                f"the close of run {key.run_id} is not reported to all workflows yet: delete the run again later"
            )
        await asyncio.sleep(backoff.next_s())


OPERATIONS = {
    "SignalWorkflowExecution": Operation(SignalWorkflowExecutionRequest, signal_workflow),
    "RequestCancelWorkflowExecution": Operation(RequestCancelWorkflowExecutionRequest, cancel),
    "TerminateWorkflowExecution": Operation(TerminateWorkflowExecutionRequest, terminate_workflow),
    "DeleteWorkflowExecution": Operation(DeleteWorkflowExecutionRequest, delete),
}
