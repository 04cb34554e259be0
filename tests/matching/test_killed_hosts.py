"""Three real processes on PostgreSQL; one after the other is killed under load."""

import asyncio
import random
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from pathlib import Path

import pytest

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.matching.client import MatchingClient
from fairlead.matching.messages import NewTask
from fairlead.membership.ring import RemoteRing
from fairlead.server import new_caller
from fairlead.settings import DynamicSettings
from tests.patience import until

ORDERS = TaskQueueId("namespace", "orders", TaskType.ACTIVITY)
KILLS = 10


class Cluster:
    """Three processes; each writes the tasks that it has started to its own file."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn = dsn
        self._folder = folder
        self._lives = 0
        self.processes: dict[str, Process] = {}

    async def start(self) -> str:
        self._lives += 1
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "tests.matching.killed_host_child",
                self._dsn,
                str(self._folder / f"{self._lives}.started"),
            ),
            stdout=PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(60):
            address = (await process.stdout.readline()).decode().strip()
        assert address, "it has not started"
        self.processes[address] = process
        return address

    async def kill(self, address: str) -> None:
        process = self.processes.pop(address)
        process.kill()
        await process.communicate()

    def started(self) -> Counter[bytes]:
        return Counter(line for file in self._folder.glob("*.started") for line in file.read_bytes().splitlines())


@pytest.mark.timeout(300)
async def test_every_acknowledged_task_is_dispatched_though_hosts_are_killed(postgres_dsn: str, tmp_path: Path) -> None:
    cluster = Cluster(postgres_dsn, tmp_path)
    caller = new_caller()
    try:
        addresses = await asyncio.gather(*(cluster.start() for _ in range(3)))
        ring = RemoteRing(caller, addresses, clock=time.time)
        await ring.open()
        client = MatchingClient(caller, ring, settings=DynamicSettings(), clock=time.time, random=random.random)
        acknowledged: set[bytes] = set()
        is_producing, is_working = True, True

        async def produce(producer: int) -> None:
            number = 0
            while is_producing:
                number += 1
                payload = f"{producer}-{number}".encode()
                task = NewTask(3, f"tenant-{number % 5}", 1.0, payload)
                try:
                    await client.add(ORDERS, task, timeout_s=10)
                except FairleadError:
                    continue
                acknowledged.add(payload)

        async def work(worker: int) -> None:
            while is_working:
                try:
                    await client.poll(ORDERS, f"worker-{worker}", timeout_s=3)
                except FairleadError:
                    await asyncio.sleep(0.05)

        producers = [asyncio.create_task(produce(number)) for number in range(8)]
        workers = [asyncio.create_task(work(number)) for number in range(12)]
        chance = random.Random(7)
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.3, 1.5))
            await cluster.kill(chance.choice(list(cluster.processes)))
            await cluster.start()
        known = len(acknowledged)
        await until(lambda: len(acknowledged) > known)
        is_producing = False
        await asyncio.gather(*producers)
        async with asyncio.timeout(90):
            while acknowledged - cluster.started().keys():  # noqa: ASYNC110 - other processes write it
                await asyncio.sleep(0.5)
        is_working = False
        await asyncio.gather(*workers)
        await ring.close()
        # Without these, the test would have proved nothing.
        assert len(acknowledged) > 1000
    finally:
        await caller.close()
        for address in list(cluster.processes):
            await cluster.kill(address)
