"""What both servers are given to do: the same worker in a process of its own, and the same clients."""

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import grpc
import temporalio.api.workflowservice.v1 as api
import uvloop
from google.protobuf.duration_pb2 import Duration
from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution, WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

TASK_QUEUE = "bench"
NO_WORKERS = "nobody"
CONCURRENCY = 50
CHANNELS = 4
# Workflows that signals go to in turn.
SIGNALED = 100
# A workflow takes 10,000 signals and no more.
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
    """A client, when the server is ready for it."""
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
    """Be the worker, until the process is ended."""
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
    """Make calls for a time, so many at once; returns how many it were."""
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
    """Requests without an SDK, which would be busier than the server."""

    def __init__(self, address: str, namespace: str = NAMESPACE) -> None:
        self._namespace = namespace
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(CHANNELS)]
        self._start = self._method("StartWorkflowExecution")
        self._signal = self._method("SignalWorkflowExecution")

    def _method(self, name: str) -> Iterator[Any]:
        """The method on each of the channels in turn. Nobody looks at the answers."""
        return itertools.cycle(
            [
                channel.unary_unary(
                    f"{SERVICE}/{name}",
                    request_serializer=lambda request: request.SerializeToString(),
                    response_deserializer=None,
                )
                for channel in self._channels
            ]
        )

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
        await next(self._start)(request, timeout=CALL_S_MAX)

    async def signal(self, workflow_id: str) -> None:
        request = api.SignalWorkflowExecutionRequest(
            namespace=self._namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            signal_name="hello",
            identity="bench",
            request_id=str(uuid4()),
        )
        await next(self._signal)(request, timeout=CALL_S_MAX)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)


if __name__ == "__main__":
    uvloop.run(work(*sys.argv[1:]))
