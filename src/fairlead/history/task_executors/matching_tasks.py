"""Adds workflow and activity tasks to matching."""

from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.matching_tasks import push_activity_task, push_workflow_task
from fairlead.history.state import PendingActivity, WorkflowTask
from fairlead.history.state.run import PAUSED
from fairlead.history.state.tasks import PushActivityTask, PushWorkflowTask, QueueRow, WorkflowTaskRetry
from fairlead.history.task_executors.verification import is_meant
from fairlead.storage.history import RunKey


async def push_workflow(context: OperationContext, row: QueueRow, task: PushWorkflowTask | WorkflowTaskRetry) -> None:
    """Add a workflow task to matching, if it is still pending."""
    shard = context.shard
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
        await push_workflow_task(context.services, run.key, run.state, pending)


async def push_activity(context: OperationContext, row: QueueRow, task: PushActivityTask) -> None:
    """Add an attempt of an activity to matching, if it is still pending."""
    shard = context.shard
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
        context.services, key, state, activity, attempt=task.attempt, stamp=task.stamp, due_ns=due_ns
    )
