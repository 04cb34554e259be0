"""A user's first test: workflow, activity and test in one file, with the SDK's default sandbox."""

from datetime import timedelta

from temporalio import activity, workflow
from temporalio.worker import Worker

from fairlead.testing import FairleadServer


@activity.defn
async def ship(number: int) -> str:
    return f"shipped {number}"


@workflow.defn
class Order:
    @workflow.run
    async def run(self, number: int) -> str:
        return await workflow.execute_activity(ship, number, start_to_close_timeout=timedelta(seconds=10))


async def test_an_order_is_shipped() -> None:
    async with FairleadServer.start() as server:
        client = await server.connect()
        async with Worker(client, task_queue="orders", workflows=[Order], activities=[ship]):
            assert await client.execute_workflow(Order.run, 7, id="order-7", task_queue="orders") == "shipped 7"
