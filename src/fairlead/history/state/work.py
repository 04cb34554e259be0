"""The tasks of a run that workers have or could take now. While there are any, time must not be skipped."""

from typing import NamedTuple

from fairlead.core.partitions import TaskType
from fairlead.history.state.run import PAUSED, RunState


class WaitingTask(NamedTuple):
    """A task that no worker has taken yet.

    A poll of any of these task queues may take it; without task queues, any poll.
    """

    namespace_id: str
    type: TaskType
    task_queues: tuple[str, ...] = ()


class Work(NamedTuple):
    """The tasks in flight of one run or standalone activity."""

    workflow_tasks: int = 0
    activities: int = 0
    waiting: tuple[WaitingTask, ...] = ()


NO_WORK = Work()


def work_of(state: RunState, now_ns: int) -> Work:
    """The tasks in flight of a run, without activities that are paused or in a backoff.

    A paused run has no waiting tasks, because workers get none.
    """
    if not state.is_open:
        return NO_WORK
    namespace_id = state.identity.namespace_id
    waiting: list[WaitingTask] = []
    workflow_tasks = activities = 0
    task = state.workflow_task
    if task is not None and task.is_started:
        workflow_tasks = 1
    elif task is not None:
        # A sticky task goes to the normal task queue if the sticky worker is gone.
        queues = (task.task_queue, state.started.task_queue)
        waiting.append(WaitingTask(namespace_id, TaskType.WORKFLOW, queues))
    for event_id, progress in state.live.activities.items():
        activity = state.open_activity(event_id)
        if activity is None:
            continue
        if progress.is_started:
            activities += 1
        elif not progress.paused and progress.due_ns <= now_ns:
            waiting.append(WaitingTask(namespace_id, TaskType.ACTIVITY, (activity.task_queue,)))
    if any(_is_called(state, event_id) for event_id in state.nexus_operations):
        # The handler may be in another namespace.
        waiting.append(WaitingTask("", TaskType.NEXUS))
    return Work(workflow_tasks, activities, () if state.status == PAUSED else tuple(waiting))


def _is_called(state: RunState, event_id: int) -> bool:
    progress = state.live.nexus.get(event_id)
    return progress is not None and not progress.is_started and not progress.start.next_ns
