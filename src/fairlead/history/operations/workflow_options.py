"""UpdateWorkflowExecutionOptions: a run gets another priority, or is to run on another version."""

from collections.abc import Iterable

from google.protobuf.message import Message
from temporalio.api.common.v1 import Priority
from temporalio.api.workflow.v1 import WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import (
    UpdateWorkflowExecutionOptionsRequest,
    UpdateWorkflowExecutionOptionsResponse,
)

from fairlead.history.deployments.targets import check_override, workflow_target
from fairlead.history.events import Options, Transaction, update_options
from fairlead.history.pushing import push_to_all
from fairlead.history.refusals import invalid
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Operation, Scope


async def update(scope: Scope, request: UpdateWorkflowExecutionOptionsRequest) -> Message:
    """Change the options that the mask names; the answer has all of them."""
    shard, execution, deployments = scope.shard, request.workflow_execution, scope.services.deployments
    task = None
    async with shard.lock(scope.namespace.id, execution.workflow_id):
        run = await shard.load(scope.namespace.id, execution.workflow_id, execution.run_id)
        run.state.check_open()
        options = merged(Options.of(run.state), request.workflow_execution_options, request.update_mask.paths)
        if options != Options.of(run.state):
            if options.versioning_override is not None:
                task_queue = run.state.started.task_queue
                await check_override(deployments, scope.namespace.id, task_queue, options.versioning_override)

            def step(transaction: Transaction, _run: LoadedRun) -> None:
                update_options(transaction, options, identity=request.identity)

            before = workflow_target(deployments, run.state)
            await shard.step(scope.namespace, run, step)
            if workflow_target(deployments, run.state) != before:
                task = run.state.workflow_task
    if task is not None and not task.is_started:
        # It waits for workers that are not to have it any more.
        await push_to_all(scope.services, run.key, run.state, task)
    return UpdateWorkflowExecutionOptionsResponse(
        workflow_execution_options=WorkflowExecutionOptions(
            versioning_override=options.versioning_override, priority=options.priority
        )
    )


def merged(present: Options, wanted: WorkflowExecutionOptions, paths: Iterable[str]) -> Options:
    """The options with those replaced that the paths name; what is named and not set is taken away."""
    for path in paths:
        name, _, inner = path.partition(".")
        if name == "versioning_override":
            if inner:
                raise invalid("error applying update_options: versioning_override doesn't support partial updates")
            override = wanted.versioning_override if wanted.HasField("versioning_override") else None
            present = present._replace(versioning_override=override)
        elif name == "priority" and not inner:
            present = present._replace(priority=wanted.priority if wanted.HasField("priority") else None)
        elif name == "priority" and inner in Priority.DESCRIPTOR.fields_by_name:
            priority = Priority()
            if present.priority is not None:
                priority.CopyFrom(present.priority)
            setattr(priority, inner, getattr(wanted.priority, inner))
            present = present._replace(priority=priority)
    return present


OPERATIONS = {"UpdateWorkflowExecutionOptions": Operation(UpdateWorkflowExecutionOptionsRequest, update)}
