"""Versions of workers named in the deprecated form, and workflows found by their versioning override."""

from typing import Any

import temporalio.api.workflowservice.v1 as api
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.common.v1 import WorkflowType
from temporalio.api.enums.v1 import VersioningBehavior
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import VersioningOverride, WorkflowExecutionOptions

from tests.sdk.stage import NAMESPACE, NO_ONE, Stage, execution, program

_BUILDS = ("1.0", "x:y", "x:1.2")
# Left out are versions whose only delimiter is ":": the reference finds no build id in them.
_NAMES = ("{}.1.0", "{}:1.0", "{}.x:y", "{}.x:1.2", "{}:x:1.2", "{}.absent", ":1.0", ".1", "{}.", "{}:", "{}", "")


@program
async def versions_in_the_deprecated_form(stage: Stage) -> None:
    """The first "." or ":" ends the deployment's name, so a build id may contain both."""
    deployment, service = stage.name.replace("~", "-"), stage.service
    for build_id in _BUILDS:
        await service.set_worker_deployment_current_version(
            api.SetWorkerDeploymentCurrentVersionRequest(
                namespace=NAMESPACE, deployment_name=deployment, build_id=build_id, allow_no_pollers=True
            )
        )
    for form in _NAMES:
        version = form.format(deployment)
        stage.note(f"described {form}", await stage.outcome(_described(stage, version)))
        start = api.StartWorkflowExecutionRequest(
            namespace=NAMESPACE,
            workflow_id=stage.id(f"of-{form}"),
            workflow_type=WorkflowType(name="Any"),
            task_queue=TaskQueue(name=NO_ONE),
            request_id=form,
            versioning_override=VersioningOverride(
                behavior=VersioningBehavior.VERSIONING_BEHAVIOR_PINNED, pinned_version=version
            ),
        )
        stage.note(f"pinned {form}", await stage.outcome(service.start_workflow_execution(start)))
        if ":" in form.partition(".")[0]:
            # The reference finds such a version, but can't make it current.
            continue
        change = api.SetWorkerDeploymentCurrentVersionRequest(
            namespace=NAMESPACE, deployment_name=deployment, version=version, ignore_missing_task_queues=True
        )
        stage.note(f"current {form}", await stage.outcome(_changed(stage, change)))


async def _described(stage: Stage, version: str) -> Any:
    request = api.DescribeWorkerDeploymentVersionRequest(namespace=NAMESPACE, version=version)
    info = (await stage.service.describe_worker_deployment_version(request)).worker_deployment_version_info
    # The reference leaves out the times of activation, and the drainage of a version that is not draining.
    return [info.version, info.deployment_version, info.drainage_info.status, info.status]


async def _changed(stage: Stage, request: api.SetWorkerDeploymentCurrentVersionRequest) -> Any:
    await stage.service.set_worker_deployment_current_version(request)
    return "ok"


@program
async def drainage_of_a_current_version(stage: Stage) -> None:
    deployment = stage.name.replace("~", "-")
    for build_id in ("1", "2"):
        await stage.service.set_worker_deployment_current_version(
            api.SetWorkerDeploymentCurrentVersionRequest(
                namespace=NAMESPACE, deployment_name=deployment, build_id=build_id, allow_no_pollers=True
            )
        )
    request = api.DescribeWorkerDeploymentVersionRequest(namespace=NAMESPACE, version=f"{deployment}.2")
    info = (await stage.service.describe_worker_deployment_version(request)).worker_deployment_version_info
    stage.note("has a drainage", info.HasField("drainage_info"))


@program
async def workflow_found_by_its_versioning_override(stage: Stage) -> None:
    """The override is found before a worker has completed a workflow task."""
    handle = await stage.start("Any", queue=NO_ONE)
    query = f"WorkflowId = '{stage.id()}' AND TemporalWorkflowVersioningBehavior = 'AutoUpgrade'"

    await stage.service.update_workflow_execution_options(
        api.UpdateWorkflowExecutionOptionsRequest(
            namespace=NAMESPACE,
            workflow_execution=execution(stage.id()),
            workflow_execution_options=WorkflowExecutionOptions(
                versioning_override=VersioningOverride(auto_upgrade=True)
            ),
            update_mask=FieldMask(paths=["versioning_override"]),
        )
    )

    async def is_found() -> bool:
        return (await stage.client.count_workflows(query)).count == 1

    await stage.until_true(is_found, query)
    await handle.terminate()
