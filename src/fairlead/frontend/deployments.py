"""Worker deployments: versions of workers, and which of them new workflows go to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import temporalio.api.workflowservice.v1 as api
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.errordetails.v1 import PermissionDeniedFailure

from fairlead.core.partitions import TaskList, TaskType
from fairlead.frontend.checks import DEPLOYMENT_FIELD_BYTES_MAX, check_identity, is_longer
from fairlead.frontend.deployment_answers import latest, summary, version_details, worker_deployment
from fairlead.frontend.task_queues import shown_stats
from fairlead.history.deployments import list_of, steps
from fairlead.history.deployments.registry import DEPLOYMENTS_MAX, add_version
from fairlead.history.deployments.state import DRAINING, UNVERSIONED, Deployment, VersionState
from fairlead.history.pushing import PRIORITY_DEFAULT
from fairlead.history.refusals import Refused, already_exists, failed_precondition, invalid, not_found, refused
from fairlead.history.search.query import parse_query
from fairlead.history.state.versioning import Version
from fairlead.matching.messages import PriorityStats
from fairlead.rpc import Code

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from temporalio.api.deployment.v1 import WorkerDeploymentVersion

    from fairlead.frontend.context import Frontend, Handler
    from fairlead.history.namespaces import Namespace
    from fairlead.matching.operator_client import TaskListDescription
    from fairlead.rpc import Call

PAGE_DEPLOYMENTS_MAX = 100
METADATA_BYTES_MAX = 64 * 1024
# A version that new work no longer goes to is looked at no earlier, and no more often: rows of runs come a little late.
DRAINAGE_GRACE_NS = 180 * 1_000_000_000
_PERCENTAGE_MAX = 100.0


async def describe(frontend: Frontend, request: api.DescribeWorkerDeploymentRequest, _: Call) -> Message:
    """A deployment with all of its versions."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_field(request.deployment_name, "WorkerDeploymentName")
    deployment = await _drained(frontend, namespace, await _found(frontend, namespace, request.deployment_name))
    return api.DescribeWorkerDeploymentResponse(
        conflict_token=steps.token_of(deployment), worker_deployment_info=worker_deployment(deployment)
    )


async def describe_version(frontend: Frontend, request: api.DescribeWorkerDeploymentVersionRequest, _: Call) -> Message:
    """One version, with its task queues."""
    namespace = await frontend.namespaces.find(request.namespace)
    version = _version(request.deployment_version, request.version)
    deployment = await frontend.deployments.read(namespace.id, version.deployment)
    if deployment is None or version.build_id not in deployment.versions:
        raise not_found("Worker Deployment Version not found")
    deployment = await _drained(frontend, namespace, deployment)
    state = deployment.versions[version.build_id]
    answer = api.DescribeWorkerDeploymentVersionResponse(
        worker_deployment_version_info=version_details(deployment, state)
    )
    for name, task_type in state.task_queues:
        shown = answer.version_task_queues.add(name=name, type=TaskQueueType.ValueType(task_type))
        if request.report_task_queue_stats:
            _add_stats(shown, await _describe_list(frontend, namespace, version, name, task_type))
    return answer


async def list_all(frontend: Frontend, request: api.ListWorkerDeploymentsRequest, _: Call) -> Message:
    """A page of the deployments of a namespace, by name."""
    namespace = await frontend.namespaces.find(request.namespace)
    after = request.next_page_token.decode("utf-8", "replace")
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
        answer.next_page_token = found[size - 1].name.encode()
    return answer


async def create(frontend: Frontend, request: api.CreateWorkerDeploymentRequest, _: Call) -> Message:
    """Add a deployment before it has workers."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_name(request.deployment_name)
    known = len(await frontend.deployments.list(namespace.id))

    def step(present: Deployment | None) -> tuple[Deployment, bytes]:
        if present is not None:
            raise already_exists(f'Worker Deployment with name "{request.deployment_name}" already exists')
        if known >= DEPLOYMENTS_MAX:
            raise refused(Code.RESOURCE_EXHAUSTED, f"maximum number of Worker Deployments ({DEPLOYMENTS_MAX}) reached")
        made = Deployment(namespace.id, request.deployment_name, _now_ns(frontend), modifier=request.identity)
        return made, steps.token_of(made)

    token = await frontend.deployments.change(namespace.id, request.deployment_name, step)
    return api.CreateWorkerDeploymentResponse(conflict_token=token)


async def create_version(frontend: Frontend, request: api.CreateWorkerDeploymentVersionRequest, _: Call) -> Message:
    """Add a version before it has workers."""
    namespace = await frontend.namespaces.find(request.namespace)
    version = _version(request.deployment_version, "")

    def step(present: Deployment | None) -> tuple[Deployment, None]:
        deployment = _present(present, version.deployment)
        if version.build_id in deployment.versions:
            raise already_exists(f"Worker Deployment Version {version} already exists")
        add_version(deployment, version.build_id, _now_ns(frontend)).modifier = request.identity
        return deployment, None

    await frontend.deployments.change(namespace.id, version.deployment, step)
    return api.CreateWorkerDeploymentVersionResponse()


async def set_current(frontend: Frontend, request: api.SetWorkerDeploymentCurrentVersionRequest, _: Call) -> Message:
    """Have new work go to a version, or to workers without one."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_name(request.deployment_name)
    check_identity(frontend, request.identity)
    build_id = _build_id(request.deployment_name, request.build_id, request.version)
    idle = await _unused(frontend, namespace, request.deployment_name, build_id)

    def step(present: Deployment | None) -> tuple[Deployment, Message]:
        now_ns = _now_ns(frontend)
        if present is None and request.allow_no_pollers and build_id:
            present = Deployment(namespace.id, request.deployment_name, now_ns)
        deployment = _present(present, request.deployment_name)
        steps.check_manager(deployment, request.identity)
        steps.check_token(deployment, request.conflict_token)
        if build_id:
            steps.find_version(deployment, build_id, may_add=request.allow_no_pollers, now_ns=now_ns)
            missing = steps.missing_task_queues(deployment, build_id) - idle
            if missing and not request.ignore_missing_task_queues:
                raise steps.missing_refusal(deployment, build_id, "current")
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
    """Have a part of new work go to a version, or to workers without one; or to none."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_name(request.deployment_name)
    check_identity(frontend, request.identity)
    if not 0 <= request.percentage <= _PERCENTAGE_MAX:
        raise invalid("Percentage must be between 0 and 100 (inclusive)")
    build_id = _build_id(request.deployment_name, request.build_id, request.version)
    ramping = None if not build_id and not request.percentage else build_id
    idle = await _unused(frontend, namespace, request.deployment_name, build_id)

    def step(present: Deployment | None) -> tuple[Deployment, Message]:
        now_ns = _now_ns(frontend)
        if present is None and request.allow_no_pollers and build_id:
            present = Deployment(namespace.id, request.deployment_name, now_ns)
        deployment = _present(present, request.deployment_name)
        steps.check_manager(deployment, request.identity)
        steps.check_token(deployment, request.conflict_token)
        if build_id:
            steps.find_version(deployment, build_id, may_add=request.allow_no_pollers, now_ns=now_ns)
        previous, percentage = deployment.ramping, deployment.ramp_percentage
        missing = steps.missing_task_queues(deployment, build_id) - idle
        if missing and not request.ignore_missing_task_queues:
            raise steps.missing_refusal(deployment, build_id, "ramping")
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
    _check_name(request.deployment_name)

    def step(present: Deployment | None) -> tuple[Deployment | None, None]:
        if present is not None:
            steps.check_manager(present, request.identity)
            if present.versions:
                raise failed_precondition("deployment has versions, can't be deleted")
        return None, None

    await frontend.deployments.change(namespace.id, request.deployment_name, step)
    return api.DeleteWorkerDeploymentResponse()


async def delete_version(frontend: Frontend, request: api.DeleteWorkerDeploymentVersionRequest, _: Call) -> Message:
    """Delete a version that nobody needs."""
    namespace = await frontend.namespaces.find(request.namespace)
    version = _version(request.deployment_version, request.version)
    deployment = await frontend.deployments.read(namespace.id, version.deployment)
    if deployment is not None:
        await _drained(frontend, namespace, deployment)
    has_pollers = await _has_pollers(frontend, namespace, deployment, version)

    def step(present: Deployment | None) -> tuple[Deployment, None]:
        deployment = _present(present, version.deployment)
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
    """Change what users have noted with a version."""
    namespace = await frontend.namespaces.find(request.namespace)
    version = _version(request.deployment_version, request.version)
    if not request.upsert_entries and not request.remove_entries:
        raise invalid("At least one of remove_entries or upsert_entries must be provided")

    def step(present: Deployment | None) -> tuple[Deployment, Message]:
        deployment = _present(present, version.deployment)
        state = deployment.versions.get(version.build_id)
        if state is None:
            raise not_found("Worker Deployment Version not found")
        for key in request.remove_entries:
            state.metadata.pop(key, None)
        state.metadata.update({key: value.SerializeToString() for key, value in request.upsert_entries.items()})
        if sum(len(key) + len(value) for key, value in state.metadata.items()) > METADATA_BYTES_MAX:
            raise invalid(f"metadata of version {version} exceeds {METADATA_BYTES_MAX} bytes")
        state.modifier = request.identity
        answer = api.UpdateWorkerDeploymentVersionMetadataResponse()
        for key, value in state.metadata.items():
            answer.metadata.entries[key].CopyFrom(Payload.FromString(value))
        return deployment, answer

    return await frontend.deployments.change(namespace.id, version.deployment, step)


async def set_manager(frontend: Frontend, request: api.SetWorkerDeploymentManagerRequest, _: Call) -> Message:
    """Let nobody else change a deployment, or everybody again."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_name(request.deployment_name)
    chosen = request.WhichOneof("new_manager_identity")
    manager = request.manager_identity
    if chosen == "self":
        if not request.identity:
            raise invalid("Identity is required")
        manager = request.identity if request.self else ""

    def step(present: Deployment | None) -> tuple[Deployment, Message]:
        deployment = _present(present, request.deployment_name)
        steps.check_token(deployment, request.conflict_token)
        previous = deployment.manager
        if manager != previous:
            deployment.manager, deployment.modifier = manager, request.identity
            deployment.token += 1
        return deployment, api.SetWorkerDeploymentManagerResponse(
            conflict_token=steps.token_of(deployment), previous_manager_identity=previous
        )

    return await frontend.deployments.change(namespace.id, request.deployment_name, step)


# What was before deployments


def _disabled(generation: str) -> Handler:
    async def refuse(frontend: Frontend, request: api.GetWorkerVersioningRulesRequest, _: Call) -> Message:
        await frontend.namespaces.find(request.namespace)
        raise refused(
            Code.PERMISSION_DENIED,
            f"Worker versioning {generation}, deprecated) is disabled on this namespace.",
            PermissionDeniedFailure(),
        )

    return refuse


async def _no_longer(_: Frontend, __: object, ___: Call) -> Message:
    raise Refused(
        "Deployments are deprecated and no longer supported, use Worker Deployments instead", int(Code.UNIMPLEMENTED)
    )


# What they share


def _now_ns(frontend: Frontend) -> int:
    return int(frontend.clock() * 1e9)


def _check_name(name: str) -> None:
    if not name:
        raise invalid("deployment name cannot be empty")
    _check_field(name, "WorkerDeploymentName")


def _check_field(value: str, noun: str) -> None:
    if not value:
        raise invalid(f"{noun} cannot be empty")
    if is_longer(value, DEPLOYMENT_FIELD_BYTES_MAX):
        raise invalid(f"size of {noun} larger than the maximum allowed")
    if "\0" in value:
        # No store has such a name, and not every store can be asked for it.
        raise _no_deployment(value)


def _version(version: WorkerDeploymentVersion, old: str) -> Version:
    """The version that a request names, in the new or in the old form."""
    if version.deployment_name or version.build_id:
        _check_field(version.deployment_name, "WorkerDeploymentName")
        _check_field(version.build_id, "BuildID")
        return Version(version.deployment_name, version.build_id)
    deployment, _, build_id = old.partition(".")
    if not deployment or not build_id:
        raise invalid(f'invalid version string "{old}", expected format is "<deployment_name>.<build_id>"')
    _check_field(deployment, "WorkerDeploymentName")
    _check_field(build_id, "BuildID")
    return Version(deployment, build_id)


def _build_id(deployment_name: str, build_id: str, old: str) -> str:
    """The build id that a request names, in the new or in the old form; "" for workers without one."""
    if build_id or not old or old == steps.UNVERSIONED_NAME:
        if build_id:
            _check_field(build_id, "BuildID")
        return build_id or UNVERSIONED
    delimiter = next((character for character in old if character in ".:"), "")
    if not delimiter:
        raise invalid(f"invalid version string: expected delimiter ':' or '.' not found in version string {old}")
    deployment, _, build_id = old.partition(delimiter)
    if deployment != deployment_name:
        raise invalid(f"invalid version string '{old}' does not match deployment name '{deployment_name}'")
    _check_field(build_id, "BuildID")
    return build_id


def _present(deployment: Deployment | None, name: str) -> Deployment:
    if deployment is None:
        raise _no_deployment(name)
    return deployment


def _no_deployment(name: str) -> Refused:
    return not_found(f"no Worker Deployment found with name '{name}'; does your Worker Deployment have pollers?")


async def _found(frontend: Frontend, namespace: Namespace, name: str) -> Deployment:
    return _present(await frontend.deployments.read(namespace.id, name), name)


async def _drained(frontend: Frontend, namespace: Namespace, deployment: Deployment) -> Deployment:
    """The deployment, with what is known of versions that drain: looked at when somebody asks."""
    now_ns = _now_ns(frontend)
    due = [
        state
        for state in deployment.versions.values()
        if state.drainage == DRAINING and now_ns - state.drainage_checked_ns >= DRAINAGE_GRACE_NS
    ]
    if not due:
        return deployment
    drained = {state.build_id: not await _pinned_runs(frontend, namespace, deployment, state) for state in due}

    def step(present: Deployment | None) -> tuple[Deployment | None, None]:
        for build_id, is_drained in drained.items():
            state = present.versions.get(build_id) if present is not None else None
            if state is not None and state.drainage == DRAINING:
                steps.note_drainage(state, is_drained=is_drained, now_ns=now_ns)
        return present, None

    await frontend.deployments.change(namespace.id, deployment.name, step)
    return await _found(frontend, namespace, deployment.name)


async def _pinned_runs(frontend: Frontend, namespace: Namespace, deployment: Deployment, state: VersionState) -> int:
    version = f"{deployment.name}:{state.build_id}".replace("'", "''")
    query = (
        f"TemporalWorkerDeploymentVersion = '{version}' AND TemporalWorkflowVersioningBehavior = 'Pinned' "
        "AND ExecutionStatus = 'Running'"
    )
    groups = await frontend.store.count_visibility(namespace.id, parse_query(query, namespace.search_attributes).where)
    return sum(group.rows for group in groups)


async def _unused(frontend: Frontend, namespace: Namespace, name: str, build_id: str) -> set[tuple[str, int]]:
    """Those task queues that another version would not serve, and that have no tasks now."""
    deployment = await frontend.deployments.read(namespace.id, name)
    if deployment is None or build_id not in deployment.versions:
        return set()
    unused = set()
    current = Version(name, deployment.current)
    for place in steps.missing_task_queues(deployment, build_id):
        total = (await _describe_list(frontend, namespace, current, *place)).total()
        if not total.tasks and not total.adds_per_s:
            unused.add(place)
    return unused


async def _has_pollers(
    frontend: Frontend, namespace: Namespace, deployment: Deployment | None, version: Version
) -> bool:
    state = None if deployment is None else deployment.versions.get(version.build_id)
    for place in () if state is None else state.task_queues:
        described = await _describe_list(frontend, namespace, version, *place)
        if any(partition.pollers for partition in described.partitions.values()):
            return True
    return False


async def _describe_list(
    frontend: Frontend, namespace: Namespace, version: Version, name: str, task_type: int
) -> TaskListDescription:
    task_list = TaskList(namespace.id, name, TaskType(task_type))
    return await frontend.operator.describe(list_of(task_list, version))


def _add_stats(
    shown: api.DescribeWorkerDeploymentVersionResponse.VersionTaskQueue, described: TaskListDescription
) -> None:
    shown.stats.CopyFrom(shown_stats(described.total()))
    for one in described.by_priority() or [PriorityStats(PRIORITY_DEFAULT, 0, 0.0, 0.0, 0.0)]:
        shown.stats_by_priority_key[one.priority].CopyFrom(shown_stats(one))


NOTES = {
    "DescribeWorkerDeploymentVersion": "Nexus task queues of a version are not told.",
    "SetWorkerDeploymentCurrentVersion": (
        "Other hosts of a cluster go by it within two seconds. Activities of workflows that move to the version do not "
        "wait for the first workflow task there, and Nexus tasks go to workers of any version."
    ),
}
DIFFERENCES = (
    "Which workflows go to the ramping version is decided by another hash of the workflow id than Temporal's.",
    "Whether a version has drained is looked at when somebody asks for it, three minutes after the last time.",
    (
        "Limits that UpdateTaskQueueConfig sets hold for what waits for workers without a version; those of each "
        "version have none but their own."
    ),
    "One-time versioning overrides are kept and shown, and not acted upon.",
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
