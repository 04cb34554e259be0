"""The load for both servers: the same worker in its own process, and the same clients."""

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import uuid4

import temporalio.api.workflowservice.v1 as api
import uvloop
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution, WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.raw_calls import RawConnection, connect_raw

TASK_QUEUE = "bench"
NO_WORKERS = "nobody"
CONCURRENCY = 50
CHANNELS = 4
# Number of workflows that get the signals, in turn.
SIGNALED = 100
# Signals to one workflow: the server's limit is 10,000.
SIGNALS_A_WORKFLOW_MAX = 9_000
CONNECT_S_MAX = 60.0
CALL_S_MAX = 30.0
NAMESPACE = "default"
SERVICE = "/temporal.api.workflowservice.v1.WorkflowService"


@activity.defn
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@workflow.defn
class Greeting:
    @workflow.run
    async def run(self, name: str) -> str:
        return await workflow.execute_activity(greet, name, start_to_close_timeout=timedelta(seconds=30))


async def connect(address: str, namespace: str = NAMESPACE) -> Client:
    """Connect a client as soon as the server is ready."""
    deadline_s = time.monotonic() + CONNECT_S_MAX
    while True:
        try:
            client = await Client.connect(address, namespace=namespace)
            await client.count_workflows()
        except (RuntimeError, RPCError):
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.1)
        else:
            return client


async def work(address: str, namespace: str = NAMESPACE) -> None:
    """Run the worker until the process ends."""
    worker = Worker(
        await connect(address, namespace),
        task_queue=TASK_QUEUE,
        workflows=[Greeting],
        activities=[greet],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_workflow_task_polls=10,
        max_concurrent_activity_task_polls=10,
    )
    await worker.run()


async def run_one(client: Client) -> float:
    """Seconds from the start of a workflow to its result."""
    began_s = time.perf_counter()
    async with asyncio.timeout(CALL_S_MAX):
        result = await client.execute_workflow(Greeting.run, "world", id=f"bench-{uuid4()}", task_queue=TASK_QUEUE)
    if result != "Hello, world!":
        raise AssertionError(result)
    return time.perf_counter() - began_s


async def at_once(call: Callable[[], Awaitable[object]], *, duration_s: float, calls_max: int = sys.maxsize) -> int:
    """Make calls concurrently for `duration_s` seconds; return their number."""
    numbers = itertools.count()
    end_s = time.perf_counter() + duration_s
    done = 0

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end_s and next(numbers) < calls_max:
            await call()
            done += 1

    await asyncio.gather(*(caller() for _ in range(CONCURRENCY)))
    return done


class RawClient:
    """Sends requests without an SDK, which would be busier than the server."""

    def __init__(self, connections: list[RawConnection], namespace: str = NAMESPACE) -> None:
        """Take open connections; `connected` opens them."""
        self._namespace = namespace
        self._connections = connections
        self._turns = itertools.cycle(connections)

    @classmethod
    async def connected(cls, address: str, namespace: str = NAMESPACE) -> "RawClient":
        """Connect to a server."""
        return cls([await connect_raw(address) for _ in range(CHANNELS)], namespace)

    async def _call(self, method: str, request: Message) -> None:
        async with asyncio.timeout(CALL_S_MAX):
            await next(self._turns).call(f"{SERVICE}/{method}", request.SerializeToString())

    async def start(self, workflow_id: str = "") -> None:
        request = api.StartWorkflowExecutionRequest(
            namespace=self._namespace,
            workflow_id=workflow_id or f"bench-{uuid4()}",
            workflow_type=WorkflowType(name="Greeting"),
            task_queue=TaskQueue(name=NO_WORKERS),
            workflow_task_timeout=Duration(seconds=10),
            identity="bench",
            request_id=str(uuid4()),
        )
        await self._call("StartWorkflowExecution", request)

    async def signal(self, workflow_id: str) -> None:
        request = api.SignalWorkflowExecutionRequest(
            namespace=self._namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            signal_name="hello",
            identity="bench",
            request_id=str(uuid4()),
        )
        await self._call("SignalWorkflowExecution", request)

    async def close(self) -> None:
        for connection in self._connections:
            connection.close()


if __name__ == "__main__":
    uvloop.run(work(*sys.argv[1:]))
