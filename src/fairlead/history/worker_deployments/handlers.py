"""Reviews of pending tasks after a routing change: moves tasks that are in the queue of another version."""

from fairlead.api.errors import InvalidArgument
from fairlead.api.worker_deployments.routing import Mark, decode_mark, list_of
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.history.messages.matching_tasks import (
    MatchedActivityTask,
    MatchedQuery,
    MatchedWorkflowTask,
    StartMatched,
)
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.matching_tasks import push_activity_task, push_to_all, push_untyped
from fairlead.history.shard.version_targets import activity_list, activity_target, workflow_target

STAYS = b"stays"
GONE = b""


async def review(context: OperationContext, request: StartMatched) -> bytes:
    """Return `STAYS` if a task is in the right queue.

    Otherwise add it to the right queue, and return `GONE`, so that it is dropped here.
    """
    mark, task = decode_mark(request.worker), request.task
    if mark is None:
        raise InvalidArgument("a request to review a task must name a task queue, not a worker")
    if isinstance(task, MatchedWorkflowTask):
        return await _review_workflow_task(context, task, mark)
    if isinstance(task, MatchedActivityTask):
        return await _review_activity_task(context, task, mark)
    task_queue = TaskQueueId(context.namespace.id, mark.name, TaskType(mark.type))
    if isinstance(task, MatchedQuery):
        async with context.shard.lock(context.namespace.id, task.workflow_id):
            run = await context.shard.load(context.namespace.id, task.workflow_id, task.run_id)
            target = workflow_target(context.services.deployments, run.state)
    else:
        target = context.services.deployments.target(task_queue, task.workflow_id)
    if target == mark.version:
        return STAYS
    await push_untyped(context.services, list_of(task_queue, target), task)
    return GONE


async def _review_workflow_task(context: OperationContext, task: MatchedWorkflowTask, mark: Mark) -> bytes:
    async with context.shard.lock(context.namespace.id, task.workflow_id):
        run = await context.shard.load(context.namespace.id, task.workflow_id, task.run_id)
        pending = run.state.workflow_task
        if (
            pending is None
            or pending.is_started
            or (pending.scheduled_event_id, pending.attempt) != (task.scheduled_event_id, task.attempt)
        ):
            return GONE
        if workflow_target(context.services.deployments, run.state) == mark.version:
            return STAYS
    await push_to_all(context.services, run.key, run.state, pending)
    return GONE


async def _review_activity_task(context: OperationContext, task: MatchedActivityTask, mark: Mark) -> bytes:
    async with context.shard.lock(context.namespace.id, task.workflow_id):
        run = await context.shard.load(context.namespace.id, task.workflow_id, task.run_id)
        activity = run.state.open_activity(task.scheduled_event_id) if run.state.is_open else None
        progress = run.state.live.activities.get(task.scheduled_event_id)
        if (
            activity is None
            or progress is None
            or progress.is_started
            or (progress.attempt, progress.stamp) != (task.attempt, task.stamp)
        ):
            return GONE
        target = activity_target(context.services.deployments, run.state, activity_list(run.state, activity))
        if target == mark.version:
            return STAYS
        due_ns = progress.due_ns
    await push_activity_task(
        context.services, run.key, run.state, activity, attempt=task.attempt, stamp=task.stamp, due_ns=due_ns
    )
    return GONE


OPERATIONS = {"ReviewTask": Operation(StartMatched, review)}
