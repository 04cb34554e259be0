"""Worker deployments in API responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio.api.common.v1 import Payload
from temporalio.api.deployment.v1 import (
    RoutingConfig,
    VersionDrainageInfo,
    WorkerDeploymentInfo,
    WorkerDeploymentVersionInfo,
)
from temporalio.api.enums.v1 import RoutingConfigUpdateState, TaskQueueType
from temporalio.api.enums.v1 import VersionDrainageStatus as Drainage

from fairlead.api.times import to_timestamp
from fairlead.api.worker_deployments.steps import dotted

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from fairlead.api.worker_deployments import Deployment, VersionState

    Summary = WorkerDeploymentInfo.WorkerDeploymentVersionSummary

# Time fields that a version's summary and details share: the API's name, and the name in `VersionState`.
_TIMES = {
    "create_time": "created_ns",
    "current_since_time": "current_since_ns",
    "ramping_since_time": "ramping_since_ns",
    "first_activation_time": "first_activated_ns",
    "last_current_time": "last_current_ns",
    "last_deactivation_time": "deactivated_ns",
}
_ROUTING_TIMES = {
    "current_version_changed_time": "current_changed_ns",
    "ramping_version_changed_time": "ramping_changed_ns",
    "ramping_version_percentage_changed_time": "percentage_changed_ns",
}


def worker_deployment(deployment: Deployment) -> WorkerDeploymentInfo:
    """A deployment with its versions, the newest first."""
    info = WorkerDeploymentInfo(
        name=deployment.name,
        create_time=to_timestamp(deployment.created_ns),
        routing_config=_routing(deployment),
        last_modifier_identity=deployment.modifier,
        manager_identity=deployment.manager,
        routing_config_update_state=(
            RoutingConfigUpdateState.ROUTING_CONFIG_UPDATE_STATE_IN_PROGRESS
            if deployment.moved
            else RoutingConfigUpdateState.ROUTING_CONFIG_UPDATE_STATE_COMPLETED
        ),
    )
    for state in sorted(deployment.versions.values(), key=lambda one: one.created_ns, reverse=True):
        info.version_summaries.append(summary(deployment, state))
    return info


def latest(deployment: Deployment) -> VersionState | None:
    """The newest version."""
    return max(deployment.versions.values(), key=lambda one: one.created_ns, default=None)


def summary(deployment: Deployment, state: VersionState) -> Summary:
    """The summary of a version."""
    shown = WorkerDeploymentInfo.WorkerDeploymentVersionSummary(
        version=dotted(deployment, state.build_id),
        status=state.status,
        drainage_status=Drainage.ValueType(state.drainage),
    )
    _name(shown, deployment, state)
    _add_times(shown, state, _TIMES)
    if state.routing_changed_ns:
        shown.routing_update_time.CopyFrom(to_timestamp(state.routing_changed_ns))
    if state.drainage_changed_ns:
        shown.drainage_info.CopyFrom(_drainage(state))
    return shown


def version_details(deployment: Deployment, state: VersionState) -> WorkerDeploymentVersionInfo:
    """All details of a version."""
    shown = WorkerDeploymentVersionInfo(
        version=dotted(deployment, state.build_id),
        status=state.status,
        ramp_percentage=deployment.ramp_percentage if state.ramping_since_ns else 0.0,
        last_modifier_identity=state.modifier,
    )
    _name(shown, deployment, state)
    _add_times(shown, state, _TIMES)
    if state.routing_changed_ns:
        shown.routing_changed_time.CopyFrom(to_timestamp(state.routing_changed_ns))
    for name, task_type in state.task_queues:
        shown.task_queue_infos.add(name=name, type=TaskQueueType.ValueType(task_type))
    if state.drainage:
        shown.drainage_info.CopyFrom(_drainage(state))
    for key, payload in state.metadata.items():
        shown.metadata.entries[key].CopyFrom(Payload.FromString(payload))
    return shown


def _routing(deployment: Deployment) -> RoutingConfig:
    config = RoutingConfig(
        current_version=dotted(deployment, deployment.current),
        ramping_version_percentage=deployment.ramp_percentage,
        revision_number=deployment.revision,
    )
    current = deployment.version(deployment.current)
    if current is not None:
        config.current_deployment_version.CopyFrom(current.message())
    if deployment.ramping is not None:
        config.ramping_version = dotted(deployment, deployment.ramping)
        ramping = deployment.version(deployment.ramping)
        if ramping is not None:
            config.ramping_deployment_version.CopyFrom(ramping.message())
    _add_times(config, deployment, _ROUTING_TIMES)
    return config


def _name(shown: Summary | WorkerDeploymentVersionInfo, deployment: Deployment, state: VersionState) -> None:
    shown.deployment_version.deployment_name = deployment.name
    shown.deployment_version.build_id = state.build_id


def _add_times(shown: Message, source: VersionState | Deployment, fields: dict[str, str]) -> None:
    for field, name in fields.items():
        time_ns = getattr(source, name)
        if time_ns:
            getattr(shown, field).CopyFrom(to_timestamp(time_ns))


def _drainage(state: VersionState) -> VersionDrainageInfo:
    return VersionDrainageInfo(
        status=Drainage.ValueType(state.drainage),
        last_changed_time=to_timestamp(state.drainage_changed_ns),
        last_checked_time=to_timestamp(state.drainage_checked_ns),
    )
