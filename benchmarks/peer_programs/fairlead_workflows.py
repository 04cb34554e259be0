"""Workflows without activities on Fairlead by Temporal's SDK: 50 workflow tasks at the same time."""

import asyncio
import uuid

from runs import AT_ONCE, Tally, add_in_tasks, arguments, end
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

what, address, tasks = arguments()
tally = Tally(tasks)


@workflow.defn
class Noop:
    @workflow.run
    async def run(self) -> None:
        tally.count()


async def main() -> None:
    client = await Client.connect(address)
    if what == "add":
        await add_in_tasks(tasks, lambda: client.start_workflow(Noop.run, id=str(uuid.uuid4()), task_queue="noops"))
        return
    async with Worker(
        client,
        task_queue="noops",
        workflows=[Noop],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_workflow_tasks=AT_ONCE,
        max_concurrent_workflow_task_polls=10,
    ):
        while not tally.is_done.is_set():
            await asyncio.sleep(0.05)
    end()


asyncio.run(main())
