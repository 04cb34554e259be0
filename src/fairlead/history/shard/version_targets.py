"""The worker version to which the tasks of a run go."""

from temporalio.api.workflow.v1 import VersioningOverride

from fairlead.api.errors import FailedPrecondition
from fairlead.api.worker_deployments.registry import Deployments
from fairlead.api.worker_deployments.routing import list_of
from fairlead.api.worker_versions import Version, begins_ramping, pinned_by, pinned_version
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.history.state import PendingActivity, RunState


def workflow_list(state: RunState) -> TaskQueueId:
    """The task queue of a run's workflow tasks, without a worker version."""
    return TaskQueueId(state.identity.namespace_id, state.started.task_queue, TaskType.WORKFLOW)


def workflow_target(deployments: Deployments, state: RunState) -> Version | None:
    """The version to which the run's next workflow task goes; None for unversioned workers."""
    return _workflow_target(deployments, state, workflow_list(state))


def _workflow_target(deployments: Deployments, state: RunState, task_queue: TaskQueueId) -> Version | None:
    pinned = pinned_version(state)
    if pinned is not None:
        return pinned
    route = deployments.route(task_queue)
    if route is None:
        return None
    if route.has_ramping and begins_ramping(state):
        return route.ramping
    return route.target(state.identity.workflow_id)


def activity_target(deployments: Deployments, state: RunState, task_queue: TaskQueueId) -> Version | None:
    """The version to which an activity goes: the run's pinned version if it serves the task queue, or the route's."""
    pinned = pinned_version(state)
    if pinned is not None and deployments.has_task_queue(task_queue, pinned):
        return pinned
    return deployments.target(task_queue, state.identity.workflow_id)


def activity_list(state: RunState, activity: PendingActivity) -> TaskQueueId:
    """The task queue of an activity, without a worker version."""
    return TaskQueueId(state.identity.namespace_id, activity.task_queue, TaskType.ACTIVITY)


async def check_override(deployments: Deployments, namespace_id: str, name: str, override: VersioningOverride) -> None:
    """Reject an override that pins a workflow to a version which does not serve its task queue.

    Overrides in the oldest form, which is older than Worker Deployments, are not checked.
    """
    version = pinned_by(override)
    if version is None or (not override.HasField("pinned") and override.HasField("deployment")):
        return
    task_queue = TaskQueueId(namespace_id, name, TaskType.WORKFLOW)
    if not deployments.has_task_queue(task_queue, version):
        # Workers of the version may have begun to poll a moment ago.
        await deployments.read(namespace_id, version.deployment)
    if not deployments.has_task_queue(task_queue, version):
        raise FailedPrecondition(f"Pinned version '{version}' is not present in task queue '{name}' of type 'Workflow'")


def declined_target(deployments: Deployments, state: RunState) -> tuple[Version, int] | None:
    """The version to which a pinned run would go if it were not pinned, and the revision of the routing."""
    pinned = pinned_version(state)
    route = None if pinned is None else deployments.route(workflow_list(state))
    if route is None:
        return None
    target = route.target(state.identity.workflow_id)
    return (target, route.revision) if target is not None and target != pinned else None


def workflow_queue(deployments: Deployments, state: RunState) -> TaskQueueId:
    """The task queue, with its worker version, of the run's next workflow task."""
    return workflow_place(deployments, state)[0]


def workflow_place(deployments: Deployments, state: RunState) -> tuple[TaskQueueId, Version | None]:
    """The task queue of the run's next workflow task, and the worker version to which it goes."""
    task_queue = workflow_list(state)
    target = _workflow_target(deployments, state, task_queue)
    return list_of(task_queue, target), target
