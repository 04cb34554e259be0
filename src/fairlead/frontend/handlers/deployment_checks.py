"""Checks of requests about worker deployments, and of versions before they are stopped or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import temporalio.api.workflowservice.v1 as api

from fairlead.api.errors import ApiError, InvalidArgument, NotFound
from fairlead.api.search.query import parse_query
from fairlead.api.times import SECOND_NS
from fairlead.api.worker_deployments import list_of, steps
from fairlead.api.worker_deployments.state import DRAINING, UNVERSIONED, Deployment, VersionState
from fairlead.api.worker_versions import Version, partition_version
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.frontend.handlers.task_queues import shown_stats
from fairlead.frontend.validation.common import DEPLOYMENT_FIELD_BYTES_MAX, is_longer
from fairlead.matching.messages import PriorityStats
from fairlead.matching.partition.task_validation import PRIORITY_DEFAULT

if TYPE_CHECKING:
    from temporalio.api.deployment.v1 import WorkerDeploymentVersion

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend
    from fairlead.matching.operator_client import TaskQueueDescription


METADATA_BYTES_MAX = 64 * 1024
_PAGE_TOKEN = b"deployment:"
# Minimum nanoseconds before the first and between later drainage checks of a version: visibility rows of runs may be
# late.
DRAINAGE_GRACE_NS = 180 * SECOND_NS


def wall_ns(frontend: Frontend) -> int:
    """The frontend's time, in nanoseconds since 1970."""
    return int(frontend.clock() * SECOND_NS)


def check_deployment_name(name: str) -> None:
    """Raise if the name of a deployment is empty or too long."""
    if not name:
        raise InvalidArgument("deployment name cannot be empty")
    check_field(name, "WorkerDeploymentName")


def check_field(value: str, noun: str) -> None:
    """Raise if a name or build id is empty or too long."""
    if not value:
        raise InvalidArgument(f"{noun} cannot be empty")
    if is_longer(value, DEPLOYMENT_FIELD_BYTES_MAX):
        raise InvalidArgument(f"size of {noun} larger than the maximum allowed")
    if "\0" in value:
        # No store has such a name, and PostgreSQL can't look it up.
        raise no_deployment(value)


def version_asked(version: WorkerDeploymentVersion, old: str) -> Version:
    """The version in a request, in the new or the deprecated form."""
    if version.deployment_name or version.build_id:
        check_field(version.deployment_name, "WorkerDeploymentName")
        check_field(version.build_id, "BuildID")
        return Version(version.deployment_name, version.build_id)
    deployment, _, build_id = partition_version(old)
    if not deployment or not build_id:
        raise InvalidArgument(f'invalid version string "{old}", expected format is "<deployment_name>.<build_id>"')
    check_field(deployment, "WorkerDeploymentName")
    check_field(build_id, "BuildID")
    return Version(deployment, build_id)


def build_id_asked(deployment_name: str, build_id: str, old: str) -> str:
    """The build id in a request, in the new or the deprecated form; "" for unversioned workers."""
    if build_id or not old or old == steps.UNVERSIONED_NAME:
        if build_id:
            check_field(build_id, "BuildID")
        return build_id or UNVERSIONED
    deployment, delimiter, build_id = partition_version(old)
    if not delimiter:
        raise InvalidArgument(
            f"invalid version string: expected delimiter ':' or '.' not found in version string {old}"
        )
    for noun, value in (("deployment name", deployment), ("build id", build_id)):
        if not value:
            raise InvalidArgument(f"invalid version string: {noun} is empty in version string {old}")
    if deployment != deployment_name:
        raise InvalidArgument(f"invalid version string '{old}' does not match deployment name '{deployment_name}'")
    check_field(build_id, "BuildID")
    return build_id


def page_token(last: Deployment) -> bytes:
    """The token of the page after this deployment."""
    return _PAGE_TOKEN + last.name.encode()


def last_name(token: bytes) -> str:
    """The name of the last deployment of the page before; empty without a token."""
    if token and not token.startswith(_PAGE_TOKEN):
        raise InvalidArgument("Invalid NextPageToken.")
    return token.removeprefix(_PAGE_TOKEN).decode("utf-8", "replace")


def existing(deployment: Deployment | None, name: str) -> Deployment:
    """The deployment; raise NOT_FOUND if there is none."""
    if deployment is None:
        raise no_deployment(name)
    return deployment


def no_deployment(name: str) -> ApiError:
    """The error for an unknown deployment."""
    return NotFound(f"no Worker Deployment found with name '{name}'; does your Worker Deployment have pollers?")


async def found_deployment(frontend: Frontend, namespace: Namespace, name: str) -> Deployment:
    """Read a deployment; raise NOT_FOUND if there is none."""
    return existing(await frontend.deployments.read(namespace.id, name), name)


async def drained(frontend: Frontend, namespace: Namespace, deployment: Deployment) -> Deployment:
    """Make the due drainage checks of a deployment's versions, and return the deployment. No timer makes them."""
    now_ns = wall_ns(frontend)
    due = [
        state
        for state in deployment.versions.values()
        if state.drainage == DRAINING and now_ns - state.drainage_checked_ns >= DRAINAGE_GRACE_NS
    ]
    if not due:
        return deployment
    drained = {state.build_id: not await pinned_runs(frontend, namespace, deployment, state) for state in due}

    def step(present: Deployment | None) -> tuple[Deployment | None, None]:
        for build_id, is_drained in drained.items():
            state = present.versions.get(build_id) if present is not None else None
            if state is not None and state.drainage == DRAINING:
                steps.note_drainage(state, is_drained=is_drained, now_ns=now_ns)
        return present, None

    await frontend.deployments.change(namespace.id, deployment.name, step)
    return await found_deployment(frontend, namespace, deployment.name)


async def pinned_runs(frontend: Frontend, namespace: Namespace, deployment: Deployment, state: VersionState) -> int:
    """Number of open runs that are pinned to the version."""
    version = f"{deployment.name}:{state.build_id}".replace("'", "''")
    query = (
        f"TemporalWorkerDeploymentVersion = '{version}' AND TemporalWorkflowVersioningBehavior = 'Pinned' "
        "AND ExecutionStatus = 'Running'"
    )
    groups = await frontend.store.count_visibility(namespace.id, parse_query(query, namespace.search_attributes).where)
    return sum(group.rows for group in groups)


async def unused_task_queues(
    frontend: Frontend, namespace: Namespace, name: str, build_id: str
) -> set[tuple[str, int]]:
    """The task queues that another version would not serve and that have no tasks now."""
    deployment = await frontend.deployments.read(namespace.id, name)
    if deployment is None or build_id not in deployment.versions:
        return set()
    unused = set()
    current = Version(name, deployment.current)
    for queue_key in steps.missing_task_queues(deployment, build_id):
        total = (await describe_queue(frontend, namespace, current, *queue_key)).total()
        if not total.tasks and not total.adds_per_s:
            unused.add(queue_key)
    return unused


async def version_has_pollers(
    frontend: Frontend, namespace: Namespace, deployment: Deployment | None, version: Version
) -> bool:
    """Whether workers have polled the version's task queues recently."""
    state = None if deployment is None else deployment.versions.get(version.build_id)
    for queue_key in () if state is None else state.task_queues:
        described = await describe_queue(frontend, namespace, version, *queue_key)
        if any(partition.pollers for partition in described.partitions.values()):
            return True
    return False


async def describe_queue(
    frontend: Frontend, namespace: Namespace, version: Version, name: str, task_type: int
) -> TaskQueueDescription:
    """Describe the version's part of a task queue."""
    task_queue = TaskQueueId(namespace.id, name, TaskType(task_type))
    return await frontend.operator.describe(list_of(task_queue, version))


def add_stats(
    shown: api.DescribeWorkerDeploymentVersionResponse.VersionTaskQueue, described: TaskQueueDescription
) -> None:
    """Add the statistics of a task queue, in total and by priority."""
    shown.stats.CopyFrom(shown_stats(described.total()))
    for one in described.by_priority() or [PriorityStats(PRIORITY_DEFAULT, 0, 0.0, 0.0, 0.0)]:
        shown.stats_by_priority_key[one.priority].CopyFrom(shown_stats(one))
