"""Descriptions of task queues by worker version."""

from typing import Any

from temporalio.api.enums.v1 import DescribeTaskQueueMode, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue, TaskQueueVersionSelection
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from tests.sdk.programs.ramping import ContinuesPinned, Deployment
from tests.sdk.stage import NAMESPACE, Handle, Stage, program

_WORKFLOW = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
_TASKS = 3


async def _described(stage: Stage, *build_ids: str, unversioned: bool = False) -> dict[str, Any]:
    """The pollers of each version, and whether it has a backlog."""
    response = await stage.service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=NAMESPACE,
            task_queue=TaskQueue(name=stage.name),
            api_mode=DescribeTaskQueueMode.DESCRIBE_TASK_QUEUE_MODE_ENHANCED,
            versions=TaskQueueVersionSelection(build_ids=build_ids, unversioned=unversioned),
            task_queue_types=[_WORKFLOW],
            report_stats=True,
            report_pollers=True,
        )
    )
    found = {}
    for build_id, version in response.versions_info.items():
        info = version.types_info[_WORKFLOW]
        pollers = sorted({poller.identity for poller in info.pollers})
        # The reference's backlog count is approximate.
        found[build_id] = {"has tasks": info.stats.approximate_backlog_count > 0, "pollers": pollers}
    return found


@program
async def task_queue_by_version(stage: Stage) -> None:
    deployment = Deployment(stage)
    one, two = f"{deployment.name}:one", f"{deployment.name}:two"

    async def both_poll() -> bool:
        return all(version["pollers"] for version in (await _described(stage, one, two)).values())

    async with deployment.workers("one", "two"):
        await deployment.route(current="one")
        await stage.until_true(both_poll, "pollers of both versions")
    handles: list[Handle] = [
        await stage.client.start_workflow(
            ContinuesPinned.run, args=[0, []], id=stage.id(f"{number}"), task_queue=stage.name
        )
        for number in range(_TASKS)
    ]

    async def has_tasks() -> bool:
        return bool((await _described(stage, one))[one]["has tasks"])

    await stage.until_true(has_tasks, "waiting tasks of version one")
    stage.note("versions", await _described(stage, one, two))
    stage.note("others", await _described(stage, "one", "unknown", unversioned=True))
    for handle in handles:
        await handle.terminate()
