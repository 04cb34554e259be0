"""Compute configurations of worker versions, in cases where the reference server fails or hangs."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import temporalio.api.workflowservice.v1 as api
from temporalio.api.compute.v1 import ComputeConfigScalingGroup, ComputeConfigScalingGroupUpdate, ComputeProvider
from temporalio.api.deployment.v1 import WorkerDeploymentVersion

from fairlead.frontend.handlers.compute import NOTHING_TO_DO
from tests.frontend.served import Serving, serving

NAMESPACE = "default"
THERE = WorkerDeploymentVersion(deployment_name="name", build_id="one")
GROUPS = {
    "group": ComputeConfigScalingGroupUpdate(
        scaling_group=ComputeConfigScalingGroup(provider=ComputeProvider(type="aws-lambda"))
    )
}
NO_PROVIDER = "group: Could not instantiate compute provider with type 'aws-lambda'"


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving() as server:
        await server.workflow.CreateWorkerDeployment(
            api.CreateWorkerDeploymentRequest(namespace=NAMESPACE, deployment_name="name")
        )
        await server.workflow.CreateWorkerDeploymentVersion(
            api.CreateWorkerDeploymentVersionRequest(namespace=NAMESPACE, deployment_version=THERE)
        )
        yield server


async def error_of(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code().name, raised.value.details() or ""


async def test_a_scaling_group_without_a_provider_is_refused(server: Serving) -> None:
    update = api.UpdateWorkerDeploymentVersionComputeConfigRequest(
        namespace=NAMESPACE, deployment_version=THERE, compute_config_scaling_groups=GROUPS
    )
    validate = api.ValidateWorkerDeploymentVersionComputeConfigRequest(
        namespace=NAMESPACE, deployment_version=THERE, compute_config_scaling_groups=GROUPS
    )
    for call in (
        server.workflow.UpdateWorkerDeploymentVersionComputeConfig(update),
        server.workflow.ValidateWorkerDeploymentVersionComputeConfig(validate),
    ):
        assert await error_of(call) == ("INVALID_ARGUMENT", NO_PROVIDER)


async def test_an_update_that_changes_nothing_is_refused(server: Serving) -> None:
    request = api.UpdateWorkerDeploymentVersionComputeConfigRequest(namespace=NAMESPACE, deployment_version=THERE)
    call = server.workflow.UpdateWorkerDeploymentVersionComputeConfig(request)
    assert await error_of(call) == ("INVALID_ARGUMENT", NOTHING_TO_DO)


@pytest.mark.parametrize("name", ["n" * 1001, "a\0b", "another"])
async def test_a_version_that_does_not_exist_is_not_found(server: Serving, name: str) -> None:
    request = api.UpdateWorkerDeploymentVersionComputeConfigRequest(
        namespace=NAMESPACE,
        deployment_version=WorkerDeploymentVersion(deployment_name=name, build_id="one"),
        compute_config_scaling_groups=GROUPS,
    )
    code, message = await error_of(server.workflow.UpdateWorkerDeploymentVersionComputeConfig(request))
    assert (code, message) == ("NOT_FOUND", f"build ID 'one' not found in Worker Deployment '{name}'")
