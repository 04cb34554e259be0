"""Standalone activities on Fairlead by Temporal's SDK: 50 at the same time."""

import asyncio
import uuid
from datetime import timedelta

from runs import AT_ONCE, Tally, add_in_tasks, arguments, end
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

what, address, tasks = arguments()
tally = Tally(tasks)


@activity.defn
async def noop() -> None:
    tally.count()


async def main() -> None:
    client = await Client.connect(address)
    if what == "add":
        await add_in_tasks(
            tasks,
            lambda: client.start_activity(
                noop, id=str(uuid.uuid4()), task_queue="noops", start_to_close_timeout=timedelta(minutes=10)
            ),
        )
        return
    async with Worker(
        client,
        task_queue="noops",
        activities=[noop],
        max_concurrent_activities=AT_ONCE,
        max_concurrent_activity_task_polls=10,
    ):
        while not tally.is_done.is_set():
            await asyncio.sleep(0.05)
    end()


asyncio.run(main())
