"""Worker versions, limited to the requests that both servers can answer."""

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
