"""Runs that continue as new while a version of the workers is ramping."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio import workflow
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import RetryPolicy, WorkerVersionStamp, WorkflowType
from temporalio.api.deployment.v1 import Deployment as OldDeployment
from temporalio.api.deployment.v1 import WorkerDeploymentOptions
from temporalio.api.deployment.v1 import WorkerDeploymentVersion as VersionMessage
from temporalio.api.enums.v1 import CommandType, WorkerVersioningMode
from temporalio.api.enums.v1 import VersioningBehavior as VersioningBehaviorNumber
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import VersioningOverride, WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentVersionRequest,
    PollWorkflowTaskQueueRequest,
    RespondWorkflowTaskCompletedRequest,
    SetWorkerDeploymentCurrentVersionRequest,
    SetWorkerDeploymentRampingVersionRequest,
    StartWorkflowExecutionRequest,
    UpdateWorkflowExecutionOptionsRequest,
)
from temporalio.client import Client
from temporalio.common import (
    AutoUpgradeVersioningOverride,
    PinnedVersioningOverride,
    VersioningBehavior,
    WorkerDeploymentVersion,
)
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from tests.sdk.stage import NAMESPACE, NO_ONE, Handle, Stage, execution, program


def _build() -> str:
    version = workflow.info().get_current_deployment_version()
    return version.build_id if version else ""


class _Continues:
    """Continues as new after a signal, with a versioning behavior; returns the build of each run."""

    def __init__(self) -> None:
        self.may_go_on = False

    async def go_on(self, behavior: int, builds: list[str]) -> list[str]:
        builds = [*builds, _build()]
        if len(builds) == 1:
            await workflow.wait_condition(lambda: self.may_go_on)
            workflow.continue_as_new(
                args=[behavior, builds],
                initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior(behavior) if behavior else None,
            )
        return builds


@workflow.defn(versioning_behavior=VersioningBehavior.PINNED)
class ContinuesPinned(_Continues):
    @workflow.run
    async def run(self, behavior: int, builds: list[str]) -> list[str]:
        return await self.go_on(behavior, builds)

    @workflow.signal
    def go(self) -> None:
        self.may_go_on = True


@workflow.defn(versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class ContinuesUpgrading(_Continues):
    @workflow.run
    async def run(self, behavior: int, builds: list[str]) -> list[str]:
        return await self.go_on(behavior, builds)

    @workflow.signal
    def go(self) -> None:
        self.may_go_on = True


_UNVERSIONED: dict[str, dict[str, Any]] = {
    "no options": {},
    "empty options": {"deployment_options": WorkerDeploymentOptions()},
    "unversioned options": {
        "deployment_options": WorkerDeploymentOptions(
            worker_versioning_mode=WorkerVersioningMode.WORKER_VERSIONING_MODE_UNVERSIONED,
            deployment_name="a-deployment",
            build_id="one",
        )
    },
}


# In forms that a server accepts without a worker of the version. The last one is deprecated, and pins the run.
_OVERRIDES = {
    "new": VersioningOverride(auto_upgrade=True),
    "old": VersioningOverride(behavior=VersioningBehaviorNumber.VERSIONING_BEHAVIOR_AUTO_UPGRADE),
    "both": VersioningOverride(auto_upgrade=True, behavior=VersioningBehaviorNumber.VERSIONING_BEHAVIOR_AUTO_UPGRADE),
    "pinned": VersioningOverride(
        behavior=VersioningBehaviorNumber.VERSIONING_BEHAVIOR_PINNED,
        deployment=OldDeployment(series_name="a-deployment", build_id="one"),
    ),
}


class Deployment:
    """The workers of one deployment on one task queue."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.name = stage.name.replace("~", "-")
        self._service = stage.service

    @asynccontextmanager
    async def workers(self, *build_ids: str) -> AsyncIterator[None]:
        client = await Client.connect(self.stage.client.service_client.config.target_host, identity="another-client")
        async with AsyncExitStack() as stack:
            for build_id in build_ids:
                version = WorkerDeploymentVersion(self.name, build_id)
                await stack.enter_async_context(
                    Worker(
                        client,
                        task_queue=self.stage.name,
                        workflows=[ContinuesPinned, ContinuesUpgrading],
                        workflow_runner=UnsandboxedWorkflowRunner(),
                        identity=f"worker-{build_id}",
                        deployment_config=WorkerDeploymentConfig(version=version, use_worker_versioning=True),
                    )
                )
                await self.stage.until_true(partial(self._is_known, build_id), f"version {build_id}")
            yield

    async def _is_known(self, build_id: str) -> bool:
        version = VersionMessage(deployment_name=self.name, build_id=build_id)
        request = DescribeWorkerDeploymentVersionRequest(namespace=NAMESPACE, deployment_version=version)
        try:
            response = await self._service.describe_worker_deployment_version(request)
        except RPCError:
            return False
        return bool(response.version_task_queues)

    async def route(self, *, current: str, ramping: str = "", percentage: float = 0.0) -> None:
        await self._service.set_worker_deployment_current_version(
            SetWorkerDeploymentCurrentVersionRequest(
                namespace=NAMESPACE, deployment_name=self.name, build_id=current, ignore_missing_task_queues=True
            )
        )
        if ramping:
            await self._service.set_worker_deployment_ramping_version(
                SetWorkerDeploymentRampingVersionRequest(
                    namespace=NAMESPACE, deployment_name=self.name, build_id=ramping, percentage=percentage
                )
            )

    async def start(self, kind: Any, behavior: int, **options: Any) -> Handle:
        stage = self.stage
        handle: Handle = await stage.client.start_workflow(
            kind.run, args=[behavior, []], id=stage.id(f"{kind.__name__} {behavior}"), task_queue=stage.name, **options
        )
        stage.saw(handle.id, handle.result_run_id)
        return handle

    async def continued(self, handle: Handle) -> Any:
        """Let a run continue as new; returns the outcome of the chain."""
        await self.stage.idle(handle)
        await handle.signal("go")
        return await self.stage.outcome(handle.result())


async def _all(stage: Stage, deployment: Deployment, *kinds: Any, **options: Any) -> None:
    wanted = [(kind, behavior) for kind in kinds for behavior in workflow.ContinueAsNewVersioningBehavior]
    handles = [await deployment.start(kind, int(behavior), **options) for kind, behavior in wanted]
    ends = await asyncio.gather(*map(deployment.continued, handles))
    for (kind, behavior), end in zip(wanted, ends, strict=True):
        stage.note(f"{kind.__name__} {behavior.name}", end)


@program
async def continue_as_new_to_the_ramping_version(stage: Stage) -> None:
    deployment = Deployment(stage)
    async with deployment.workers("one", "two"):
        # At 0 percent only runs that ask for the ramping version go to it.
        await deployment.route(current="one", ramping="two", percentage=0.0)
        await _all(stage, deployment, ContinuesPinned, ContinuesUpgrading)


@program
async def continue_as_new_without_a_ramping_version(stage: Stage) -> None:
    deployment = Deployment(stage)
    async with deployment.workers("one"):
        await deployment.route(current="one")
        await _all(stage, deployment, ContinuesPinned)


@program
async def continue_as_new_of_pinned_runs(stage: Stage) -> None:
    deployment = Deployment(stage)
    pinned = PinnedVersioningOverride(WorkerDeploymentVersion(deployment.name, "one"))
    async with deployment.workers("one", "two"):
        await deployment.route(current="one", ramping="two", percentage=0.0)
        await _all(stage, deployment, ContinuesPinned, ContinuesUpgrading, versioning_override=pinned)


@program
async def continue_as_new_of_upgraded_runs(stage: Stage) -> None:
    deployment = Deployment(stage)
    async with deployment.workers("one", "two"):
        await deployment.route(current="one", ramping="two", percentage=0.0)
        upgraded = AutoUpgradeVersioningOverride()
        await _all(stage, deployment, ContinuesPinned, ContinuesUpgrading, versioning_override=upgraded)


@program
async def versioning_behavior_of_an_unversioned_worker(stage: Stage) -> None:
    handle: Handle = await stage.client.start_workflow("Any", id=stage.id(), task_queue=stage.name)
    stage.saw(handle.id, handle.result_run_id)
    task = await stage.service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace=NAMESPACE, task_queue=TaskQueue(name=stage.name), identity="raw")
    )
    for name, options in _UNVERSIONED.items():
        for behavior in (VersioningBehavior.PINNED, VersioningBehavior.AUTO_UPGRADE):
            request = RespondWorkflowTaskCompletedRequest(
                namespace=NAMESPACE, task_token=task.task_token, identity="raw", **options
            )
            request.versioning_behavior = VersioningBehaviorNumber.ValueType(int(behavior))
            outcome = await stage.outcome(stage.service.respond_workflow_task_completed(request))
            stage.note(f"{name}: {behavior.name}", outcome)
    await handle.terminate()


@program
async def versioning_overrides_in_every_form(stage: Stage) -> None:
    for name, override in _OVERRIDES.items():
        request = StartWorkflowExecutionRequest(
            namespace=NAMESPACE,
            workflow_id=stage.id(name),
            workflow_type=WorkflowType(name="Any"),
            task_queue=TaskQueue(name=NO_ONE),
            request_id=name,
            versioning_override=override,
        )
        started = await stage.service.start_workflow_execution(request)
        stage.saw(stage.id(name), started.run_id)
        handle = await stage.start("Any", suffix=f"{name} later", queue=NO_ONE)
        update = UpdateWorkflowExecutionOptionsRequest(
            namespace=NAMESPACE,
            workflow_execution=execution(handle.id),
            workflow_execution_options=WorkflowExecutionOptions(versioning_override=override),
            update_mask=FieldMask(paths=["versioning_override"]),
        )
        stage.note(name, await stage.outcome(stage.service.update_workflow_execution_options(update)))
        stage.note(f"{name} again", await stage.outcome(stage.service.update_workflow_execution_options(update)))
        for workflow_id in (stage.id(name), handle.id):
            info = (await stage.describe(workflow_id)).workflow_execution_info
            stage.note(f"{workflow_id} described", info.versioning_info)
            await stage.client.get_workflow_handle(workflow_id).terminate()


@program
async def versioning_override_of_a_retried_run(stage: Stage) -> None:
    request = StartWorkflowExecutionRequest(
        namespace=NAMESPACE,
        workflow_id=stage.id(),
        workflow_type=WorkflowType(name="Any"),
        task_queue=TaskQueue(name=stage.name),
        request_id="start",
        versioning_override=VersioningOverride(auto_upgrade=True),
        retry_policy=RetryPolicy(initial_interval=Duration(seconds=1)),
    )
    started = await stage.service.start_workflow_execution(request)
    stage.saw(stage.id(), started.run_id)
    task = await stage.service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace=NAMESPACE, task_queue=TaskQueue(name=stage.name), identity="raw")
    )
    failed = Command(command_type=CommandType.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION)
    failed.fail_workflow_execution_command_attributes.failure.message = "once"
    await stage.service.respond_workflow_task_completed(
        RespondWorkflowTaskCompletedRequest(
            namespace=NAMESPACE,
            task_token=task.task_token,
            identity="raw",
            commands=[failed],
            worker_version_stamp=WorkerVersionStamp(build_id="the-build"),
        )
    )
    await stage.saw_current()
    await stage.client.get_workflow_handle(stage.id()).terminate()
