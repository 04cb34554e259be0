"""Cost of an operation as the store grows, and cost of an idle server.

A store is filled without a server, a server is started on it as a user starts it, and its operations are called over
gRPC. The cost is CPU time of the server and of PostgreSQL for one call, the best of several rounds: other load on the
machine disturbs it less than the time that a call takes. Operations are measured with more and more workflows (half of
them open), task queues, fairness keys in one backlog, and events in one history.

An operation should cost at most 1.3 times as much in the largest store as in the smallest one. The answers of lists are
of the same size in all stores.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import temporalio.api.workflowservice.v1 as api
from rich.console import Console
from rich.table import Table
from temporalio.api.common.v1 import WorkflowExecution, WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.client import Client

from benchmarks.aims import RATIO_REACHED_MIN, Aim, show_aims
from benchmarks.growth_fill import (
    RARE_TYPE,
    RUNS_A_CUSTOMER,
    TASK_QUEUE,
    Runs,
    fill_keys,
    fill_queues,
    fill_runs,
    write_templates,
)
from benchmarks.growth_stores import KINDS, NAMESPACE, POSTGRES, Measured, Place, new_place
from fairlead.client import TaskQueueClient, connect
from fairlead.rpc.hosts.caller import CallLost

RATIO_MAX = 1.3
# Maximum share of a core, and maximum transactions per second, of an idle server.
IDLE_CPU_MAX = 0.005
IDLE_TRANSACTIONS_MAX = 2.0
RUN_COUNTS, RUN_COUNTS_QUICK = (10_000, 100_000, 1_000_000), (2_000, 20_000)
QUEUE_COUNTS, QUEUE_COUNTS_QUICK = (1_000, 100_000), (200, 2_000)
KEY_COUNTS, KEY_COUNTS_QUICK = (1_000, 1_000_000), (1_000, 20_000)
EVENT_COUNTS, EVENT_COUNTS_QUICK = (10, 1_000, 50_000), (10, 1_000)
# Calls of one round, rounds of one measurement (the best counts), and maximum seconds of a round.
CALLS, CALLS_QUICK = 300, 100
ROUNDS = 3
ROUND_S_MAX = 15.0
IN_FLIGHT = 10
WARM_UP_CALLS = 50
# Lowest number of a workflow that a call may close: the first ones are listed by their type and status.
CLOSED_FROM = 100
PAGE = 100
IDLE_S, IDLE_S_QUICK = 60.0, 20.0
SETTLE_S = 3.0
# Share of a core below which a server has finished the work of its start.
CALM_CPU_MAX = 0.1
STATISTICS_S = 12.0

Call = Callable[[], Awaitable[object]]
# CPU milliseconds of one call, by operation and size.
Costs = dict[str, dict[int, float]]


@dataclass
class Findings:
    """All that was measured on one kind of store."""

    costs: dict[str, Costs] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)


async def cost_ms(measured: Measured, call: Call, calls: int) -> float:
    """CPU milliseconds of one call, the best of several rounds."""
    await _repeat(call, WARM_UP_CALLS)
    best = float("inf")
    for _ in range(ROUNDS):
        before_s = measured.cpu_s()
        made = await _repeat(call, calls)
        best = min(best, (measured.cpu_s() - before_s) / made)
    return best * 1e3


async def _repeat(call: Call, calls: int) -> int:
    """Make the calls, some at the same time, until all are made or the time is over; returns their number."""
    numbers, end_s, made = iter(range(calls)), time.monotonic() + ROUND_S_MAX, 0

    async def caller() -> None:
        nonlocal made
        for _ in numbers:
            await call()
            made += 1
            if time.monotonic() > end_s:
                return

    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return made


class RunOperations:
    """The calls about workflows."""

    def __init__(self, client: Client, runs: Runs, closed: set[int]) -> None:
        """`closed` has the numbers of the workflows that calls have closed, also at smaller sizes."""
        self._service = client.workflow_service
        self._runs = runs
        self._random = random.Random(1)
        # Each call uses a workflow that no call has used before, so that it is not in memory yet.
        numbers = self._random.sample(range(2, runs.total), runs.total - 2)
        half = len(numbers) // 2
        self._signaled = iter([number for number in numbers[:half] if number % 2 == 0 and number not in closed])
        self._described = iter(numbers[half:])
        # Open ones, but none of the first, which have the rare type.
        open_numbers = [number for number in reversed(numbers) if number % 2 == 0 and number > CLOSED_FROM]
        self._to_close = iter([number for number in open_numbers if number not in closed])
        self._closed = closed

    def all(self) -> dict[str, Call]:
        """The operations by title."""
        customers = self._runs.total // RUNS_A_CUSTOMER
        # A workflow that a smaller size has closed has lost its attribute: take customers of the newer half.
        first = customers // 2
        return {
            "start": self.start,
            "signal": self.signal,
            "describe": self.describe,
            f"list by attribute ({RUNS_A_CUSTOMER} found)": lambda: self.list(
                f"Customer = 'c-{self._random.randrange(first, customers)}'", RUNS_A_CUSTOMER
            ),
            "list by type (20 found)": lambda: self.list(f"WorkflowType = '{RARE_TYPE}'", 20),
            "list by status (10 found)": lambda: self.list("ExecutionStatus = 'Failed'", 10),
            f"list, first {PAGE}": lambda: self.list("", PAGE),
            f"list sorted by start, first {PAGE}": lambda: self.list("ORDER BY StartTime DESC", PAGE),
            f"list sorted by start, ascending, first {PAGE}": lambda: self.list("ORDER BY StartTime ASC", PAGE),
            f"count by attribute ({RUNS_A_CUSTOMER})": lambda: self.count(
                f"Customer = 'c-{self._random.randrange(first, customers)}'"
            ),
            "count by type (20)": lambda: self.count(f"WorkflowType = '{RARE_TYPE}'"),
            "count all, by status": lambda: self.count("GROUP BY ExecutionStatus"),
            "close, with an attribute": self.close,
        }

    async def start(self) -> None:
        await self._service.start_workflow_execution(
            api.StartWorkflowExecutionRequest(
                namespace=NAMESPACE,
                workflow_id=f"new-{uuid.uuid4()}",
                workflow_type=WorkflowType(name="Grow"),
                task_queue=TaskQueue(name=TASK_QUEUE),
                identity="bench",
                request_id=str(uuid.uuid4()),
            )
        )

    async def signal(self) -> None:
        await signal(self._service, self._runs.workflow_id(next(self._signaled)))

    async def close(self) -> None:
        number = next(self._to_close)
        self._closed.add(number)
        execution = WorkflowExecution(workflow_id=self._runs.workflow_id(number))
        await self._service.terminate_workflow_execution(
            api.TerminateWorkflowExecutionRequest(namespace=NAMESPACE, workflow_execution=execution, identity="bench")
        )

    async def describe(self) -> None:
        execution = WorkflowExecution(workflow_id=self._runs.workflow_id(next(self._described)))
        await self._service.describe_workflow_execution(
            api.DescribeWorkflowExecutionRequest(namespace=NAMESPACE, execution=execution)
        )

    async def list(self, query: str, found: int) -> None:
        response = await self._service.list_workflow_executions(
            api.ListWorkflowExecutionsRequest(namespace=NAMESPACE, query=query, page_size=PAGE)
        )
        if len(response.executions) != found:
            raise AssertionError(f"{query!r} found {len(response.executions)} workflows, not {found}")

    async def count(self, query: str) -> None:
        await self._service.count_workflow_executions(
            api.CountWorkflowExecutionsRequest(namespace=NAMESPACE, query=query)
        )


async def signal(service: object, workflow_id: str) -> None:
    request = api.SignalWorkflowExecutionRequest(
        namespace=NAMESPACE,
        workflow_execution=WorkflowExecution(workflow_id=workflow_id),
        signal_name="go",
        identity="bench",
        request_id=str(uuid.uuid4()),
    )
    await service.signal_workflow_execution(request)  # type: ignore[attr-defined]


def measure_runs(place: Place, counts: Sequence[int], calls: int, say: Callable[[str], None]) -> Costs:
    """Costs with more and more workflows in the store."""
    costs: Costs = {}
    closed: set[int] = set()
    write_templates(place)
    for present, count in itertools.pairwise((0, *counts)):
        began_s = time.monotonic()
        runs = asyncio.run(fill_runs(place, present, count))
        place.settle()
        say(f"{place.kind}: {count:,} workflows written in {time.monotonic() - began_s:.0f} s")

        async def measure(measured: Measured, runs: Runs = runs) -> None:
            operations = RunOperations(await Client.connect(measured.server.address), runs, closed).all()
            # Starts add workflows: they come last, so that the number of workflows is right for all others.
            for title in [*(name for name in operations if name != "start"), "start"]:
                costs.setdefault(title, {})[runs.total] = await cost_ms(measured, operations[title], calls)

        with place.serving() as measured:
            asyncio.run(measure(measured))
    return costs


def measure_queues(place: Place, counts: Sequence[int], calls: int, say: Callable[[str], None]) -> Costs:
    """Costs with more and more task queues in the store, each with a task in its backlog."""
    costs: Costs = {}
    present = 0
    for count in counts:
        asyncio.run(fill_queues(place, present, count))
        place.settle()
        say(f"{place.kind}: {count:,} task queues written")

        async def measure(measured: Measured, first: int = present, last: int = count) -> None:
            numbers = iter(random.Random(1).sample(range(first, last), last - first))
            async with connect(measured.host_address) as client:
                # The first two operations must load the task queue: so each call uses a different one.
                operations: dict[str, Call] = {
                    "add, to a task queue that is not loaded": lambda: client.add(f"queue-{next(numbers)}", b"x"),
                    "poll, of a task queue that is not loaded": lambda: poll(client, f"queue-{next(numbers)}"),
                    "add": lambda: client.add("hot", b"x"),
                    "poll": lambda: poll(client, "hot"),
                }
                made = min(calls, (last - first - 2 * WARM_UP_CALLS) // (2 * ROUNDS))
                for title, call in operations.items():
                    costs.setdefault(title, {})[last] = await cost_ms(measured, call, made)

        with place.serving() as measured:
            asyncio.run(measure(measured))
        present = count
    return costs


async def add_to_unloaded(client: TaskQueueClient, name: str) -> None:
    """Add a task to a task queue that no host has loaded. On a busy machine, loading may outlast an attempt."""
    while True:
        try:
            await client.add(name, b"x")
        except CallLost:
            continue
        return


def measure_keys(place: Place, counts: Sequence[int], calls: int, say: Callable[[str], None]) -> Costs:
    """Costs with more and more fairness keys in one backlog."""
    costs: Costs = {}
    for count in counts:
        name = f"keys-{count}"
        asyncio.run(fill_keys(place, name, count))
        place.settle()
        say(f"{place.kind}: a backlog of {count:,} fairness keys written")

        async def measure(measured: Measured, name: str = name, count: int = count) -> None:
            chosen = random.Random(1)
            async with connect(measured.host_address) as client:
                before_s = measured.cpu_s()
                await add_to_unloaded(client, name)
                await asyncio.sleep(SETTLE_S)
                costs.setdefault("load, once", {})[count] = (measured.cpu_s() - before_s) * 1e3
                operations: dict[str, Call] = {
                    "add, with a key of the backlog": lambda: client.add(
                        name, b"x", fairness_key=f"key-{chosen.randrange(count)}"
                    ),
                    "add, with a new key": lambda: client.add(name, b"x", fairness_key=str(uuid.uuid4())),
                    "poll": lambda: poll(client, name),
                }
                made = min(calls, (count - 2 * WARM_UP_CALLS) // ROUNDS)
                for title, call in operations.items():
                    costs.setdefault(title, {})[count] = await cost_ms(measured, call, made)

        with place.serving() as measured:
            asyncio.run(measure(measured))
    return costs


def measure_events(place: Place, counts: Sequence[int], calls: int, say: Callable[[str], None]) -> Costs:
    """Costs with more and more events in the history of one workflow, which are signals."""
    costs: Costs = {}

    async def measure(measured: Measured) -> None:
        client = await Client.connect(measured.server.address)
        service = client.workflow_service
        handle = await client.start_workflow("Grow", "x", id="long", task_queue=TASK_QUEUE)

        async def describe() -> None:
            await handle.describe()

        async def latest_event() -> None:
            await service.get_workflow_execution_history_reverse(
                api.GetWorkflowExecutionHistoryReverseRequest(
                    namespace=NAMESPACE, execution=WorkflowExecution(workflow_id="long"), maximum_page_size=1
                )
            )

        for count in counts:
            while (present := (await handle.describe()).history_length) < count:
                await _repeat(lambda: signal(service, "long"), min(count - present, 10_000))
            place.settle()
            say(f"{place.kind}: a history of {count:,} events written")
            for title, call in (
                ("describe", describe),
                ("read the last event", latest_event),
                ("signal", lambda: signal(service, "long")),
            ):
                costs.setdefault(title, {})[count] = await cost_ms(measured, call, calls)

    with place.serving() as measured:
        asyncio.run(measure(measured))
    return costs


async def poll(client: TaskQueueClient, task_queue: str) -> None:
    if await client.poll(task_queue, timeout_s=30) is None:
        raise AssertionError(f"no task in {task_queue!r}")


def measure_idle(place: Place, seconds: float) -> dict[str, float]:
    """Measure a server without calls: its share of a core; on PostgreSQL also its transactions per second."""
    with place.serving() as measured:
        # Wait until the CPU use falls: after its start, a server first takes its shards and reads their queues.
        spent_s, is_calm = measured.server.cpu_s(), False
        while not is_calm:
            time.sleep(SETTLE_S)
            before_s, spent_s = spent_s, measured.server.cpu_s()
            is_calm = spent_s - before_s < CALM_CPU_MAX * SETTLE_S
        # PostgreSQL's processes report their transactions after ten seconds at the latest.
        time.sleep(STATISTICS_S)
        server_s = measured.server.cpu_s()
        postgres = measured.postgres
        before = (postgres.cpu_s(), postgres.counts()[0]) if postgres else (0.0, 0)
        began_s = time.monotonic()
        time.sleep(seconds)
        took_s = time.monotonic() - began_s
        idle = {"server_cpu": (measured.server.cpu_s() - server_s) / took_s}
        if postgres:
            # The query that counts transactions is a transaction, too.
            idle["transactions_per_s"] = (postgres.counts()[0] - before[1] - 1) / took_s
            idle["postgres_cpu"] = (postgres.cpu_s() - before[0]) / took_s
    return idle


def show(kind: str, findings: Findings) -> list[Aim]:
    """Print the tables of one kind of store; return its figures with an aim."""
    aims = []
    for subject, costs in findings.costs.items():
        sizes = sorted({size for by_size in costs.values() for size in by_size})
        table = Table(
            "CPU ms for each call",
            *(f"{size:,}" for size in sizes),
            "times",
            title=f"{kind}, {subject}; load average {os.getloadavg()[0]:.1f}",
        )
        for title, by_size in costs.items():
            ratio = by_size[sizes[-1]] / max(by_size[sizes[0]], 1e-6)
            # Work that happens once after a change of owner may grow.
            if len(sizes) > 1 and not title.endswith("once"):
                name = f"{kind}: {title}, {sizes[-1]:,} {subject} against {sizes[0]:,}"
                aims.append(Aim(name, ratio, RATIO_MAX, "less", reached_min=RATIO_REACHED_MIN))
            table.add_row(title, *(f"{by_size[size]:,.2f}" for size in sizes), f"{ratio:.2f}")
        Console(width=120).print(table)
    if findings.idle:
        idle = findings.idle
        percent = idle["server_cpu"] * 100
        aims.append(
            Aim(f"{kind}: % of a core, idle", percent, IDLE_CPU_MAX * 100, "less", reached_min=RATIO_REACHED_MIN)
        )
        if kind == POSTGRES:
            title = f"{kind}: transactions per second, idle"
            aims.append(Aim(title, idle["transactions_per_s"], IDLE_TRANSACTIONS_MAX, "less"))
            print(f"{kind}, idle: PostgreSQL takes {idle['postgres_cpu']:.2%} of a core")
    return aims


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    subjects = ("workflows", "task queues", "keys", "events", "idle")
    parser.add_argument("--quick", action="store_true", help="two small sizes, and fewer calls")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="WORKFLOWS", help="numbers of workflows, ascending")
    parser.add_argument("--stores", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", nargs="+", choices=subjects, default=list(subjects))
    parser.add_argument("--json", action="store_true", help="print JSON in place of the tables")
    options = parser.parse_args()
    is_quick = options.quick
    calls = CALLS_QUICK if is_quick else CALLS
    sizes = options.sizes or (RUN_COUNTS_QUICK if is_quick else RUN_COUNTS)
    measures = {
        "workflows": (measure_runs, sizes),
        "task queues": (measure_queues, QUEUE_COUNTS_QUICK if is_quick else QUEUE_COUNTS),
        "keys": (measure_keys, KEY_COUNTS_QUICK if is_quick else KEY_COUNTS),
        "events": (measure_events, EVENT_COUNTS_QUICK if is_quick else EVENT_COUNTS),
    }
    errors = Console(stderr=True)
    found: dict[str, Findings] = {}
    for kind, subject in itertools.product(options.stores, options.only):
        findings = found.setdefault(kind, Findings())
        with new_place(kind) as place:
            if subject == "idle":
                findings.idle = measure_idle(place, IDLE_S_QUICK if is_quick else IDLE_S)
            else:
                measure, counts = measures[subject]
                findings.costs[subject] = measure(place, counts, calls, errors.print)
    if options.json:
        print(json.dumps({kind: vars(findings) for kind, findings in found.items()}, indent=2))
        return
    aims = [aim for kind, findings in found.items() for aim in show(kind, findings)]
    if missed := show_aims(aims):
        sys.exit("missed by more than noise: " + "; ".join(missed))


if __name__ == "__main__":
    main()
