"""UpdateWorkflowExecutionOptions: changes a run's priority, versioning override or time skipping."""

from collections.abc import Iterable

from google.protobuf.message import Message
from temporalio.api.common.v1 import Priority, TimeSkippingConfig
from temporalio.api.workflow.v1 import WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import (
    UpdateWorkflowExecutionOptionsRequest,
    UpdateWorkflowExecutionOptionsResponse,
)

from fairlead.api.errors import InvalidArgument
from fairlead.history.events import Options, Transaction, update_options
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.matching_tasks import push_to_all
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.shard.version_targets import check_override, workflow_target
from fairlead.history.state import RunState


async def update(context: OperationContext, request: UpdateWorkflowExecutionOptionsRequest) -> Message:
    """Change the options that the update mask names; the response contains all options."""
    shard, execution, deployments = context.shard, request.workflow_execution, context.services.deployments
    task = None
    async with shard.lock(context.namespace.id, execution.workflow_id):
        run = await shard.load(context.namespace.id, execution.workflow_id, execution.run_id)
        run.state.check_open()
        options = merged(Options.of(run.state), request.workflow_execution_options, request.update_mask.paths)
        config = new_time_skipping(request, run.state)
        if options != Options.of(run.state) or config is not None:
            if options.versioning_override is not None:
                task_queue = run.state.started.task_queue
                await check_override(deployments, context.namespace.id, task_queue, options.versioning_override)

            def step(transaction: Transaction, _run: LoadedRun) -> None:
                update_options(transaction, options, identity=request.identity, time_skipping=config)

            before = workflow_target(deployments, run.state)
            await shard.step(context.namespace, run, step)
            if workflow_target(deployments, run.state) != before:
                task = run.state.workflow_task
    if task is not None and not task.is_started:
        # The pending task waits in the queue of a version that must no longer take it.
        await push_to_all(context.services, run.key, run.state, task)
    return UpdateWorkflowExecutionOptionsResponse(
        workflow_execution_options=WorkflowExecutionOptions(
            versioning_override=options.versioning_override,
            priority=options.priority,
            time_skipping_config=_time_skipping(run.state, config),
        )
    )


def _time_skipping(state: RunState, config: TimeSkippingConfig | None) -> TimeSkippingConfig | None:
    """The present config, or `config` if its event is buffered."""
    clock = state.time_skipping
    if clock is None or (config is not None and clock.config != config.SerializeToString(deterministic=True)):
        return config
    return clock.effective_config() if clock.config else None


def new_time_skipping(request: UpdateWorkflowExecutionOptionsRequest, state: RunState) -> TimeSkippingConfig | None:
    """The config that the request sets; empty if it removes the present config, None if it changes nothing."""
    paths = [path for path in request.update_mask.paths if path.partition(".")[0] == "time_skipping_config"]
    if not paths:
        return None
    if "time_skipping_config" not in paths:
        raise InvalidArgument("error applying update_options: time_skipping_config doesn't support partial update")
    options = request.workflow_execution_options
    is_same = state.time_skipping is None and not options.HasField("time_skipping_config")
    return None if is_same else options.time_skipping_config


def merged(present: Options, wanted: WorkflowExecutionOptions, paths: Iterable[str]) -> Options:
    """The options with the named paths replaced; an option that is named but not set is removed."""
    for path in paths:
        name, _, inner = path.partition(".")
        if name == "versioning_override":
            if inner:
                raise InvalidArgument(
                    "error applying update_options: versioning_override doesn't support partial updates"
                )
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
