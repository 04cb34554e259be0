"""Tasks that are handed to matching."""

from fairlead.history.duties.verifying import is_meant
from fairlead.history.pushing import push_activity_task, push_workflow_task
from fairlead.history.scope import Scope
from fairlead.history.state import PendingActivity, WorkflowTask
from fairlead.history.state.run import PAUSED
from fairlead.history.state.tasks import PushActivityTask, PushWorkflowTask, QueueRow
from fairlead.storage.history_contract import RunKey


async def push_workflow(scope: Scope, row: QueueRow, task: PushWorkflowTask) -> None:
    """Hand a workflow task over, if it still waits."""
    shard = scope.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        pending: WorkflowTask | None = run.state.workflow_task
    if (
        pending is not None
        and is_meant(run.state, task)
        and not pending.is_started
        and run.state.status != PAUSED
        and (pending.scheduled_event_id, pending.attempt) == (task.scheduled_event_id, task.attempt)
    ):
        await push_workflow_task(scope.services, run.key, run.state, pending)


async def push_activity(scope: Scope, row: QueueRow, task: PushActivityTask) -> None:
    """Hand an attempt of an activity over, if it still waits."""
    shard = scope.shard
    async with shard.lock(row.namespace_id, row.workflow_id):
        run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
        state = run.state
        activity: PendingActivity | None = state.open_activity(task.scheduled_event_id) if state.is_open else None
        progress = state.live.activities.get(task.scheduled_event_id)
        if (
            activity is None
            or not is_meant(state, task)
            or progress is None
            or progress.is_started
            or progress.paused
            or state.status == PAUSED
            or (progress.attempt, progress.stamp) != (task.attempt, task.stamp)
        ):
            return
        due_ns = progress.due_ns
    key = RunKey(row.namespace_id, row.workflow_id, row.run_id)
    await push_activity_task(
        scope.services, key, state, activity, attempt=task.attempt, stamp=task.stamp, due_ns=due_ns
    )
