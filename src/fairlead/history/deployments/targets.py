"""To which version the tasks of a run go."""

from temporalio.api.workflow.v1 import VersioningOverride

from fairlead.core.partitions import TaskList, TaskType
from fairlead.history.deployments.registry import Deployments
from fairlead.history.deployments.routing import list_of
from fairlead.history.refusals import failed_precondition
from fairlead.history.state import PendingActivity, RunState
from fairlead.history.state.versioning import Version, pinned_by, pinned_version


def workflow_list(state: RunState) -> TaskList:
    """The task list of a run's workflow tasks, as its users know it."""
    return TaskList(state.identity.namespace_id, state.started.task_queue, TaskType.WORKFLOW)


def workflow_target(deployments: Deployments, state: RunState) -> Version | None:
    """The version that the run's next workflow task goes to; None for workers without one."""
    return pinned_version(state) or deployments.target(workflow_list(state), state.identity.workflow_id)


def activity_target(deployments: Deployments, state: RunState, task_list: TaskList) -> Version | None:
    """The version that an activity goes to: that of a pinned run, if its workers have the task list."""
    pinned = pinned_version(state)
    if pinned is not None and deployments.has_task_queue(task_list, pinned):
        return pinned
    return deployments.target(task_list, state.identity.workflow_id)


def activity_list(state: RunState, activity: PendingActivity) -> TaskList:
    """The task list of an activity, as its users know it."""
    return TaskList(state.identity.namespace_id, activity.task_queue, TaskType.ACTIVITY)


async def check_override(
    deployments: Deployments, namespace_id: str, task_queue: str, override: VersioningOverride
) -> None:
    """Refuse to pin a workflow to a version that does not serve its task queue."""
    version = pinned_by(override)
    if version is None:
        return
    task_list = TaskList(namespace_id, task_queue, TaskType.WORKFLOW)
    if not deployments.has_task_queue(task_list, version):
        # Its workers may have come a moment ago.
        await deployments.read(namespace_id, version.deployment)
    if not deployments.has_task_queue(task_list, version):
        raise failed_precondition(
            f"Pinned version '{version}' is not present in task queue '{task_queue}' of type 'Workflow'"
        )


def declined_target(deployments: Deployments, state: RunState) -> tuple[Version, int] | None:
    """The version that a pinned run would go to if it were not pinned, and by which revision of the routing."""
    pinned = pinned_version(state)
    route = None if pinned is None else deployments.route(workflow_list(state))
    if route is None:
        return None
    target = route.target(state.identity.workflow_id)
    return (target, route.revision) if target is not None and target != pinned else None


def workflow_place(deployments: Deployments, state: RunState) -> TaskList:
    """Where the run's next workflow task waits."""
    return list_of(workflow_list(state), workflow_target(deployments, state))
