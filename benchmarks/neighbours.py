"""A namespace with hundreds of starts in flight beside one with a single start: `python -m benchmarks.neighbours`.

Prints the time of a start in the quiet namespace, alone and beside the flood, with and without fair turns, and the
starts per second of the flood. Exits with 1 if the flood makes the neighbour's median more than twice as long.
"""

import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from itertools import count
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest, StartWorkflowExecutionRequest
from temporalio.api.workflowservice.v1.service_pb2_grpc import WorkflowServiceStub

from benchmarks.aims import Aim, show_aims
from benchmarks.workflows_servers import OURS, server_process

FLOOD_AT_ONCE = 600
FLOOD_S = 6.0
STARTS = 150
RATIO_MAX = 2.0
# Options that switch fair turns off: no call ever waits for its turn.
UNFAIR = ("--dynamic-config-value", "frontend.callsAtOnce=1000000")


def start(namespace: str, number: int) -> StartWorkflowExecutionRequest:
    return StartWorkflowExecutionRequest(
        namespace=namespace,
        workflow_id=f"w-{number}",
        workflow_type=WorkflowType(name="Any"),
        task_queue=TaskQueue(name="q"),
        request_id=str(uuid.uuid4()),
    )


async def quiet_starts(address: str, numbers: "count[int]", *, until_s: float | None) -> list[float]:
    """Start workflows one at a time, each after a short pause; return the time of each in milliseconds."""
    took_ms: list[float] = []
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub: Any = WorkflowServiceStub(channel)  # type: ignore[arg-type] # the stubs know only blocking channels
        while len(took_ms) < STARTS if until_s is None else time.monotonic() < until_s:
            began_s = time.perf_counter()
            await stub.StartWorkflowExecution(start("quiet", next(numbers)))
            took_ms.append((time.perf_counter() - began_s) * 1000)
            await asyncio.sleep(0.01)
    return took_ms


async def flood(address: str, until_s: float) -> int:
    """Keep hundreds of starts in flight; return their number."""
    numbers = count()
    started = 0
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub: Any = WorkflowServiceStub(channel)  # type: ignore[arg-type] # the stubs know only blocking channels

        async def keep_starting() -> None:
            nonlocal started
            while time.monotonic() < until_s:
                await stub.StartWorkflowExecution(start("flood", next(numbers)))
                started += 1

        await asyncio.gather(*(keep_starting() for _ in range(FLOOD_AT_ONCE)))
    return started


async def register(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = WorkflowServiceStub(channel)  # type: ignore[arg-type] # the stubs know only blocking channels
        for name in ("quiet", "flood"):
            await stub.RegisterNamespace(
                RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=Duration(seconds=86_400))
            )


def run_flood(address: str, seconds: float) -> int:
    return asyncio.run(flood(address, time.monotonic() + seconds))


async def measure(address: str) -> tuple[float, float, float]:
    """Return the neighbour's median alone and beside the flood, in milliseconds, and the flood's starts per second."""
    await register(address)
    numbers = count()
    await quiet_starts(address, numbers, until_s=None)
    alone_ms = await quiet_starts(address, numbers, until_s=None)
    # The flood's client has an event loop of its own, so that it delays the neighbour's client as little as possible.
    flooding = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.neighbours", "--flood", address), stdout=asyncio.subprocess.PIPE
    )
    await asyncio.sleep(1.5)
    beside_ms = await quiet_starts(address, numbers, until_s=time.monotonic() + FLOOD_S - 2)
    output, _ = await flooding.communicate()
    return statistics.median(alone_ms), statistics.median(beside_ms), int(output) / FLOOD_S


def main() -> None:
    if sys.argv[1:2] == ["--flood"]:
        print(run_flood(sys.argv[2], FLOOD_S))
        return
    print(f"{'':24}{'alone ms':>10}{'beside ms':>11}{'ratio':>7}{'flood starts/s':>16}")
    ratio = 0.0
    for name, extra in (("without fair turns", UNFAIR), ("with fair turns", ())):
        with tempfile.TemporaryDirectory() as folder, server_process(OURS, Path(folder), extra) as server:
            alone_ms, beside_ms, flood_per_s = asyncio.run(measure(server.address))
        ratio = beside_ms / alone_ms
        print(f"{name:24}{alone_ms:10.1f}{beside_ms:11.1f}{ratio:7.1f}{flood_per_s:16.0f}")
    title = "median start of a neighbour beside a flood of another namespace, against alone"
    if missed := show_aims([Aim(title, ratio, RATIO_MAX, "less", reached_min=1.0)]):
        sys.exit("missed by more than noise: " + "; ".join(missed))


if __name__ == "__main__":
    main()
