"""Worker versions, limited to the requests that both servers can answer."""

from collections.abc import Awaitable
from typing import Any

import temporalio.api.workflowservice.v1 as api
from temporalio.api.compute.v1 import (
    ComputeConfig,
    ComputeConfigScalingGroup,
    ComputeConfigScalingGroupUpdate,
    ComputeProvider,
)
from temporalio.api.deployment.v1 import WorkerDeploymentVersion

from tests.sdk.stage import NAMESPACE, Stage, program


@program
async def compute_configuration_is_refused(stage: Stage) -> None:
    """Leaves out updates that add a scaling group to a version: there the reference fails or hangs."""
    deployment, service = stage.name.replace("~", "-"), stage.service
    await service.create_worker_deployment(
        api.CreateWorkerDeploymentRequest(namespace=NAMESPACE, deployment_name=deployment, request_id="1")
    )
    there = WorkerDeploymentVersion(deployment_name=deployment, build_id="one")
    await service.create_worker_deployment_version(
        api.CreateWorkerDeploymentVersionRequest(namespace=NAMESPACE, deployment_version=there, request_id="2")
    )
    for provider in ("", "aws-lambda"):
        group = ComputeConfigScalingGroup(provider=ComputeProvider(type=provider))
        request = api.CreateWorkerDeploymentVersionRequest(
            namespace=NAMESPACE,
            deployment_version=WorkerDeploymentVersion(deployment_name=deployment, build_id="two"),
            request_id="3",
            compute_config=ComputeConfig(scaling_groups={"group": group}),
        )
        stage.note(f"created with '{provider}'", await stage.outcome(service.create_worker_deployment_version(request)))
    update, validate = (
        service.update_worker_deployment_version_compute_config,
        service.validate_worker_deployment_version_compute_config,
    )
    updates = {
        "no name": api.UpdateWorkerDeploymentVersionComputeConfigRequest(namespace=NAMESPACE),
        "no build id": api.UpdateWorkerDeploymentVersionComputeConfigRequest(
            namespace=NAMESPACE, deployment_version=WorkerDeploymentVersion(deployment_name=deployment)
        ),
        "absent": api.UpdateWorkerDeploymentVersionComputeConfigRequest(
            namespace=NAMESPACE,
            deployment_version=WorkerDeploymentVersion(deployment_name=deployment, build_id="three"),
            compute_config_scaling_groups={"group": ComputeConfigScalingGroupUpdate()},
        ),
        "removed": api.UpdateWorkerDeploymentVersionComputeConfigRequest(
            namespace=NAMESPACE, deployment_version=there, remove_compute_config_scaling_groups=["group"]
        ),
    }
    for label, asked in updates.items():
        stage.note(label, await stage.outcome(update(asked)))
    for removed in ((), ("group",)):
        question = api.ValidateWorkerDeploymentVersionComputeConfigRequest(
            namespace=NAMESPACE, deployment_version=there, remove_compute_config_scaling_groups=removed
        )
        stage.note(f"validated, {len(removed)} removed", await stage.outcome(validate(question)))


@program
async def repeated_creation(stage: Stage) -> None:
    """A request whose response was lost is sent again with its request id."""
    deployment, service = stage.name.replace("~", "-"), stage.service
    version = WorkerDeploymentVersion(deployment_name=deployment, build_id="one")
    for request_id in ("1", "1", "2", ""):
        created = service.create_worker_deployment(
            api.CreateWorkerDeploymentRequest(
                namespace=NAMESPACE, deployment_name=deployment, identity="me", request_id=request_id
            )
        )
        stage.note(f"deployment by {request_id}", await stage.outcome(_done(created)))
    for request_id in ("3", "3", "4", ""):
        created_version = service.create_worker_deployment_version(
            api.CreateWorkerDeploymentVersionRequest(
                namespace=NAMESPACE, deployment_version=version, identity="me", request_id=request_id
            )
        )
        stage.note(f"version by {request_id}", await stage.outcome(_done(created_version)))


async def _done(call: Awaitable[Any]) -> str:
    # Responses have conflict tokens, which differ.
    await call
    return "done"


@program
async def deployments_without_a_name(stage: Stage) -> None:
    service = stage.service
    calls = {
        "version described": service.describe_worker_deployment_version(
            api.DescribeWorkerDeploymentVersionRequest(namespace=NAMESPACE)
        ),
        "version created": service.create_worker_deployment_version(
            api.CreateWorkerDeploymentVersionRequest(namespace=NAMESPACE)
        ),
        "version deleted": service.delete_worker_deployment_version(
            api.DeleteWorkerDeploymentVersionRequest(namespace=NAMESPACE)
        ),
        "deployment deleted": service.delete_worker_deployment(api.DeleteWorkerDeploymentRequest(namespace=NAMESPACE)),
        "manager set by": service.set_worker_deployment_manager(
            api.SetWorkerDeploymentManagerRequest(namespace=NAMESPACE, identity="me", manager_identity="you")
        ),
        "manager": service.set_worker_deployment_manager(api.SetWorkerDeploymentManagerRequest(namespace=NAMESPACE)),
    }
    for label, call in calls.items():
        stage.note(label, await stage.outcome(call))
