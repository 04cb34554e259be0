"""Updates: a workflow task delivers them to the workflow; callers wait until they reach a stage."""

from typing import NamedTuple

from google.protobuf.message import Message
from temporalio.api.common.v1 import Link, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage as Stage
from temporalio.api.update.v1 import Request, UpdateRef
from temporalio.api.workflowservice.v1 import (
    PollWorkflowExecutionUpdateRequest,
    PollWorkflowExecutionUpdateResponse,
    UpdateWorkflowExecutionRequest,
    UpdateWorkflowExecutionResponse,
)

from fairlead.api.errors import DeadlineExceeded, FailedPrecondition, NotFound
from fairlead.core.errors import FairleadError
from fairlead.history.events import Transaction, schedule_workflow_task
from fairlead.history.events.write_updates import attach_to_update, is_attached
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.matching_tasks import push_workflow_task
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.shard.updates import (
    ACCEPTED,
    ADMITTED,
    COMPLETED,
    Update,
    UpdatePhase,
    UpdateStatus,
    closed_before_outcome,
    not_ready,
)
from fairlead.history.state import RunClosed, TaskKind, WorkflowTask
from fairlead.history.state.run import PAUSED
from fairlead.storage.history import RunKey
from fairlead.telemetry import get_log

# Seconds after which a waiting caller gets the stage reached so far (Temporal's history.longPollExpirationInterval).
LONG_POLL_S = 20.0
# Number of consecutive failed attempts after which a workflow task is expected to fail again, and the update with it.
FAILING_ATTEMPTS = 3

_log = get_log("history.updates")


class Asked(NamedTuple):
    """An update that a caller requested. `found` is the update in flight, or its final status."""

    key: RunKey
    found: Update | UpdateStatus

    @property
    def is_answered(self) -> bool:
        """Whether the update had already ended when it was requested."""
        return isinstance(self.found, UpdateStatus)

    async def wait(self, stage: Stage.ValueType, timeout_s: float) -> UpdateStatus:
        """The status when the update has reached `stage`, or after `LONG_POLL_S`.

        The caller's deadline is in `timeout_s`.
        """
        if isinstance(self.found, UpdateStatus):
            return self.found
        status = await self.found.wait(stage, min(LONG_POLL_S, timeout_s))
        # A caller that gets an earlier stage polls again. If its own deadline is over, raise an error instead.
        if status.stage < stage and timeout_s < LONG_POLL_S:
            raise deadline_exceeded()
        return status


def deadline_exceeded() -> DeadlineExceeded:
    """The error for a caller whose deadline has passed."""
    return DeadlineExceeded("context deadline exceeded")


async def update_workflow(context: OperationContext, request: UpdateWorkflowExecutionRequest) -> Message:
    """Send an update to a workflow, and wait for the stage that the client requests."""
    execution = request.workflow_execution
    async with context.shard.lock(context.namespace.id, execution.workflow_id):
        run = await context.shard.load(context.namespace.id, execution.workflow_id, execution.run_id)
        asked = await ask(context, run, request)
    return await answer(context, request, asked)


async def ask(context: OperationContext, run: LoadedRun, request: UpdateWorkflowExecutionRequest) -> Asked:
    """Admit the update, and schedule a workflow task to deliver it.

    The caller must hold the lock.
    """
    state, update_id = run.state, request.request.meta.update_id
    if request.first_execution_run_id and state.started.first_run_id != request.first_execution_run_id:
        raise NotFound("workflow execution not found")
    if not state.is_open:
        ended = await _ended(context, run, update_id)
        if ended is None:
            raise RunClosed
        return Asked(run.key, ended)
    if state.status == PAUSED:
        raise FailedPrecondition("Workflow is paused. Cannot update the workflow.")
    if state.live.task_attempt >= FAILING_ATTEMPTS:
        raise not_ready("Unable to perform workflow execution update due to Workflow Task in failed state.")
    ended = await _ended(context, run, update_id)
    if ended is not None:
        return Asked(run.key, ended)
    await context.shard.check_writable(context.namespace, run)
    registry = run.update_registry()
    update = registry.find(state, update_id)
    if update is None:
        update = registry.admit(state, request.request, context.services.limits.of(context.namespace.id))
    elif request.request.completion_callbacks:
        await _attach(context, run, update, request.request)
    if update.phase is UpdatePhase.WAITING and state.workflow_task is None:
        await _schedule_task(context, run)
    return Asked(run.key, update)


async def _attach(context: OperationContext, run: LoadedRun, update: Update, request: Request) -> None:
    """Register the callbacks of another request for an update in flight."""
    if update.phase is not UpdatePhase.ACCEPTED:
        run.update_registry().attach(update, request)
        return
    if is_attached(run.state, update.update_id, request.request_id):
        return

    def step(transaction: Transaction, _run: LoadedRun) -> None:
        attach_to_update(transaction, update.update_id, request)

    await context.shard.step(context.namespace, run, step)


async def _ended(context: OperationContext, run: LoadedRun, update_id: str) -> UpdateStatus | None:
    """The final status of an update, if it has an outcome or can no longer get one."""
    record = run.state.updates.get(update_id)
    if record is not None and record.completed_event_id:
        event = await context.shard.events.read_event(run.state, record.completed_event_id)
        return UpdateStatus(COMPLETED, event.workflow_execution_update_completed_event_attributes.outcome)
    if record is not None and record.accepted_event_id and not run.state.is_open:
        return closed_before_outcome()
    return None


async def _schedule_task(context: OperationContext, run: LoadedRun) -> None:
    """Schedule a speculative workflow task.

    It is in memory only, and leaves no events if the worker rejects the update.
    """

    def step(transaction: Transaction, run: LoadedRun) -> WorkflowTask:
        task = schedule_workflow_task(transaction, kind=TaskKind.SPECULATIVE)
        run.skip_write = task.kind is TaskKind.SPECULATIVE and not transaction.events
        return task

    task = await context.shard.step(context.namespace, run, step)
    if task.kind is TaskKind.SPECULATIVE:
        context.shard.background.start(_push(context, run, task))


async def _push(context: OperationContext, run: LoadedRun, task: WorkflowTask) -> None:
    """Add the task to matching. If that fails, the task times out soon, and a stored task replaces it."""
    try:
        await push_workflow_task(context.services, run.key, run.state, task)
    except FairleadError as failure:
        _log.warning("speculative workflow task not pushed", workflow_id=run.key.workflow_id, error=str(failure))


async def answer(
    context: OperationContext, request: UpdateWorkflowExecutionRequest, asked: Asked
) -> UpdateWorkflowExecutionResponse:
    """The response when the update has reached the requested stage, or the wait has timed out."""
    stage = request.wait_policy.lifecycle_stage or ACCEPTED
    status = await asked.wait(stage, context.timeout_s)
    response = UpdateWorkflowExecutionResponse(
        update_ref=_reference(asked.key, request.request.meta.update_id), stage=status.stage, outcome=status.outcome
    )
    if status.stage != ADMITTED:
        response.link.CopyFrom(_link(context, asked.key, request.request.request_id, status))
    return response


async def poll(context: OperationContext, request: PollWorkflowExecutionUpdateRequest) -> Message:
    """Wait for an update that was requested before."""
    reference = request.update_ref
    execution, update_id = reference.workflow_execution, reference.update_id
    async with context.shard.lock(context.namespace.id, execution.workflow_id):
        run = await context.shard.load(context.namespace.id, execution.workflow_id, execution.run_id)
        found = await _ended(context, run, update_id) or run.update_registry().find(run.state, update_id)
        if found is None:
            raise NotFound(f'update "{update_id}" not found')
        asked = Asked(run.key, found)
    status = await asked.wait(request.wait_policy.lifecycle_stage, context.timeout_s)
    return PollWorkflowExecutionUpdateResponse(
        outcome=status.outcome, stage=status.stage, update_ref=_reference(asked.key, update_id)
    )


def _reference(key: RunKey, update_id: str) -> UpdateRef:
    execution = WorkflowExecution(workflow_id=key.workflow_id, run_id=key.run_id)
    return UpdateRef(workflow_execution=execution, update_id=update_id)


def _link(context: OperationContext, key: RunKey, request_id: str, status: UpdateStatus) -> Link:
    """A link to the update's accepted event, or to the run if the update was rejected."""
    if not status.was_accepted:
        return Link(
            workflow=Link.Workflow(
                namespace=context.namespace.name,
                workflow_id=key.workflow_id,
                run_id=key.run_id,
                reason="Update rejected",
            )
        )
    accepted = Link.WorkflowEvent.RequestIdReference(
        request_id=request_id, event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
    )
    return Link(
        workflow_event=Link.WorkflowEvent(
            namespace=context.namespace.name, workflow_id=key.workflow_id, run_id=key.run_id, request_id_ref=accepted
        )
    )


OPERATIONS = {
    "UpdateWorkflowExecution": Operation(UpdateWorkflowExecutionRequest, update_workflow),
    "PollWorkflowExecutionUpdate": Operation(PollWorkflowExecutionUpdateRequest, poll),
}
