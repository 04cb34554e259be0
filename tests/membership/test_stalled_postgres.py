"""A lone host on a real PostgreSQL server whose processes all stand still for longer than a heartbeat counts."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from tests.cli.thread import run_in_thread
from tests.patience import until
from tests.sdk.hosts import Host
from tests.security.workflows import QUEUE, Greeting, worker
from tests.storage.postgres_cluster import PostgresCluster, private_cluster

STALL_S = 8.0


@pytest.fixture
def own_postgres() -> Iterator[PostgresCluster]:
    """A server that no other test uses, since it is stopped."""
    with private_cluster() as cluster:
        try:
            yield cluster
        finally:
            signal_all(cluster, signal.SIGCONT)


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *(each for child in children for each in family(int(child)))]
    return []


def signal_all(cluster: PostgresCluster, number: signal.Signals) -> None:
    for pid in family(cluster.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.sim
async def test_a_lone_host_keeps_its_ring_while_postgresql_stands_still(
    own_postgres: PostgresCluster, tmp_path: Path
) -> None:
    """Takes more than 8 seconds of real time: no virtual clock holds for PostgreSQL."""
    host = Host(1, own_postgres.create_database(), tmp_path)
    await host.start()
    try:
        client = await Client.connect(host.address)
        async with worker(client):

            async def is_greeted(workflow_id: str) -> bool:
                try:
                    await client.execute_workflow(Greeting.run, "world", id=workflow_id, task_queue=QUEUE)
                except RPCError:
                    return False
                return True

            assert await is_greeted("before")
            signal_all(own_postgres, signal.SIGSTOP)
            # Nothing else shows that the host does not leave its ring during all of that time.
            await asyncio.sleep(STALL_S)
            shown = await run_in_thread("admin", "ring", "show", "--address", host.internal_address)
            assert host.internal_address in shown.out, shown.err
            signal_all(own_postgres, signal.SIGCONT)
            count = 0

            async def is_serving() -> bool:
                nonlocal count
                count += 1
                return await is_greeted(f"after-{count}")

            await until(is_serving)
        shown = await run_in_thread("admin", "ring", "show", "--address", host.internal_address)
        assert host.internal_address in shown.out, shown.err
        assert "the ring is empty" not in host.log()
    finally:
        await host.kill()
