"""Tasks that may wait for workers of the wrong version, since it was changed which ones they belong to."""

from fairlead.core.partitions import TaskList, TaskType
from fairlead.history.deployments.routing import Mark, decode_mark, list_of
from fairlead.history.deployments.targets import activity_list, activity_target, workflow_target
from fairlead.history.pushing import push_activity_task, push_to_all, push_untyped
from fairlead.history.refusals import invalid
from fairlead.history.scope import Operation, Scope
from fairlead.history.tasks_wire import (
    MatchedActivityTask,
    MatchedQuery,
    MatchedWorkflowTask,
    StartMatched,
)

STAYS = b"stays"
GONE = b""


async def review(scope: Scope, request: StartMatched) -> bytes:
    """Whether a task is where it belongs; if not, it is there when this returns, and need not be kept here."""
    mark, task = decode_mark(request.worker), request.task
    if mark is None:
        raise invalid("a task is reviewed for a task list, and not for a worker")
    if isinstance(task, MatchedWorkflowTask):
        return await _review_workflow_task(scope, task, mark)
    if isinstance(task, MatchedActivityTask):
        return await _review_activity_task(scope, task, mark)
    task_list = TaskList(scope.namespace.id, mark.name, TaskType(mark.type))
    if isinstance(task, MatchedQuery):
        async with scope.shard.lock(scope.namespace.id, task.workflow_id):
            run = await scope.shard.load(scope.namespace.id, task.workflow_id, task.run_id)
            target = workflow_target(scope.services.deployments, run.state)
    else:
        target = scope.services.deployments.target(task_list, task.workflow_id)
    if target == mark.version:
        return STAYS
    await push_untyped(scope.services, list_of(task_list, target), task)
    return GONE


async def _review_workflow_task(scope: Scope, task: MatchedWorkflowTask, mark: Mark) -> bytes:
    async with scope.shard.lock(scope.namespace.id, task.workflow_id):
        run = await scope.shard.load(scope.namespace.id, task.workflow_id, task.run_id)
        pending = run.state.workflow_task
        if (
            pending is None
            or pending.is_started
            or (pending.scheduled_event_id, pending.attempt) != (task.scheduled_event_id, task.attempt)
        ):
            return GONE
        if workflow_target(scope.services.deployments, run.state) == mark.version:
            return STAYS
    await push_to_all(scope.services, run.key, run.state, pending)
    return GONE


async def _review_activity_task(scope: Scope, task: MatchedActivityTask, mark: Mark) -> bytes:
    async with scope.shard.lock(scope.namespace.id, task.workflow_id):
        run = await scope.shard.load(scope.namespace.id, task.workflow_id, task.run_id)
        activity = run.state.open_activity(task.scheduled_event_id) if run.state.is_open else None
        progress = run.state.live.activities.get(task.scheduled_event_id)
        if (
            activity is None
            or progress is None
            or progress.is_started
            or (progress.attempt, progress.stamp) != (task.attempt, task.stamp)
        ):
            return GONE
        target = activity_target(scope.services.deployments, run.state, activity_list(run.state, activity))
        if target == mark.version:
            return STAYS
        due_ns = progress.due_ns
    await push_activity_task(
        scope.services, run.key, run.state, activity, attempt=task.attempt, stamp=task.stamp, due_ns=due_ns
    )
    return GONE


OPERATIONS = {"ReviewTask": Operation(StartMatched, review)}
