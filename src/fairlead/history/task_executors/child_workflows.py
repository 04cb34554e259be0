"""Starts child workflows for their parents."""

from contextlib import suppress

from temporalio.api.enums.v1 import ParentClosePolicy, WorkflowIdConflictPolicy
from temporalio.api.enums.v1 import StartChildWorkflowExecutionFailedCause as Cause
from temporalio.api.history.v1 import HistoryEvent, StartChildWorkflowExecutionInitiatedEventAttributes
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest, StartWorkflowExecutionResponse

from fairlead.api.errors import AlreadyExists, NotFound
from fairlead.api.times import from_duration
from fairlead.api.worker_versions import Version, pinned_version
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.history.events import Transaction, child_start_failed, child_started
from fairlead.history.events.field_copies import copy_set
from fairlead.history.handlers.child_workflows import EndUnbegun, NotifyParentAgain, ScheduleFirstTask, StartChildRun
from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import NotPending, RunClosed, RunState
from fairlead.history.state.run import Parent
from fairlead.history.state.tasks import QueueRow, StartChild
from fairlead.history.task_executors.verification import is_meant

_PASSED_ON = (
    "input", "header", "memo", "search_attributes", "retry_policy", "workflow_execution_timeout",
    "workflow_run_timeout", "workflow_task_timeout", "priority", "versioning_override", "time_skipping_config",
)  # fmt: skip


async def start_child(context: OperationContext, row: QueueRow, task: StartChild) -> None:
    """Start the child, record its start in the parent, then schedule the child's first workflow task."""
    shard = context.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        if not is_meant(run.state, task):
            return
        event = await shard.events.read_event(run.state, task.initiated_event_id)
        wanted = event.start_child_workflow_execution_initiated_event_attributes
        is_open = run.state.is_open
        child = run.state.children.get(task.initiated_event_id)
        is_abandoned = wanted.parent_close_policy == ParentClosePolicy.PARENT_CLOSE_POLICY_ABANDON
        if is_open and (child is None or task.initiated_event_id in run.state.live.ending):
            return
        origin = run.state.started
        start = StartChildRun(
            _request(wanted, event, task.request_id).SerializeToString(),
            Parent(
                namespace=context.namespace.name,
                namespace_id=context.namespace.id,
                workflow_id=row.workflow_id,
                run_id=row.run_id,
                initiated_event_id=task.initiated_event_id,
                initiated_version=event.version,
            ),
            origin.root_workflow_id,
            origin.root_run_id,
            *_versions(context, run.state, wanted),
            from_duration(wanted.time_skipping_state_propagation.initial_skipped_duration),
        )
    # A closed parent starts only children with the policy ABANDON.
    if not is_open and not is_abandoned:
        await _end(context, row, task, wanted)
        return
    history, namespace_id = context.services.history, wanted.namespace_id
    if child is not None and child.run_id:
        # The child may have continued as a new run: a repeated StartChild request would then start another child.
        await _let_begin(context, wanted, child.run_id)
        await _ask_for_end(context, wanted, child.run_id)
        return
    try:
        answer = await history.call("StartChild", namespace_id, wanted.workflow_id, start)
    except (AlreadyExists, NotFound) as error:
        cause = (
            Cause.START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_WORKFLOW_ALREADY_EXISTS
            if isinstance(error, AlreadyExists)
            else Cause.START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_NAMESPACE_NOT_FOUND
        )
        await _fail(context, row, task, cause)
        return
    run_id = StartWorkflowExecutionResponse.FromString(answer).run_id
    if not await _notify(context, row, task, run_id, wanted) and not is_abandoned:
        await _end(context, row, task, wanted)
        return
    await _let_begin(context, wanted, run_id)


async def _let_begin(
    context: OperationContext, wanted: StartChildWorkflowExecutionInitiatedEventAttributes, run_id: str
) -> None:
    await context.services.history.call(
        "ScheduleFirstTask", wanted.namespace_id, wanted.workflow_id, ScheduleFirstTask(wanted.workflow_id, run_id)
    )


async def _ask_for_end(
    context: OperationContext, wanted: StartChildWorkflowExecutionInitiatedEventAttributes, run_id: str
) -> None:
    """Make the child report its close again: the report may be lost in a cluster that is no longer active."""
    with suppress(RunClosed):
        await context.services.history.call(
            "NotifyParentAgain", wanted.namespace_id, wanted.workflow_id, NotifyParentAgain(wanted.workflow_id, run_id)
        )


async def _end(
    context: OperationContext,
    row: QueueRow,
    task: StartChild,
    wanted: StartChildWorkflowExecutionInitiatedEventAttributes,
) -> None:
    """Terminate the child, if it exists, because the parent closed before it recorded the child's start."""
    await context.services.history.call(
        "EndUnbegun",
        wanted.namespace_id,
        wanted.workflow_id,
        EndUnbegun(wanted.workflow_id, row.workflow_id, row.run_id, task.initiated_event_id),
    )


def _versions(
    context: OperationContext, state: RunState, wanted: StartChildWorkflowExecutionInitiatedEventAttributes
) -> tuple[Version | None, Version | None, int]:
    """The version that the child inherits, pinned or not, if it serves the child's task queue; and a revision."""
    version = state.versioning.version if state.versioning is not None else None
    pinned, revision = pinned_version(state), state.live.routing_revision
    either = pinned or version
    task_queue = TaskQueueId(wanted.namespace_id, wanted.task_queue.name, TaskType.WORKFLOW)
    if (
        either is None
        or wanted.namespace_id != context.namespace.id
        or not context.services.deployments.has_task_queue(task_queue, either)
    ):
        return None, None, 0
    return (pinned, None, 0) if pinned is not None else (None, version, revision)


async def _notify(
    context: OperationContext,
    row: QueueRow,
    task: StartChild,
    run_id: str,
    wanted: StartChildWorkflowExecutionInitiatedEventAttributes,
) -> bool:
    """Record the child's start in the parent; False if the parent has closed."""
    header = wanted.header if wanted.HasField("header") else None

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        if not is_meant(transaction.state, task) or not child_started(
            transaction, task.initiated_event_id, run_id=run_id, header=header
        ):
            raise NotPending("the start of the child is recorded already")

    try:
        await context.shard.change(context.namespace, row.workflow_id, row.run_id, step)
    except RunClosed:
        return False
    except NotPending:
        return True
    return True


async def _fail(context: OperationContext, row: QueueRow, task: StartChild, cause: Cause.ValueType) -> None:
    def step(transaction: Transaction, _run: LoadedRun) -> None:
        if not is_meant(transaction.state, task):
            raise NotPending("the current branch has changed")
        child_start_failed(transaction, task.initiated_event_id, cause)

    await context.shard.change(context.namespace, row.workflow_id, row.run_id, step)


def _request(
    wanted: StartChildWorkflowExecutionInitiatedEventAttributes, event: HistoryEvent, request_id: str
) -> StartWorkflowExecutionRequest:
    request = StartWorkflowExecutionRequest(
        namespace=wanted.namespace,
        workflow_id=wanted.workflow_id,
        workflow_type=wanted.workflow_type,
        task_queue=wanted.task_queue,
        request_id=request_id,
        workflow_id_reuse_policy=wanted.workflow_id_reuse_policy,
        workflow_id_conflict_policy=WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
        cron_schedule=wanted.cron_schedule,
    )
    copy_set(wanted, request, _PASSED_ON)
    if event.HasField("user_metadata"):
        request.user_metadata.CopyFrom(event.user_metadata)
    return request
