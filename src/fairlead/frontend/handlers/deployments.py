"""Handlers for worker deployments: versions of workers, and the routing of new workflows to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import temporalio.api.workflowservice.v1 as api
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.errordetails.v1 import PermissionDeniedFailure

from fairlead.api.error_details import packed
from fairlead.api.errors import (
    AlreadyExists,
    Exhausted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unimplemented,
)
from fairlead.api.worker_deployments import steps
from fairlead.api.worker_deployments.registry import DEPLOYMENTS_MAX, add_version
from fairlead.api.worker_deployments.state import Deployment
from fairlead.api.worker_versions import Version
from fairlead.frontend.handlers.compute import check_scaling_groups
from fairlead.frontend.handlers.deployment_checks import (
    METADATA_BYTES_MAX,
    add_stats,
    build_id_asked,
    check_deployment_name,
    check_field,
    describe_queue,
    drained,
    existing,
    found_deployment,
    last_name,
    page_token,
    unused_task_queues,
    version_asked,
    version_has_pollers,
    wall_ns,
)
from fairlead.frontend.handlers.deployment_responses import latest, summary, version_details, worker_deployment
from fairlead.frontend.validation.common import check_identity, check_length

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call

PAGE_DEPLOYMENTS_MAX = 100
_PERCENTAGE_MAX = 100.0


async def describe(frontend: Frontend, request: api.DescribeWorkerDeploymentRequest, _: Call) -> Message:
    """Describe a deployment with all of its versions."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_field(request.deployment_name, "WorkerDeploymentName")
    deployment = await drained(
        frontend, namespace, await found_deployment(frontend, namespace, request.deployment_name)
    )
    return api.DescribeWorkerDeploymentResponse(
        conflict_token=steps.token_of(deployment), worker_deployment_info=worker_deployment(deployment)
    )


async def describe_version(frontend: Frontend, request: api.DescribeWorkerDeploymentVersionRequest, _: Call) -> Message:
    """Describe a version with its task queues."""
    namespace = await frontend.namespaces.find(request.namespace)
    if not request.version and not request.HasField("deployment_version"):
        raise InvalidArgument("deployment version cannot be empty")
    version = version_asked(request.deployment_version, request.version)
    deployment = await frontend.deployments.read(namespace.id, version.deployment)
    if deployment is None or version.build_id not in deployment.versions:
        raise NotFound("Worker Deployment Version not found")
    deployment = await drained(frontend, namespace, deployment)
    state = deployment.versions[version.build_id]
    answer = api.DescribeWorkerDeploymentVersionResponse(
        worker_deployment_version_info=version_details(deployment, state)
    )
    for name, task_type in state.task_queues:
        shown = answer.version_task_queues.add(name=name, type=TaskQueueType.ValueType(task_type))
        if request.report_task_queue_stats:
            add_stats(shown, await describe_queue(frontend, namespace, version, name, task_type))
    return answer


async def list_all(frontend: Frontend, request: api.ListWorkerDeploymentsRequest, _: Call) -> Message:
    """List a page of the deployments of a namespace, ordered by name."""
    namespace = await frontend.namespaces.find(request.namespace)
    after = last_name(request.next_page_token)
    found = sorted(await frontend.deployments.list(namespace.id), key=lambda one: one.name)
    found = [one for one in found if one.name > after]
    size = request.page_size if 0 < request.page_size < PAGE_DEPLOYMENTS_MAX else PAGE_DEPLOYMENTS_MAX
    answer = api.ListWorkerDeploymentsResponse()
    for deployment in found[:size]:
        info = worker_deployment(deployment)
        shown = answer.worker_deployments.add(
            name=deployment.name, create_time=info.create_time, routing_config=info.routing_config
        )
        for field, state in (
            ("latest_version_summary", latest(deployment)),
            ("current_version_summary", deployment.versions.get(deployment.current)),
            ("ramping_version_summary", deployment.versions.get(deployment.ramping or "")),
        ):
            if state is not None:
                getattr(shown, field).CopyFrom(summary(deployment, state))
    if len(found) > size:
        answer.next_page_token = page_token(found[size - 1])
    return answer


async def create(frontend: Frontend, request: api.CreateWorkerDeploymentRequest, _: Call) -> Message:
    """Create a deployment before it has workers."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_deployment_name(request.deployment_name)
    check_length(frontend, request.request_id, "RequestId")
    known = len(await frontend.deployments.list(namespace.id))

    def step(present: Deployment | None) -> tuple[Deployment, bytes]:
        if present is not None:
            if request.request_id and request.request_id == present.request_id:
                return present, steps.token_of(present)
            raise AlreadyExists(f'Worker Deployment with name "{request.deployment_name}" already exists')
        if known >= DEPLOYMENTS_MAX:
            raise Exhausted(f"maximum number of Worker Deployments ({DEPLOYMENTS_MAX}) reached")
        made = Deployment(namespace.id, request.deployment_name, wall_ns(frontend), modifier=request.identity)
        made.request_id = request.request_id
        return made, steps.token_of(made)

    token = await frontend.deployments.change(namespace.id, request.deployment_name, step)
    return api.CreateWorkerDeploymentResponse(conflict_token=token)


async def create_version(frontend: Frontend, request: api.CreateWorkerDeploymentVersionRequest, _: Call) -> Message:
    """Create a version before it has workers."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_deployment_name(request.deployment_version.deployment_name)
    version = version_asked(request.deployment_version, "")
    check_scaling_groups(request.compute_config.scaling_groups)
    check_length(frontend, request.request_id, "RequestId")

    def step(present: Deployment | None) -> tuple[Deployment, None]:
        deployment = existing(present, version.deployment)
        known = deployment.versions.get(version.build_id)
        if known is not None:
            if request.request_id and request.request_id == known.request_id:
                return deployment, None
            raise AlreadyExists(f'Worker Deployment Version "{version.dotted}" already exists')
        made = add_version(deployment, version.build_id, wall_ns(frontend))
        made.modifier, made.request_id = request.identity, request.request_id
        return deployment, None

    await frontend.deployments.change(namespace.id, version.deployment, step)
    return api.CreateWorkerDeploymentVersionResponse()


async def set_current(frontend: Frontend, request: api.SetWorkerDeploymentCurrentVersionRequest, _: Call) -> Message:
    """Route new tasks to a version, or to unversioned workers."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_deployment_name(request.deployment_name)
    check_identity(frontend, request.identity)
    build_id = build_id_asked(request.deployment_name, request.build_id, request.version)
    idle = await unused_task_queues(frontend, namespace, request.deployment_name, build_id)

    def step(present: Deployment | None) -> tuple[Deployment, Message]:
        now_ns = wall_ns(frontend)
        if present is None and request.allow_no_pollers and build_id:
            present = Deployment(namespace.id, request.deployment_name, now_ns)
        deployment = existing(present, request.deployment_name)
        steps.check_manager(deployment, request.identity)
        steps.check_token(deployment, request.conflict_token)
        if build_id:
            steps.find_version(deployment, build_id, may_add=request.allow_no_pollers, now_ns=now_ns)
            missing = steps.missing_task_queues(deployment, build_id) - idle
            if missing and not request.ignore_missing_task_queues:
                raise steps.missing_task_queues_error(deployment, build_id, "current")
        previous = deployment.current
        steps.set_current(deployment, build_id, identity=request.identity, now_ns=now_ns)
        answer = api.SetWorkerDeploymentCurrentVersionResponse(
            conflict_token=steps.token_of(deployment), previous_version=steps.dotted(deployment, previous)
        )
        if previous:
            answer.previous_deployment_version.CopyFrom(Version(deployment.name, previous).message())
        return deployment, answer

    return await frontend.deployments.change(namespace.id, request.deployment_name, step)


async def set_ramping(frontend: Frontend, request: api.SetWorkerDeploymentRampingVersionRequest, _: Call) -> Message:
    """Route a percentage of new tasks to a version or to unversioned workers, or end the ramp."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_deployment_name(request.deployment_name)
    check_identity(frontend, request.identity)
    if not 0 <= request.percentage <= _PERCENTAGE_MAX:
        raise InvalidArgument("Percentage must be between 0 and 100 (inclusive)")
    build_id = build_id_asked(request.deployment_name, request.build_id, request.version)
    ramping = None if not build_id and not request.percentage else build_id
    idle = await unused_task_queues(frontend, namespace, request.deployment_name, build_id)

    def step(present: Deployment | None) -> tuple[Deployment, Message]:
        now_ns = wall_ns(frontend)
        if present is None and request.allow_no_pollers and build_id:
            present = Deployment(namespace.id, request.deployment_name, now_ns)
        deployment = existing(present, request.deployment_name)
        steps.check_manager(deployment, request.identity)
        steps.check_token(deployment, request.conflict_token)
        if build_id:
            steps.find_version(deployment, build_id, may_add=request.allow_no_pollers, now_ns=now_ns)
        previous, percentage = deployment.ramping, deployment.ramp_percentage
        missing = steps.missing_task_queues(deployment, build_id) - idle
        if missing and not request.ignore_missing_task_queues:
            raise steps.missing_task_queues_error(deployment, build_id, "ramping")
        steps.set_ramping(deployment, ramping, request.percentage, identity=request.identity, now_ns=now_ns)
        answer = api.SetWorkerDeploymentRampingVersionResponse(
            conflict_token=steps.token_of(deployment), previous_percentage=percentage
        )
        if previous is not None:
            answer.previous_version = steps.dotted(deployment, previous)
        if previous:
            answer.previous_deployment_version.CopyFrom(Version(deployment.name, previous).message())
        return deployment, answer

    return await frontend.deployments.change(namespace.id, request.deployment_name, step)


async def delete(frontend: Frontend, request: api.DeleteWorkerDeploymentRequest, _: Call) -> Message:
    """Delete a deployment that has no versions."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_field(request.deployment_name, "WorkerDeploymentName")

    def step(present: Deployment | None) -> tuple[Deployment | None, None]:
        if present is not None:
            steps.check_manager(present, request.identity)
            if present.versions:
                raise FailedPrecondition("deployment has versions, can't be deleted")
        return None, None

    await frontend.deployments.change(namespace.id, request.deployment_name, step)
    return api.DeleteWorkerDeploymentResponse()


async def delete_version(frontend: Frontend, request: api.DeleteWorkerDeploymentVersionRequest, _: Call) -> Message:
    """Delete a version that is not in use."""
    namespace = await frontend.namespaces.find(request.namespace)
    version = version_asked(request.deployment_version, request.version)
    deployment = await frontend.deployments.read(namespace.id, version.deployment)
    if deployment is not None:
        await drained(frontend, namespace, deployment)
    has_pollers = await version_has_pollers(frontend, namespace, deployment, version)

    def step(present: Deployment | None) -> tuple[Deployment, None]:
        deployment = existing(present, version.deployment)
        steps.check_manager(deployment, request.identity)
        state = deployment.versions.get(version.build_id)
        if state is not None:
            steps.check_deletable(deployment, state, skip_drainage=request.skip_drainage, has_pollers=has_pollers)
            del deployment.versions[version.build_id]
            deployment.modifier = request.identity
        return deployment, None

    await frontend.deployments.change(namespace.id, version.deployment, step)
    return api.DeleteWorkerDeploymentVersionResponse()


async def update_metadata(
    frontend: Frontend, request: api.UpdateWorkerDeploymentVersionMetadataRequest, _: Call
) -> Message:
    """Change the user's metadata of a version."""
    namespace = await frontend.namespaces.find(request.namespace)
    version = version_asked(request.deployment_version, request.version)
    if not request.upsert_entries and not request.remove_entries:
        raise InvalidArgument("At least one of remove_entries or upsert_entries must be provided")

    def step(present: Deployment | None) -> tuple[Deployment, Message]:
        deployment = existing(present, version.deployment)
        state = deployment.versions.get(version.build_id)
        if state is None:
            raise NotFound("Worker Deployment Version not found")
        for key in request.remove_entries:
            state.metadata.pop(key, None)
        state.metadata.update({key: value.SerializeToString() for key, value in request.upsert_entries.items()})
        if sum(len(key) + len(value) for key, value in state.metadata.items()) > METADATA_BYTES_MAX:
            raise InvalidArgument(f"metadata of version {version} exceeds {METADATA_BYTES_MAX} bytes")
        state.modifier = request.identity
        answer = api.UpdateWorkerDeploymentVersionMetadataResponse()
        for key, value in state.metadata.items():
            answer.metadata.entries[key].CopyFrom(Payload.FromString(value))
        return deployment, answer

    return await frontend.deployments.change(namespace.id, version.deployment, step)


async def set_manager(frontend: Frontend, request: api.SetWorkerDeploymentManagerRequest, _: Call) -> Message:
    """Set or clear the manager: only that identity may change the deployment."""
    namespace = await frontend.namespaces.find(request.namespace)
    if not request.identity:
        raise InvalidArgument("Identity is required")
    check_field(request.deployment_name, "WorkerDeploymentName")
    chosen = request.WhichOneof("new_manager_identity")
    manager = request.manager_identity
    if chosen == "self":
        manager = request.identity if request.self else ""

    def step(present: Deployment | None) -> tuple[Deployment, Message]:
        deployment = existing(present, request.deployment_name)
        steps.check_token(deployment, request.conflict_token)
        previous = deployment.manager
        if manager != previous:
            deployment.manager, deployment.modifier = manager, request.identity
            deployment.token += 1
        return deployment, api.SetWorkerDeploymentManagerResponse(
            conflict_token=steps.token_of(deployment), previous_manager_identity=previous
        )

    return await frontend.deployments.change(namespace.id, request.deployment_name, step)


# Versioning methods older than worker deployments


def _disabled(generation: str) -> Handler:
    async def reject(frontend: Frontend, request: api.GetWorkerVersioningRulesRequest, _: Call) -> Message:
        await frontend.namespaces.find(request.namespace)
        raise PermissionDenied(
            f"Worker versioning {generation}, deprecated) is disabled on this namespace.",
            packed(PermissionDeniedFailure()),
        )

    return reject


async def _no_longer(_: Frontend, __: object, ___: Call) -> Message:
    raise Unimplemented("Deployments are deprecated and no longer supported, use Worker Deployments instead")


# Shared helpers


NOTES = {
    "CreateWorkerDeploymentVersion": "No compute configuration: there are no compute providers.",
    "DescribeWorkerDeploymentVersion": "The response does not have the Nexus task queues of a version.",
    "SetWorkerDeploymentCurrentVersion": (
        "Other hosts of a cluster apply the change within two seconds. Activities of workflows that move to the "
        "version do not wait for the first workflow task there. Nexus tasks go to workers of any version."
    ),
}
DIFFERENCES = (
    "The hash of the workflow id that selects workflows for the ramping version differs from Temporal's.",
    "The drainage of a version is checked only on request, at most every three minutes.",
    (
        "Rate limits that UpdateTaskQueueConfig sets apply to tasks for workers without a version; the task "
        "queues of a version have only limits of their own."
    ),
    "One-time versioning overrides are stored and shown, but have no effect.",
    (
        "DescribeWorkerDeploymentVersion returns the times at which the version was activated, current and "
        "deactivated; Temporal's server returns them only in the summaries of DescribeWorkerDeployment."
    ),
    (
        "In the deprecated text form of a version, every method accepts a colon as the delimiter; Temporal's server "
        "accepts it in some methods only."
    ),
    (
        "The search attribute BuildIds is set when a worker completes a workflow task, or an override pins the "
        "workflow; Temporal's server also sets it when a versioning override is removed."
    ),
)
METHODS: dict[str, Handler] = {
    "DescribeWorkerDeployment": describe,
    "DescribeWorkerDeploymentVersion": describe_version,
    "ListWorkerDeployments": list_all,
    "CreateWorkerDeployment": create,
    "CreateWorkerDeploymentVersion": create_version,
    "SetWorkerDeploymentCurrentVersion": set_current,
    "SetWorkerDeploymentRampingVersion": set_ramping,
    "DeleteWorkerDeployment": delete,
    "DeleteWorkerDeploymentVersion": delete_version,
    "UpdateWorkerDeploymentVersionMetadata": update_metadata,
    "SetWorkerDeploymentManager": set_manager,
    "UpdateWorkerBuildIdCompatibility": _disabled("v0.1 (Version Set-based"),
    "GetWorkerBuildIdCompatibility": _disabled("v0.1 (Version Set-based"),
    "UpdateWorkerVersioningRules": _disabled("v0.2 (Rules-based"),
    "GetWorkerVersioningRules": _disabled("v0.2 (Rules-based"),
    "GetWorkerTaskReachability": _disabled("v0.2 (Rules-based"),
    "DescribeDeployment": _no_longer,
    "ListDeployments": _no_longer,
    "GetDeploymentReachability": _no_longer,
    "GetCurrentDeployment": _no_longer,
    "SetCurrentDeployment": _no_longer,
}
