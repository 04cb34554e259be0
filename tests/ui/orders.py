"""A worker and workflows for the pages to show: runs until it is killed. `python orders.py ADDRESS`."""

import asyncio
import logging
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client, Schedule, ScheduleActionStartWorkflow, ScheduleIntervalSpec, ScheduleSpec
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

QUEUE = "orders"
ORDERS = 7


@activity.defn
async def pack(item: str) -> str:
    if activity.info().attempt == 1:
        raise RuntimeError("out of boxes")
    return f"packed {item}"


@activity.defn
async def pack_later(item: str) -> str:
    raise RuntimeError(f"out of boxes for {item}")


@workflow.defn
class Stubborn:
    """Runs an activity that fails, and is retried after an hour."""

    @workflow.run
    async def run(self, item: str) -> str:
        return await workflow.execute_activity(
            pack_later,
            item,
            start_to_close_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(initial_interval=timedelta(hours=1)),
        )


@workflow.defn
class Shipment:
    @workflow.run
    async def run(self, item: str) -> str:
        return item


@workflow.defn
class Order:
    def __init__(self) -> None:
        self._notes: list[str] = []

    @workflow.run
    async def run(self, item: str) -> str:
        packed = await workflow.execute_activity(
            pack,
            item,
            start_to_close_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=50)),
        )
        await workflow.execute_child_workflow(Shipment.run, item, id=f"{workflow.info().workflow_id}-shipment")
        await workflow.wait_condition(lambda: bool(self._notes))
        return packed

    @workflow.update
    def note(self, note: str) -> str:
        return f"noted {note}"

    @workflow.signal
    def finish(self, note: str) -> None:
        self._notes.append(note)


async def main(address: str) -> None:
    logging.disable()
    client = await Client.connect(address)
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[Order, Shipment, Stubborn],
        activities=[pack, pack_later],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    async with worker:
        for number in range(ORDERS):
            await client.start_workflow(Order.run, "rope", id=f"order-{number}", task_queue=QUEUE)
        await client.get_workflow_handle("order-0").signal(Order.finish, "done")
        await client.get_workflow_handle("order-0").result()
        action = ScheduleActionStartWorkflow(Order.run, "rope", id="nightly", task_queue=QUEUE)
        every = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(hours=1))])
        await client.create_schedule("nightly", Schedule(action=action, spec=every))
        for number in range(1, ORDERS):
            while not await _is_waiting(client, f"order-{number}"):  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.05)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


async def _is_waiting(client: Client, workflow_id: str) -> bool:
    """Whether a workflow waits for its signal: its child has ended, and no task is open."""
    described = await client.get_workflow_handle(workflow_id).describe()
    raw = described.raw_description
    return described.history_length > 15 and not raw.HasField("pending_workflow_task") and not raw.pending_children


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
