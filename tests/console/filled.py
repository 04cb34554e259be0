"""A server with ten thousand task queues, workflows and fairness keys, written straight into its memory store."""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from fairlead.core.fairness import Level
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.matching.messages import DescribeRequest
from fairlead.server.process import Server
from fairlead.storage.commit import Commit
from fairlead.storage.tasks import Levels, QueueId, StoredTask
from tests.console.web import running_console
from tests.patience import until

QUEUES = 10_000
WORKFLOWS = 10_000
KEYS = 10_000
# Task queues that a host has loaded.
LOADED = 200
KEYED = "a queue with ten thousand <keys>"
PURGED = "a queue to purge"
PURGED_TASKS = 120
PRIORITY = 3
# A shard that no workflow belongs to: only rows of the list are written.
SPARE_SHARD = 1_000_000
ROWS_A_COMMIT = 1_000
LOADED_AT_ONCE = 50


@dataclass
class Filled:
    """The server, the loop of its thread, and its namespace's id."""

    server: Server
    loop: asyncio.AbstractEventLoop
    namespace_id: str

    @property
    def console(self) -> str:
        """The address of the console."""
        return f"http://{self.server.ui_address}/console"

    def run(self, work: Any) -> Any:
        """Run a coroutine in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)


async def namespace_id_of(server: Server) -> str:
    """The id of the namespace "default"."""
    assert server.frontend_address is not None
    client = await Client.connect(server.frontend_address)
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
    return described.namespace_info.id


async def write_queue(server: Server, namespace_id: str, name: str, keys: Iterable[str]) -> TaskQueueId:
    """Store a task queue for activities with one task for each of these keys."""
    assert server._store is not None
    store, queue = server._store, QueueId(namespace_id, name, TaskType.ACTIVITY)
    lease = await store.take_lease(queue)
    now_s, ids = time.time(), itertools.count(1)
    tasks = [StoredTask(Level(1_000, next(ids)), key, 1.0, b"x" * 100, now_s) for key in keys]
    if tasks:
        await store.append(queue, lease.range_id, PRIORITY, tasks, Levels(Level(0, 0), tasks[-1].level))
    return TaskQueueId(namespace_id, name, TaskType.ACTIVITY)


async def load_queue(server: Server, queue: TaskQueueId) -> None:
    """Let the server load a task queue."""
    assert server._host is not None
    await server._host.matching.describe(DescribeRequest(Partition(queue, 0)))


async def write_workflows(server: Server, namespace_id: str) -> None:
    """Add rows to the list of workflows: copies of the row of a workflow that was started."""
    assert server._store is not None
    assert server.frontend_address is not None
    history = server._store.history
    client = await Client.connect(server.frontend_address)
    await client.start_workflow("Order", id="order-00000", task_queue="orders")

    async def is_listed() -> bool:
        return bool(await history.list_visibility(namespace_id, limit=1))

    await until(is_listed)
    (row,) = await history.list_visibility(namespace_id, limit=1)
    lease = await history.take_shard(SPARE_SHARD)
    for first in range(1, WORKFLOWS, ROWS_A_COMMIT):
        rows = [
            row._replace(
                run_id=f"00000000-0000-0000-0000-{number:012d}",
                workflow_id=f"order-{number:05d}",
                root_workflow_id=f"order-{number:05d}",
                start_time_ns=row.start_time_ns - number * 1_000_000,
            )
            for number in range(first, min(first + ROWS_A_COMMIT, WORKFLOWS))
        ]
        await history.commit(SPARE_SHARD, lease.range_id, Commit(visibility=rows))


@asynccontextmanager
async def filled_console() -> AsyncIterator[tuple[Server, str]]:
    """A server with all that, and its namespace's id."""
    async with running_console() as (server, _):
        namespace_id = await namespace_id_of(server)
        await write_workflows(server, namespace_id)
        for number in range(QUEUES):
            await write_queue(server, namespace_id, f"queue-{number:05d}", ["tenant"] * (number % 3))
        keyed = await write_queue(server, namespace_id, KEYED, (f"key-{number:05d}" for number in range(KEYS)))
        purged = await write_queue(server, namespace_id, PURGED, ["tenant"] * PURGED_TASKS)
        loaded = [TaskQueueId(namespace_id, f"queue-{number:05d}", TaskType.ACTIVITY) for number in range(LOADED)]
        for queue in (keyed, purged, *loaded):
            await load_queue(server, queue)
        yield server, namespace_id


@contextmanager
def filled_server() -> Iterator[Filled]:
    """The same in a thread of its own."""
    with in_thread(filled_console) as found:
        yield found


@contextmanager
def in_thread(console: Callable[[], AbstractAsyncContextManager[tuple[Server, str]]]) -> Iterator[Filled]:
    """A server in a thread of its own, since Playwright's loop runs in that of the test."""
    ready, ended = threading.Event(), threading.Event()
    found: list[Filled] = []

    async def serve() -> None:
        async with console() as (server, namespace_id):
            loop = asyncio.get_running_loop()
            found.append(Filled(server, loop, namespace_id))
            ready.set()
            await loop.run_in_executor(None, ended.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait(120)
        assert found, "the server did not start"
        yield found[0]
    finally:
        ended.set()
        thread.join(60)
