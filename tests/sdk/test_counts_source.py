"""Workflows finish even if the source of the partition counts is switched while their tasks wait."""

import asyncio
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.cli.processes import RunningServer, run, server

QUEUE = "orders"
WORKFLOWS = 20
FROM_DATABASE = "matching.enableGetNumberOfPartitionsFromCache: [{value: true}]\n"
CONFIG = """
listen: 127.0.0.1:0
frontend: {listen: "127.0.0.1:0"}
store:
  sqlite: {file: fairlead.db}
dynamicConfig: {file: dynamic.yaml, pollInterval: 1s}
"""


def from_settings(partitions: int) -> str:
    return (
        "matching.enableGetNumberOfPartitionsFromCache: [{value: false}]\n"
        f"matching.numTasklistReadPartitions: [{{value: {partitions}}}]\n"
        f"matching.numTasklistWritePartitions: [{{value: {partitions}}}]\n"
    )


@workflow.defn
class Order:
    @workflow.run
    async def run(self) -> str:
        return "done"


async def _admin(address: str, verb: str, *options: str) -> Any:
    """Run `fairlead admin tasklist` for the workflow task queue; returns its JSON output."""
    done = await run(
        *("admin", "tasklist", verb, "--tasklist", QUEUE),
        *("--tasklisttype", "workflow", "-o", "json", *options),
        environment={"FAIRLEAD_ADDRESS": address},
    )
    assert done.code == 0, done.err
    return json.loads(done.out)


async def _client(started: RunningServer) -> Client:
    found = re.search(r"SDKs[^\d]*([\d.]+:\d+)", started.ready)
    assert found is not None, started.ready
    return await Client.connect(found[1])


async def _counts(address: str, read: int, write: int) -> None:
    """Wait until these counts are in force."""
    async with asyncio.timeout(60):
        while True:
            config = (await _admin(address, "describe"))["configuration"]
            if (config["read"], config["write"]) == (read, write):
                return


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [(from_settings(4), FROM_DATABASE, (4, 1)), (FROM_DATABASE, from_settings(1), (4, 1))],
    ids=["settings-to-database", "database-to-settings"],
)
async def test_all_workflows_finish_when_the_source_is_switched_to_fewer_partitions(
    tmp_path: Path, before: str, after: str, counts: tuple[int, int]
) -> None:
    """20 workflows wait in four partitions when the count drops to one; a past bug let only 5 of them finish."""
    (tmp_path / "server.yaml").write_text(CONFIG)
    dynamic = tmp_path / "dynamic.yaml"
    dynamic.write_text("{}\n")
    async with server("--config", str(tmp_path / "server.yaml")) as started:
        client = await _client(started)
        worker = Worker(client, task_queue=QUEUE, workflows=[Order], workflow_runner=UnsandboxedWorkflowRunner())
        async with worker:
            assert await client.execute_workflow(Order.run, id="first", task_queue=QUEUE) == "done"
        if before is FROM_DATABASE:
            await _admin(started.address, "update-partition", "--nrp", "4", "--nwp", "4")
        dynamic.write_text(before)
        await _counts(started.address, 4, 4)
        handles = [
            await client.start_workflow(Order.run, id=f"order-{number}", task_queue=QUEUE)
            for number in range(WORKFLOWS)
        ]
        dynamic.write_text(after)
        await _counts(started.address, *counts)
        described = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace="default",
                task_queue=TaskQueue(name=QUEUE),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
                report_stats=True,
            )
        )
        assert described.stats.approximate_backlog_count == WORKFLOWS
        worker = Worker(client, task_queue=QUEUE, workflows=[Order], workflow_runner=UnsandboxedWorkflowRunner())
        async with worker, asyncio.timeout(60):
            assert await asyncio.gather(*(handle.result() for handle in handles)) == ["done"] * WORKFLOWS
        await _counts(started.address, 1, 1)


async def test_all_workflows_finish_after_a_crash_with_a_lost_row_and_an_edited_file(tmp_path: Path) -> None:
    """The server is killed while 20 workflows wait in four partitions; then the counts are gone from both sources."""
    config = tmp_path / "server.yaml"
    config.write_text(CONFIG)
    dynamic = tmp_path / "dynamic.yaml"
    dynamic.write_text(from_settings(4))
    async with server("--config", str(config)) as started:
        client = await _client(started)
        for number in range(WORKFLOWS):
            await client.start_workflow(Order.run, id=f"order-{number}", task_queue=QUEUE)
        await _counts(started.address, 4, 4)
        started.process.kill()
        await started.process.wait()
    dynamic.write_text("{}\n")
    with sqlite3.connect(tmp_path / "fairlead.db") as database:
        assert database.execute("DELETE FROM queues WHERE name = ?", (QUEUE,)).rowcount == 1
    database.close()
    async with server("--config", str(config)) as started:
        described = await _admin(started.address, "describe")
        # History sends again the tasks whose rows it had not deleted before the kill: delivery is at least once.
        waiting, words = described["headline"].split(" ", 1)
        assert words.startswith("tasks wait")
        assert int(waiting) >= WORKFLOWS
        client = await _client(started)
        worker = Worker(client, task_queue=QUEUE, workflows=[Order], workflow_runner=UnsandboxedWorkflowRunner())
        async with worker, asyncio.timeout(60):
            handles = [client.get_workflow_handle(f"order-{number}") for number in range(WORKFLOWS)]
            assert await asyncio.gather(*(handle.result() for handle in handles)) == ["done"] * WORKFLOWS
        await _counts(started.address, 1, 1)
