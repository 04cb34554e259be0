"""A namespace with hundreds of calls in flight beside one with a single start: `python -m benchmarks.neighbours`.

Prints the time of a start in the quiet namespace, alone and beside floods of starts, reads of a history and queries of
a workflow that does not exist, and the calls per second of each flood; with `--postgres`, on a private PostgreSQL. Also
prints the CPU time that the server spends during such a start, on its own and on other calls: on a busy machine, it
says more than the time. Exits with 1 if the flood of starts makes the neighbour's median more than twice as long.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import WorkflowExecution, WorkflowType
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    QueryWorkflowRequest,
    RegisterNamespaceRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.api.workflowservice.v1.service_pb2_grpc import WorkflowServiceStub

from benchmarks.aims import Aim, show_aims
from benchmarks.starts import on_postgres
from benchmarks.workflows_servers import OURS, ServerProcess, server_process

FLOOD_AT_ONCE = 600
FLOOD_S = 6.0
STARTS = 150
# The first line that the process of a flood prints, after as many calls as it keeps in flight.
BEGUN = "begun"
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


async def flood_start(stub: Any, number: int) -> None:
    await stub.StartWorkflowExecution(start("flood", number))


async def flood_history(stub: Any, _: int) -> None:
    await stub.GetWorkflowExecutionHistory(
        GetWorkflowExecutionHistoryRequest(namespace="flood", execution=WorkflowExecution(workflow_id="read"))
    )


async def flood_query(stub: Any, _: int) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        await stub.QueryWorkflow(
            QueryWorkflowRequest(
                namespace="flood",
                execution=WorkflowExecution(workflow_id="absent"),
                query=WorkflowQuery(query_type="any"),
            )
        )


FLOODS: dict[str, Callable[[Any, int], Awaitable[None]]] = {
    "starts": flood_start,
    "history reads": flood_history,
    "queries": flood_query,
}


@dataclass(frozen=True)
class Figures:
    """Medians of a start, in milliseconds of time and of the server's CPU, and the flood's calls per second."""

    alone_ms: float
    alone_cpu_ms: float
    beside_ms: float
    beside_cpu_ms: float
    flood_per_s: float


def cpu_ms(pid: int) -> float:
    """CPU time of a process so far, with the resolution of the clock that Linux keeps for it."""
    return time.clock_gettime((~pid << 3) | 2) * 1000


def connected(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


async def quiet_starts(server: ServerProcess, numbers: "count[int]", *, until_s: float | None) -> tuple[float, float]:
    """Start workflows one at a time, each after a short pause; return the medians of time and CPU of a start."""
    took_ms: list[float] = []
    took_cpu_ms: list[float] = []
    async with connected(server.address) as channel:
        stub: Any = WorkflowServiceStub(channel)  # type: ignore[arg-type] # the stubs know only blocking channels
        while len(took_ms) < STARTS if until_s is None else time.monotonic() < until_s:
            began_s, began_cpu_ms = time.perf_counter(), cpu_ms(server.pid)
            await stub.StartWorkflowExecution(start("quiet", next(numbers)))
            took_ms.append((time.perf_counter() - began_s) * 1000)
            took_cpu_ms.append(cpu_ms(server.pid) - began_cpu_ms)
            await asyncio.sleep(0.01)
    return statistics.median(took_ms), statistics.median(took_cpu_ms)


async def flood(kind: str, address: str, until_s: float) -> int:
    """Keep hundreds of calls in flight; return their number."""
    numbers = count()
    called = 0
    async with connected(address) as channel:
        stub: Any = WorkflowServiceStub(channel)  # type: ignore[arg-type] # the stubs know only blocking channels

        async def keep_calling() -> None:
            nonlocal called
            while time.monotonic() < until_s:
                await FLOODS[kind](stub, next(numbers))
                called += 1
                if called == FLOOD_AT_ONCE:
                    print(BEGUN, flush=True)

        await asyncio.gather(*(keep_calling() for _ in range(FLOOD_AT_ONCE)))
    return called


async def prepare(address: str) -> None:
    async with connected(address) as channel:
        stub: Any = WorkflowServiceStub(channel)  # type: ignore[arg-type] # the stubs know only blocking channels
        for name in ("quiet", "flood"):
            await stub.RegisterNamespace(
                RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=Duration(seconds=86_400))
            )
        read = start("flood", 0)
        read.workflow_id = "read"
        await stub.StartWorkflowExecution(read)


async def measure(kind: str, server: ServerProcess) -> Figures:
    await prepare(server.address)
    numbers = count()
    await quiet_starts(server, numbers, until_s=None)
    alone = await quiet_starts(server, numbers, until_s=None)
    # The flood's client has an event loop of its own, so that it delays the neighbour's client as little as possible.
    flooding = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.neighbours", "--flood", kind, server.address),
        stdout=asyncio.subprocess.PIPE,
    )
    assert flooding.stdout is not None  # noqa: S101 - it was asked for
    await flooding.stdout.readline()
    beside = await quiet_starts(server, numbers, until_s=time.monotonic() + FLOOD_S - 2)
    output, _ = await flooding.communicate()
    return Figures(*alone, *beside, int(output) / FLOOD_S)


@contextlib.contextmanager
def serving(folder: Path, extra: tuple[str, ...], *, is_postgres: bool) -> Iterator[ServerProcess]:
    if is_postgres:
        with on_postgres(folder, 1, [*extra]) as (server, _):
            yield server
    else:
        with server_process(OURS, folder, extra) as server:
            yield server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbours", description=__doc__)
    parser.add_argument("--flood", nargs=2, metavar=("KIND", "ADDRESS"), help=argparse.SUPPRESS)
    parser.add_argument("--postgres", action="store_true", help="on a private PostgreSQL instead of a SQLite file")
    parser.add_argument(
        "--calls-at-once", type=int, default=[], nargs="+", help="values of frontend.callsAtOnce to try"
    )
    arguments = parser.parse_args()
    if arguments.flood:
        kind, address = arguments.flood
        print(asyncio.run(flood(kind, address, time.monotonic() + FLOOD_S)))
        return
    cases: list[tuple[str, str, tuple[str, ...]]] = [("starts, no fair turns", "starts", UNFAIR)]
    cases += [(kind, kind, ()) for kind in FLOODS]
    cases += [
        (f"starts, callsAtOnce {limit}", "starts", ("--dynamic-config-value", f"frontend.callsAtOnce={limit}"))
        for limit in arguments.calls_at_once
    ]
    print(
        f"{'flood':26}{'alone ms':>10}{'beside ms':>11}{'alone CPU ms':>14}{'beside CPU ms':>15}{'flood calls/s':>15}"
    )
    ratio = 0.0
    for name, kind, extra in cases:
        with (
            tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder,
            serving(Path(folder), extra, is_postgres=arguments.postgres) as server,
        ):
            found = asyncio.run(measure(kind, server))
        if name == "starts":
            ratio = found.beside_ms / found.alone_ms
        print(
            f"{name:26}{found.alone_ms:10.1f}{found.beside_ms:11.1f}{found.alone_cpu_ms:14.1f}"
            f"{found.beside_cpu_ms:15.1f}{found.flood_per_s:15.0f}",
            flush=True,
        )
    title = "median start of a neighbour beside a flood of another namespace, against alone"
    if missed := show_aims([Aim(title, ratio, RATIO_MAX, "less", reached_min=1.0)]):
        sys.exit("missed by more than noise: " + "; ".join(missed))


if __name__ == "__main__":
    main()
