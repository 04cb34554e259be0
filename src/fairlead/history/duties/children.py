"""A parent's part in the start of a child."""

from contextlib import suppress

from temporalio.api.enums.v1 import ParentClosePolicy, WorkflowIdConflictPolicy
from temporalio.api.enums.v1 import StartChildWorkflowExecutionFailedCause as Cause
from temporalio.api.history.v1 import HistoryEvent, StartChildWorkflowExecutionInitiatedEventAttributes
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest, StartWorkflowExecutionResponse

from fairlead.core.partitions import TaskList, TaskType
from fairlead.history.duties.verifying import is_meant
from fairlead.history.events import Transaction, child_start_failed, child_started
from fairlead.history.events.copying import copy_set
from fairlead.history.operations.family import EndUnbegun, ScheduleFirstTask, StartChildRun, TellParentAgain
from fairlead.history.refusals import Refused
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Scope
from fairlead.history.state import NotPending, RunClosed, RunState
from fairlead.history.state.run import Parent
from fairlead.history.state.tasks import QueueRow, StartChild
from fairlead.history.state.versioning import Version, pinned_version
from fairlead.rpc import Code

_PASSED_ON = (
    "input", "header", "memo", "search_attributes", "retry_policy", "workflow_execution_timeout",
    "workflow_run_timeout", "workflow_task_timeout", "priority", "versioning_override",
)  # fmt: skip


async def start_child(scope: Scope, row: QueueRow, task: StartChild) -> None:
    """Start the child, write down that it has started, and only then let it begin."""
    shard = scope.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        if not is_meant(run.state, task):
            return
        event = await shard.read_event(run.state, task.initiated_event_id)
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
                namespace=scope.namespace.name,
                namespace_id=scope.namespace.id,
                workflow_id=row.workflow_id,
                run_id=row.run_id,
                initiated_event_id=task.initiated_event_id,
                initiated_version=event.version,
            ),
            origin.root_workflow_id,
            origin.root_run_id,
            *_versions(scope, run.state, wanted),
        )
    # A parent that has closed wants only those that it would have abandoned.
    if not is_open and not is_abandoned:
        await _end(scope, row, task, wanted)
        return
    history, namespace_id = scope.services.history, wanted.namespace_id
    if child is not None and child.run_id:
        # It may have gone on in another run since, which the same request would not find.
        await _let_begin(scope, wanted, child.run_id)
        await _ask_for_end(scope, wanted, child.run_id)
        return
    try:
        answer = await history.call("StartChild", namespace_id, wanted.workflow_id, start)
    except Refused as refused:
        if refused.code not in (Code.ALREADY_EXISTS, Code.NOT_FOUND):
            raise
        cause = (
            Cause.START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_WORKFLOW_ALREADY_EXISTS
            if refused.code == Code.ALREADY_EXISTS
            else Cause.START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_NAMESPACE_NOT_FOUND
        )
        await _fail(scope, row, task, cause)
        return
    run_id = StartWorkflowExecutionResponse.FromString(answer).run_id
    if not await _tell(scope, row, task, run_id, wanted) and not is_abandoned:
        await _end(scope, row, task, wanted)
        return
    await _let_begin(scope, wanted, run_id)


async def _let_begin(scope: Scope, wanted: StartChildWorkflowExecutionInitiatedEventAttributes, run_id: str) -> None:
    await scope.services.history.call(
        "ScheduleFirstTask", wanted.namespace_id, wanted.workflow_id, ScheduleFirstTask(wanted.workflow_id, run_id)
    )


async def _ask_for_end(scope: Scope, wanted: StartChildWorkflowExecutionInitiatedEventAttributes, run_id: str) -> None:
    """The child may have ended where the parent was not told: in another cluster, which is not active any more."""
    with suppress(RunClosed):
        await scope.services.history.call(
            "TellParentAgain", wanted.namespace_id, wanted.workflow_id, TellParentAgain(wanted.workflow_id, run_id)
        )


async def _end(
    scope: Scope, row: QueueRow, task: StartChild, wanted: StartChildWorkflowExecutionInitiatedEventAttributes
) -> None:
    """The parent has closed, and could not see to a child that it did not know of: if that is there, it ends."""
    await scope.services.history.call(
        "EndUnbegun",
        wanted.namespace_id,
        wanted.workflow_id,
        EndUnbegun(wanted.workflow_id, row.workflow_id, row.run_id, task.initiated_event_id),
    )


def _versions(
    scope: Scope, state: RunState, wanted: StartChildWorkflowExecutionInitiatedEventAttributes
) -> tuple[Version | None, Version | None, int]:
    """What the child has from its parent: the version it is pinned to, or has moved to, if the workers have both."""
    version = state.versioning.version if state.versioning is not None else None
    pinned, revision = pinned_version(state), state.live.routing_revision
    either = pinned or version
    task_list = TaskList(wanted.namespace_id, wanted.task_queue.name, TaskType.WORKFLOW)
    if (
        either is None
        or wanted.namespace_id != scope.namespace.id
        or not scope.services.deployments.has_task_queue(task_list, either)
    ):
        return None, None, 0
    return (pinned, None, 0) if pinned is not None else (None, version, revision)


async def _tell(
    scope: Scope,
    row: QueueRow,
    task: StartChild,
    run_id: str,
    wanted: StartChildWorkflowExecutionInitiatedEventAttributes,
) -> bool:
    """Let the parent know that the child is there; false if it has closed."""
    header = wanted.header if wanted.HasField("header") else None

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        if not is_meant(transaction.state, task) or not child_started(
            transaction, task.initiated_event_id, run_id=run_id, header=header
        ):
            raise NotPending("that is known")

    try:
        await scope.shard.change(scope.namespace, row.workflow_id, row.run_id, step)
    except RunClosed:
        return False
    except NotPending:
        return True
    return True


async def _fail(scope: Scope, row: QueueRow, task: StartChild, cause: Cause.ValueType) -> None:
    def step(transaction: Transaction, _run: LoadedRun) -> None:
        if not is_meant(transaction.state, task):
            raise NotPending("another branch is the current one by now")
        child_start_failed(transaction, task.initiated_event_id, cause)

    await scope.shard.change(scope.namespace, row.workflow_id, row.run_id, step)


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
