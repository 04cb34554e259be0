"""Tasks on their way to matching: to which task list, with which priority, under which fairness key."""

from temporalio.api.common.v1 import Priority

from fairlead.core.partitions import TaskList, TaskType
from fairlead.history.client import HistoryClient
from fairlead.history.deployments.routing import list_of
from fairlead.history.deployments.targets import activity_target, workflow_place, workflow_target
from fairlead.history.scope import Services
from fairlead.history.state import PendingActivity, RunState, WorkflowTask
from fairlead.history.tasks_wire import (
    AnyMatched,
    MatchedActivityTask,
    MatchedWorkflowTask,
    encode_matched,
    read_matched,
)
from fairlead.matching.client import MatchingClient
from fairlead.matching.messages import NewTask, StickyWorkerGone, TaskListKind
from fairlead.storage.history_contract import RunKey

PRIORITY_DEFAULT = 3
# Higher numbers mean less, and there are no more than so many of them.
PRIORITY_LAST = 5
_SECOND_NS = 1_000_000_000


def new_task(matched: AnyMatched, priority: bytes | None, created_ns: int) -> NewTask:
    """A task with the priority that its run or activity has."""
    level, fairness_key, weight = PRIORITY_DEFAULT, "", 1.0
    if priority:
        wanted = Priority.FromString(priority)
        level = min(wanted.priority_key, PRIORITY_LAST) or PRIORITY_DEFAULT
        fairness_key = wanted.fairness_key
        weight = wanted.fairness_weight or 1.0
    return NewTask(level, fairness_key, weight, encode_matched(matched), created_ns / _SECOND_NS)


async def push_workflow_task(services: Services, key: RunKey, state: RunState, task: WorkflowTask) -> None:
    """Offer a workflow task to the worker that knows the run, or to all where it is gone."""
    origin = state.started
    if task.sticky and is_at_target(services, state):
        matched = MatchedWorkflowTask(*key, task.scheduled_event_id, task.attempt, sticky=True, version=task.version)
        task_list = TaskList(key.namespace_id, task.task_queue, TaskType.WORKFLOW)
        try:
            await services.matching.add(
                task_list, new_task(matched, origin.priority, task.scheduled_ns), kind=TaskListKind.STICKY
            )
        except StickyWorkerGone:
            pass
        else:
            return
    await push_to_all(services, key, state, task)


async def push_to_all(services: Services, key: RunKey, state: RunState, task: WorkflowTask) -> None:
    """Offer a workflow task to all workers of the run's task list."""
    origin = state.started
    matched = MatchedWorkflowTask(*key, task.scheduled_event_id, task.attempt, version=task.version)
    task_list = workflow_place(services.deployments, state)
    await services.matching.add(task_list, new_task(matched, origin.priority, task.scheduled_ns))


def is_at_target(services: Services, state: RunState) -> bool:
    """Whether the worker that knows the run is of the version that its next task is for."""
    known = state.versioning.version if state.versioning is not None else None
    return workflow_target(services.deployments, state) == known


async def leave_sticky(
    matching: MatchingClient, history: HistoryClient, namespace_id: str, sticky_task_queue: str
) -> None:
    """A worker has said goodbye: what waits in its own task list goes to the others at once."""
    sticky = TaskList(namespace_id, sticky_task_queue, TaskType.WORKFLOW)
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
    """Offer an attempt of an activity to the workers of its task list."""
    matched = MatchedActivityTask(*key, activity.scheduled_event_id, attempt, stamp, activity.version)
    task_list = TaskList(key.namespace_id, activity.task_queue, TaskType.ACTIVITY)
    target = activity_target(services.deployments, state, task_list)
    await services.matching.add(list_of(task_list, target), new_task(matched, activity.priority, due_ns))


async def push_untyped(services: Services, task_list: TaskList, task: AnyMatched) -> None:
    """Offer a task that is neither a run's workflow task nor its activity elsewhere."""
    await services.matching.add(task_list, new_task(task, None, services.clock_ns()))
