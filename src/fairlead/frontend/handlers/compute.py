"""Compute configurations of worker versions: rejected, since this server has no compute providers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import temporalio.api.workflowservice.v1 as api

from fairlead.api.errors import ApiError, InvalidArgument, NotFound
from fairlead.frontend.validation.common import DEPLOYMENT_FIELD_BYTES_MAX, is_longer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message
    from temporalio.api.compute.v1 import ComputeConfigScalingGroup, ComputeConfigScalingGroupUpdate

    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call

NOTHING_TO_DO = (
    "No prior compute config found, which means nothing can be removed and something needs to be added to be valid"
)


async def update(
    frontend: Frontend, request: api.UpdateWorkerDeploymentVersionComputeConfigRequest, _: Call
) -> Message:
    """Reject every scaling group of a version that exists; removing one that was never added does nothing."""
    namespace = await frontend.namespaces.find(request.namespace)
    name, build_id = request.deployment_version.deployment_name, request.deployment_version.build_id
    if not name:
        raise InvalidArgument("deployment name cannot be empty")
    if not build_id:
        raise InvalidArgument("build ID cannot be empty")
    # A longer name or one with a zero byte can't have been stored.
    is_possible = not is_longer(name, DEPLOYMENT_FIELD_BYTES_MAX) and "\0" not in name
    deployment = await frontend.deployments.read(namespace.id, name) if is_possible else None
    if deployment is None or build_id not in deployment.versions:
        raise NotFound(f"build ID '{build_id}' not found in Worker Deployment '{name}'")
    check_scaling_groups(_groups(request.compute_config_scaling_groups))
    if not request.remove_compute_config_scaling_groups:
        raise InvalidArgument(NOTHING_TO_DO)
    return api.UpdateWorkerDeploymentVersionComputeConfigResponse()


async def validate(
    frontend: Frontend, request: api.ValidateWorkerDeploymentVersionComputeConfigRequest, _: Call
) -> Message:
    """Reject every change: nothing was added that could be removed, and no provider exists for additions."""
    await frontend.namespaces.find(request.namespace)
    check_scaling_groups(_groups(request.compute_config_scaling_groups))
    raise InvalidArgument(NOTHING_TO_DO)


def check_scaling_groups(groups: Mapping[str, ComputeConfigScalingGroup]) -> None:
    """Reject the first scaling group, if there is one: no compute provider is installed."""
    for name in sorted(groups):
        raise _no_provider(name, groups[name].provider.type)


def _groups(updates: Mapping[str, ComputeConfigScalingGroupUpdate]) -> dict[str, ComputeConfigScalingGroup]:
    return {name: update.scaling_group for name, update in updates.items()}


def _no_provider(group: str, provider: str) -> ApiError:
    if not provider:
        return InvalidArgument(f"entry {group}: invalid compute provider type ''")
    return InvalidArgument(f"{group}: Could not instantiate compute provider with type '{provider}'")


METHODS: dict[str, Handler] = {
    "UpdateWorkerDeploymentVersionComputeConfig": update,
    "ValidateWorkerDeploymentVersionComputeConfig": validate,
}
NOTES = {
    "UpdateWorkerDeploymentVersionComputeConfig": "Rejects every scaling group: there are no compute providers.",
    "ValidateWorkerDeploymentVersionComputeConfig": "Rejects every scaling group: there are no compute providers.",
}
