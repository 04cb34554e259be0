"""Updates: brought to the workflow by a workflow task, and waited for."""

from typing import NamedTuple

from google.protobuf.message import Message
from temporalio.api.common.v1 import Link, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage as Stage
from temporalio.api.update.v1 import UpdateRef
from temporalio.api.workflowservice.v1 import (
    PollWorkflowExecutionUpdateRequest,
    PollWorkflowExecutionUpdateResponse,
    UpdateWorkflowExecutionRequest,
    UpdateWorkflowExecutionResponse,
)

from fairlead.core.errors import FairleadError
from fairlead.history.events import Transaction, schedule_workflow_task
from fairlead.history.pushing import push_workflow_task
from fairlead.history.refusals import Refused, failed_precondition, not_found, refused
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Operation, Scope
from fairlead.history.state import RunClosed, TaskKind, WorkflowTask
from fairlead.history.state.run import PAUSED
from fairlead.history.updates import (
    ACCEPTED,
    ADMITTED,
    COMPLETED,
    Place,
    Update,
    UpdateStatus,
    closed_before_outcome,
    not_ready,
)
from fairlead.rpc import Code
from fairlead.storage.history_contract import RunKey
from fairlead.telemetry import get_log

# Temporal's history.longPollExpirationInterval: then whoever waits hears how far the update has come.
LONG_POLL_S = 20.0
# A workflow task that has failed so often in a row fails again, and an update with it.
FAILING_ATTEMPTS = 3

_log = get_log("history.updates")


class Asked(NamedTuple):
    """An update that was asked for: on its way, or what became of it."""

    key: RunKey
    found: Update | UpdateStatus

    @property
    def is_answered(self) -> bool:
        """Whether it was over when it was asked for."""
        return isinstance(self.found, UpdateStatus)

    async def wait(self, stage: Stage.ValueType, timeout_s: float) -> UpdateStatus:
        """How far it has come when it has come to `stage`, or after a while. `timeout_s` is the client's patience."""
        if isinstance(self.found, UpdateStatus):
            return self.found
        status = await self.found.wait(stage, min(LONG_POLL_S, timeout_s))
        # Whoever hears of a stage that it did not ask for asks again: not beyond its own deadline.
        if status.stage < stage and timeout_s < LONG_POLL_S:
            raise deadline_exceeded()
        return status


def deadline_exceeded() -> Refused:
    """The client's time is over."""
    return refused(Code.DEADLINE_EXCEEDED, "context deadline exceeded")


async def update_workflow(scope: Scope, request: UpdateWorkflowExecutionRequest) -> Message:
    """Bring an update to a workflow, and wait for it as long as the client wants and the time allows."""
    execution = request.workflow_execution
    async with scope.shard.lock(scope.namespace.id, execution.workflow_id):
        run = await scope.shard.load(scope.namespace.id, execution.workflow_id, execution.run_id)
        asked = await ask(scope, run, request)
    return await answer(scope, request, asked)


async def ask(scope: Scope, run: LoadedRun, request: UpdateWorkflowExecutionRequest) -> Asked:
    """Let the update in, and see to it that a workflow task takes it. To be called with the lock."""
    state, update_id = run.state, request.request.meta.update_id
    if request.first_execution_run_id and state.started.first_run_id != request.first_execution_run_id:
        raise not_found("workflow execution not found")
    if not state.is_open:
        ended = await _ended(scope, run, update_id)
        if ended is None:
            raise RunClosed
        return Asked(run.key, ended)
    if state.status == PAUSED:
        raise failed_precondition("Workflow is paused. Cannot update the workflow.")
    if state.live.task_attempt >= FAILING_ATTEMPTS:
        raise not_ready("Unable to perform workflow execution update due to Workflow Task in failed state.")
    ended = await _ended(scope, run, update_id)
    if ended is not None:
        return Asked(run.key, ended)
    await scope.shard.check_writable(scope.namespace, run)
    registry = run.update_registry()
    update = registry.find(state, update_id) or registry.admit(state, request.request)
    if update.place is Place.WAITING and state.workflow_task is None:
        await _schedule_task(scope, run)
    return Asked(run.key, update)


async def _ended(scope: Scope, run: LoadedRun, update_id: str) -> UpdateStatus | None:
    """What became of an update, if it has an outcome or can't have one any more."""
    record = run.state.updates.get(update_id)
    if record is not None and record.completed_event_id:
        event = await scope.shard.read_event(run.state, record.completed_event_id)
        return UpdateStatus(COMPLETED, event.workflow_execution_update_completed_event_attributes.outcome)
    if record is not None and record.accepted_event_id and not run.state.is_open:
        return closed_before_outcome()
    return None


async def _schedule_task(scope: Scope, run: LoadedRun) -> None:
    """A workflow task that leaves no trace if nothing comes of it; it is not on disk, nor in a queue that is."""

    def step(transaction: Transaction, run: LoadedRun) -> WorkflowTask:
        task = schedule_workflow_task(transaction, kind=TaskKind.SPECULATIVE)
        run.skip_write = task.kind is TaskKind.SPECULATIVE and not transaction.events
        return task

    task = await scope.shard.step(scope.namespace, run, step)
    if task.kind is TaskKind.SPECULATIVE:
        scope.shard.in_background(_push(scope, run, task))


async def _push(scope: Scope, run: LoadedRun, task: WorkflowTask) -> None:
    """Hand it to matching. If that fails, its time runs out soon, and a task that is on disk takes its place."""
    try:
        await push_workflow_task(scope.services, run.key, run.state, task)
    except FairleadError as failure:
        _log.warning("speculative workflow task not pushed", workflow_id=run.key.workflow_id, error=str(failure))


async def answer(
    scope: Scope, request: UpdateWorkflowExecutionRequest, asked: Asked
) -> UpdateWorkflowExecutionResponse:
    """What the client hears, when the update has come as far as it wants, or the time is over."""
    stage = request.wait_policy.lifecycle_stage or ACCEPTED
    status = await asked.wait(stage, scope.timeout_s)
    response = UpdateWorkflowExecutionResponse(
        update_ref=_reference(asked.key, request.request.meta.update_id), stage=status.stage, outcome=status.outcome
    )
    if status.stage != ADMITTED:
        response.link.CopyFrom(_link(scope, asked.key, request.request.request_id, status))
    return response


async def poll(scope: Scope, request: PollWorkflowExecutionUpdateRequest) -> Message:
    """Wait for an update that was asked for before."""
    reference = request.update_ref
    execution, update_id = reference.workflow_execution, reference.update_id
    async with scope.shard.lock(scope.namespace.id, execution.workflow_id):
        run = await scope.shard.load(scope.namespace.id, execution.workflow_id, execution.run_id)
        found = await _ended(scope, run, update_id) or run.update_registry().find(run.state, update_id)
        if found is None:
            raise not_found(f'update "{update_id}" not found')
        asked = Asked(run.key, found)
    status = await asked.wait(request.wait_policy.lifecycle_stage, scope.timeout_s)
    return PollWorkflowExecutionUpdateResponse(
        outcome=status.outcome, stage=status.stage, update_ref=_reference(asked.key, update_id)
    )


def _reference(key: RunKey, update_id: str) -> UpdateRef:
    execution = WorkflowExecution(workflow_id=key.workflow_id, run_id=key.run_id)
    return UpdateRef(workflow_execution=execution, update_id=update_id)


def _link(scope: Scope, key: RunKey, request_id: str, status: UpdateStatus) -> Link:
    """Where the update is to be found: by the event of its acceptance, if there is one that holds."""
    if not status.was_accepted:
        return Link(
            workflow=Link.Workflow(
                namespace=scope.namespace.name,
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
            namespace=scope.namespace.name, workflow_id=key.workflow_id, run_id=key.run_id, request_id_ref=accepted
        )
    )


OPERATIONS = {
    "UpdateWorkflowExecution": Operation(UpdateWorkflowExecutionRequest, update_workflow),
    "PollWorkflowExecutionUpdate": Operation(PollWorkflowExecutionUpdateRequest, poll),
}
