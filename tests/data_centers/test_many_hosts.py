"""Two clusters of two hosts each, on PostgreSQL: hosts are killed in both, and the namespace fails over and back."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from fairlead.replication.messages import FailOverRequest
from tests.data_centers.processes import ASK_S_MAX, INCREMENT, NAMESPACE, fail_over_at, register, until
from tests.data_centers.programs import ACTIVITY_IS_OVER, Acknowledged, result_of, worker
from tests.data_centers.wires import Wire
from tests.sdk.hosts import Host
from tests.storage.postgres_cluster import PostgresCluster

WORKFLOWS = 16
SIGNALS = 3
SHARDS = 4
# Seconds for a failover with all attempts: it is refused while the target lags too far behind, and then retried.
FAIL_OVER_S_MAX = 300.0


class Hosts:
    """One cluster: two hosts on one database, and the address that stands for both."""

    def __init__(self, name: str, hosts: list[Host], wire: Wire) -> None:
        self.name = name
        self.hosts = hosts
        self.wire = wire

    async def connect(self) -> Client:
        """Connect through the address of both hosts, which stays the same for the cluster's life."""
        return await Client.connect(self.wire.address, namespace=NAMESPACE)

    async def kill(self, number: int) -> None:
        """Kill a host; later calls go to the other one, as a load balancer does."""
        await self.hosts[number].kill()
        await self.wire.lead_to(self.hosts[1 - number].address)

    async def fail_over_to_it(self, *, is_graceful: bool) -> None:
        """Fail over to this cluster, by a call to the host to which its address leads."""
        (asked,) = [host for host in self.hosts if host.address == self.wire.leads_to]

        async def is_moved() -> bool:
            await fail_over_at(asked.internal_address, FailOverRequest(NAMESPACE, self.name, is_graceful, ASK_S_MAX))
            return True

        # The handover may time out on a busy machine; the namespace then stays, and the test retries.
        await until(is_moved, f"{self.name} active", wait_s=FAIL_OVER_S_MAX)


@asynccontextmanager
async def two_clusters(postgres: PostgresCluster, folder: Path) -> AsyncIterator[Mapping[str, Hosts]]:
    """Run the cluster during the block."""
    versions = {"a": 1, "b": 2}
    # The addresses lead to the hosts once these have started.
    wires = {name: await Wire("").open() for name in versions}
    made: dict[str, Hosts] = {}
    try:
        for name, other in (("a", "b"), ("b", "a")):
            config = {
                "name": name,
                "initialVersion": versions[name],
                "increment": INCREMENT,
                "remotes": {other: {"initialVersion": versions[other], "address": wires[other].address}},
            }
            more = f"cluster: {json.dumps(config)}\nhistory: {{shards: {SHARDS}}}\n"
            (folder / name).mkdir()
            dsn = postgres.create_database()
            hosts = [Host(number, dsn, folder / name, more=more) for number in (1, 2)]
            await wires[name].lead_to(hosts[0].address)
            made[name] = Hosts(name, hosts, wires[name])
        for cluster in made.values():
            # The first host creates the tables.
            await cluster.hosts[0].start()
        async with asyncio.TaskGroup() as starting:
            for cluster in made.values():
                starting.create_task(cluster.hosts[1].start())
        yield made
    finally:
        await asyncio.gather(*(host.kill() for cluster in made.values() for host in cluster.hosts))
        for wire in wires.values():
            await wire.close()


async def live(teller: Acknowledged, number: int) -> list[int]:
    name = f"order-{number}"
    await teller.start(name, number, SIGNALS)
    for each in range(SIGNALS):
        # The signals are spread over the time in which hosts are killed.
        await asyncio.sleep(1.0)
        await teller.signal(name, each)
    return await teller.result(name)


async def histories(client: Client) -> dict[str, tuple[WorkflowExecutionStatus | None, bytes]]:
    """All runs, and the bytes of their events."""
    found = {}
    async for one in client.list_workflows():
        history = await client.get_workflow_handle(one.id, run_id=one.run_id).fetch_history()
        for event in history.events:
            event.ClearField("task_id")
        events = b"".join(event.SerializeToString(deterministic=True) for event in history.events)
        found[f"{one.id}/{one.run_id}"] = (one.status, events)
    return found


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings(ACTIVITY_IS_OVER)
async def test_clusters_of_several_hosts_fail_over_while_hosts_of_both_are_killed(
    tmp_path: Path, postgres_cluster: PostgresCluster
) -> None:
    async with two_clusters(postgres_cluster, tmp_path) as clusters:
        a, b = clusters["a"], clusters["b"]
        await register(await a.connect(), NAMESPACE, ["a", "b"])
        await until(lambda: _knows(b), "the namespace in b")
        clients = [await cluster.connect() for cluster in (a, b)]
        tellers = [Acknowledged(clients), Acknowledged(clients[::-1])]
        async with AsyncExitStack() as stack:
            for client in clients:
                await stack.enter_async_context(worker(client))
            async with asyncio.TaskGroup() as group:
                living = [group.create_task(live(tellers[number % 2], number)) for number in range(WORKFLOWS)]
                await until(lambda: _has_all(clients[0]), "all workflows started")
                # The host that gets both streams and calls.
                await a.kill(0)
                await b.fail_over_to_it(is_graceful=True)
                await a.hosts[0].start()
                await b.kill(0)
                await a.fail_over_to_it(is_graceful=True)
                results = await asyncio.gather(*living)
        assert results == [result_of(number, SIGNALS) for number in range(WORKFLOWS)]

        async def are_same() -> bool:
            return await histories(clients[0]) == await histories(clients[1])

        await until(are_same, "the same in both")
        runs = await histories(clients[0])
        assert len(runs) == WORKFLOWS
        assert {status for status, _ in runs.values()} == {WorkflowExecutionStatus.COMPLETED}


async def _has_all(client: Client) -> bool:
    return len([one async for one in client.list_workflows()]) == WORKFLOWS


async def _knows(cluster: Hosts) -> bool:
    return [one async for one in (await cluster.connect()).list_workflows()] == []
