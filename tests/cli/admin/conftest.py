"""A server in this process, reached by gRPC by the command in another thread."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.matching.client import MatchingClient
from fairlead.matching.messages import NewTask
from fairlead.server import Server
from fairlead.settings import Plain
from tests.cli.processes import Done
from tests.cli.thread import run_in_thread
from tests.server.test_server import IN_MEMORY, QUICK, client_of

CHECKOUT = TaskQueueId("default", "checkout", TaskType.ACTIVITY)
NAMED = ("--tasklist", "checkout", "--tasklisttype", "activity")
PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Admin:
    """A running server with a client, and `fairlead admin` for it."""

    server: Server
    client: MatchingClient

    async def run(self, *arguments: str) -> Done:
        """Run `fairlead admin`."""
        return await run_in_thread("admin", "--address", self.server.address, *arguments)

    async def ask(self, *arguments: str) -> Any:
        """The JSON output of `fairlead admin`."""
        done = await self.run(*arguments, "-o", "json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    async def fill(self, *, tasks: int, task_queue: TaskQueueId = CHECKOUT, keys: int = 1) -> None:
        """Add tasks one by one: the first response brings the number of partitions."""
        for number in range(tasks):
            key = number % keys
            await self.client.add(task_queue, NewTask(3, f"key-{key}", 1.0 + key, b"%d" % number))

    async def drain(self, *, tasks: int, task_queue: TaskQueueId = CHECKOUT) -> None:
        """Poll `count` tasks."""
        for _ in range(tasks):
            assert (await self.client.poll(task_queue, "worker-1", timeout_s=10)).task is not None


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    counts: dict[str, Plain] = {
        "matching.numTasklistReadPartitions": PARTITIONS,
        "matching.numTasklistWritePartitions": PARTITIONS,
        "matching.taskDeleteInterval": "50ms",
    }
    server = Server(IN_MEMORY, overrides={**QUICK, **counts})
    await server.start()
    async with client_of(server.address) as client:
        yield Admin(server, client)
    await server.stop()
