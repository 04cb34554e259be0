"""Tasks for matching, with their task queue, priority and fairness key."""

from functools import lru_cache

from temporalio.api.common.v1 import Priority

from fairlead.api.times import SECOND_NS
from fairlead.api.worker_deployments.routing import list_of
from fairlead.api.worker_versions import Version
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.history.client import HistoryClient
from fairlead.history.messages.matching_tasks import (
    AnyMatched,
    MatchedActivityTask,
    MatchedWorkflowTask,
    encode_matched,
    read_matched,
)
from fairlead.history.shard.context import Services
from fairlead.history.shard.version_targets import activity_target, workflow_place, workflow_queue, workflow_target
from fairlead.history.state import PendingActivity, RunState, WorkflowTask
from fairlead.matching.client import MatchingClient
from fairlead.matching.messages import NewTask, QueueKind, StickyWorkerGone, TaskOwner
from fairlead.storage.history import RunKey

PRIORITY_DEFAULT = 3
# Highest priority number, which is the lowest priority.
PRIORITY_LAST = 5


def new_task(matched: AnyMatched, priority: bytes | None, created_ns: int) -> NewTask:
    """A task for matching, with the priority of its run or activity."""
    return NewTask(*_placed(priority), encode_matched(matched), created_ns / SECOND_NS, TaskOwner.HISTORY)


def direct_place(
    services: Services, state: RunState, task: WorkflowTask
) -> tuple[TaskQueueId, QueueKind, NewTask, Version | None] | None:
    """The task queue of a workflow task that will be written, its kind, the task, and the worker version.

    None if the sticky worker does not have the version that the run needs. The task has no payload, because matching
    never stores a task that is started at once.
    """
    task_queue, target = workflow_place(services.deployments, state)
    new = NewTask(*_placed(state.started.priority), b"", (task.scheduled_ns - state.skipped_ns) / SECOND_NS)
    if not task.sticky:
        return task_queue, QueueKind.NORMAL, new, target
    if target != (state.versioning.version if state.versioning is not None else None):
        return None
    return TaskQueueId(state.identity.namespace_id, task.task_queue, TaskType.WORKFLOW), QueueKind.STICKY, new, target


# Number of priorities that are kept decoded; the runs of a tenant usually have the same priority.
_PRIORITIES_MAX = 4096


@lru_cache(maxsize=_PRIORITIES_MAX)
def _placed(priority: bytes | None) -> tuple[int, str, float]:
    """The priority, the fairness key and the weight in an encoded `Priority`."""
    if not priority:
        return PRIORITY_DEFAULT, "", 1.0
    wanted = Priority.FromString(priority)
    level = min(wanted.priority_key, PRIORITY_LAST) or PRIORITY_DEFAULT
    return level, wanted.fairness_key, wanted.fairness_weight or 1.0


def fairness_key_of(priority: bytes | None) -> str:
    """The fairness key in an encoded `Priority`."""
    return _placed(priority)[1]


async def push_workflow_task(services: Services, key: RunKey, state: RunState, task: WorkflowTask) -> None:
    """Add a workflow task to the sticky task queue, or to the normal queue if the sticky worker is gone."""
    origin = state.started
    if task.sticky and is_at_target(services, state):
        matched = MatchedWorkflowTask(*key, task.scheduled_event_id, task.attempt, sticky=True, version=task.version)
        task_queue = TaskQueueId(key.namespace_id, task.task_queue, TaskType.WORKFLOW)
        try:
            await services.matching.add(
                task_queue,
                new_task(matched, origin.priority, task.scheduled_ns - state.skipped_ns),
                kind=QueueKind.STICKY,
            )
        except StickyWorkerGone:
            pass
        else:
            return
    await push_to_all(services, key, state, task)


async def push_to_all(services: Services, key: RunKey, state: RunState, task: WorkflowTask) -> None:
    """Add a workflow task to the run's normal task queue."""
    origin = state.started
    matched = MatchedWorkflowTask(*key, task.scheduled_event_id, task.attempt, version=task.version)
    task_queue = workflow_queue(services.deployments, state)
    await services.matching.add(task_queue, new_task(matched, origin.priority, task.scheduled_ns - state.skipped_ns))


def is_at_target(services: Services, state: RunState) -> bool:
    """Whether the run's sticky worker has the version for which the next task is."""
    known = state.versioning.version if state.versioning is not None else None
    return workflow_target(services.deployments, state) == known


async def leave_sticky(
    matching: MatchingClient, history: HistoryClient, namespace_id: str, sticky_task_queue: str
) -> None:
    """Move the tasks of a sticky task queue to the normal queues, because its worker has shut down."""
    sticky = TaskQueueId(namespace_id, sticky_task_queue, TaskType.WORKFLOW)
    for payload in await matching.forget_sticky(sticky):
        task = read_matched(payload)
        if isinstance(task, MatchedWorkflowTask):
            await history.call("PushAnew", task.namespace_id, task.workflow_id, task)


async def push_activity_task(
    services: Services,
    key: RunKey,
    state: RunState,
    activity: PendingActivity,
    *,
    attempt: int,
    stamp: int,
    due_ns: int,
) -> None:
    """Add an attempt of an activity to its task queue."""
    matched = MatchedActivityTask(*key, activity.scheduled_event_id, attempt, stamp, activity.version)
    task_queue = TaskQueueId(key.namespace_id, activity.task_queue, TaskType.ACTIVITY)
    target = activity_target(services.deployments, state, task_queue)
    await services.matching.add(
        list_of(task_queue, target), new_task(matched, activity.priority, due_ns - state.skipped_ns)
    )


async def push_untyped(services: Services, task_queue: TaskQueueId, task: AnyMatched) -> None:
    """Add a task that is neither a workflow task nor an activity of a run, such as a query, to a task queue."""
    await services.matching.add(task_queue, new_task(task, None, services.clock_ns()))
