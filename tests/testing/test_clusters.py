"""Several clusters for users' own tests, and a failover as a worker of the official SDK sees it."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.testing import FairleadClusters

pytestmark = pytest.mark.timeout(120)


@activity.defn
async def double(number: int) -> int:
    return 2 * number


@workflow.defn
class Sum:
    """A workflow that adds up twice each number it gets, until the sum reaches its target.

    The order does not matter: events that are reapplied after a failover come after later ones.
    """

    def __init__(self) -> None:
        self._reported: list[int] = []

    @workflow.run
    async def run(self, wanted: int) -> int:
        total = 0
        while total < wanted:
            await workflow.wait_condition(lambda: bool(self._reported))
            number = self._reported.pop(0)
            total += await workflow.execute_activity(double, number, start_to_close_timeout=timedelta(seconds=3))
        return total

    @workflow.signal
    def add(self, number: int) -> None:
        self._reported.append(number)


async def until_known(client: Client, workflow_id: str) -> None:
    """Wait until the client's cluster has the run: a forced failover does not wait for it."""
    async with asyncio.timeout(60):
        while True:
            try:
                await client.get_workflow_handle(workflow_id).describe()
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                await asyncio.sleep(0.05)
            else:
                return


@pytest.mark.parametrize("is_graceful", [True, False])
async def test_a_workflow_continues_in_the_other_cluster_with_a_worker_of_either(*, is_graceful: bool) -> None:
    async with FairleadClusters.start("a", "b") as clusters:
        clients = [await clusters[name].connect() for name in clusters.names]
        async with Worker(
            clients[0],
            task_queue="q",
            workflows=[Sum],
            activities=[double],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ):
            await clients[0].start_workflow(Sum.run, 444, id="sum", task_queue="q")
            await until_known(clients[1], "sum")
            for number, to in ((1, "b"), (10, "a"), (100, "b")):
                for client in clients:
                    await client.get_workflow_handle("sum").signal(Sum.add, number)
                await clusters.fail_over(to, is_graceful=is_graceful)
                await clusters.until_active(to)
            for client in clients:
                assert await client.get_workflow_handle("sum", result_type=int).result() == 444


async def test_a_cluster_with_a_folder_keeps_its_data_over_a_restart(tmp_path: Path) -> None:
    async with FairleadClusters.start("a", "b", "c", folder=tmp_path) as clusters:
        client = await clusters["a"].connect()
        await client.start_workflow("Any", id="w", task_queue="q")
        await clusters.stop("c")
        await clusters.restart("c")
        await clusters.until_active("a")
        await clusters.fail_over("c")
        again = await clusters["c"].connect()
        assert (await again.get_workflow_handle("w").describe()).id == "w"
