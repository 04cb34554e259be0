"""The first part: four tenants share a task queue, one of them floods it, and the scaler follows the load."""

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.live import Live
from rich.table import Table
from temporalio.client import Client
from temporalio.common import Priority
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.cli.admin.cluster import connect
from fairlead.cli.demo.orders import Order, Packing
from fairlead.cli.demo.server import server
from fairlead.cli.demo.stage import Stage
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskType
from fairlead.settings import Plain

QUEUE = "parcels"
# Concurrent activities of the worker: it packs about a hundred parcels per second, fewer than the flood orders.
SLOTS = 8
# Begin and end of the flood, as shares of the time.
FLOOD_SHARE = (0.2, 0.45)
POLL_S = 1.0
LINE_S = 5.0
RECENT_S = 4.0

# Values for half a minute; in production, use minutes.
SETTINGS: dict[str, Plain] = {
    "matching.enableAdaptiveScaler": True,
    "matching.partitionUpscaleRPS": 40.0,
    "matching.partitionUpscaleSustainedDuration": "2s",
    "matching.partitionDownscaleSustainedDuration": "3s",
    "matching.adaptiveScalerUpdateInterval": "1s",
    "matching.qpsTrackerInterval": "1s",
    "journal.backlogInterval": "1s",
}


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant: its fairness weight, the parcels per order, and the seconds between orders."""

    name: str
    weight: float
    parcels: int
    every_s: float
    is_flood: bool = False


TENANTS = (
    Tenant("acme", 1.0, 3, 0.5),
    Tenant("globex", 1.0, 3, 0.5),
    Tenant("initech", 3.0, 6, 0.5),
    Tenant("hooli", 1.0, 40, 0.15, is_flood=True),
)


@dataclass(slots=True)
class Seen:
    """The parcels ordered so far, and the number of partitions."""

    ordered: dict[str, int] = field(default_factory=dict)
    partitions: int = 1
    partitions_max: int = 1


async def tenants(stage: Stage) -> None:
    """Run the part for the stage's duration."""
    # Suppress the SDK's logs about failed attempts, which are expected here.
    logging.getLogger("temporalio").setLevel(logging.CRITICAL)
    async with server(stage.journal, SETTINGS, store=stage.store) as running:
        stage.console.print(f"A server is ready at {running.address}, with a journal in {stage.journal}.")
        stage.console.print(f"Watch it in the console: {running.console}", highlight=False, soft_wrap=True)
        stage.console.print(
            f"Workers of Temporal's SDK pack parcels for {stage.seconds:g} s. hooli will flood them; initech "
            "has three times the weight of the others."
        )
        client = await Client.connect(running.address)
        packing, seen = Packing(), Seen()
        async with new_worker(client, packing), asyncio.TaskGroup() as group:
            helping = [
                group.create_task(_watch(running.admin_address, seen)),
                group.create_task(_print_progress(stage, packing, seen)),
            ]
            await asyncio.gather(*(_keep_ordering(client, tenant, stage.seconds, seen) for tenant in TENANTS))
            for task in helping:
                task.cancel()
        # Print the table once, unless a terminal has shown it all the time.
        if not stage.console.is_terminal:
            stage.console.print(_table(packing, seen, recent_s=stage.seconds))
        stage.console.print(_verdict(packing, seen))


def new_worker(client: Client, packing: Packing) -> Worker:
    """Return a worker that packs the parcels of all tenants."""
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=[Order],
        activities=[packing.pack],
        max_concurrent_activities=SLOTS,
        # The sandbox would import this whole command again for each workflow.
        workflow_runner=UnsandboxedWorkflowRunner(),
        # Tasks in flight at the end are abandoned: the server keeps them.
        graceful_shutdown_timeout=timedelta(seconds=1),
    )


async def order(client: Client, tenant: Tenant, name: str) -> None:
    """Start the workflow of one order."""
    await client.start_workflow(
        Order.run,
        args=[tenant.name, tenant.weight, tenant.parcels],
        id=f"order-{tenant.name}-{name}",
        task_queue=QUEUE,
        priority=Priority(fairness_key=tenant.name, fairness_weight=tenant.weight),
    )


async def _keep_ordering(client: Client, tenant: Tenant, seconds: float, seen: Seen) -> None:
    """Order at the tenant's rate until the time is over; the flood lasts for `FLOOD_SHARE` of it."""
    begin_s = time.monotonic()
    first_s, last_s = (begin_s + share * seconds for share in (FLOOD_SHARE if tenant.is_flood else (0.0, 1.0)))
    await asyncio.sleep(first_s - begin_s)
    number = 0
    while time.monotonic() < last_s:
        await order(client, tenant, str(number))
        number += 1
        seen.ordered[tenant.name] = number * tenant.parcels
        next_s = first_s + number * tenant.every_s
        await asyncio.sleep(max(0.0, min(next_s, last_s) - time.monotonic()))
    await asyncio.sleep(max(0.0, begin_s + seconds - time.monotonic()))


async def _watch(address: str, seen: Seen) -> None:
    """Poll the number of partitions of the task queue, like `fairlead admin tasklist describe`."""
    async with connect(address, timeout_s=POLL_S) as cluster:
        while True:
            await asyncio.sleep(POLL_S)
            # A busy server may respond late; the next poll will do.
            with suppress(FairleadError):
                for task_queue in await cluster.task_queues(None):
                    if (task_queue.name, task_queue.type) == (QUEUE, TaskType.ACTIVITY):
                        described = await cluster.describe(task_queue, must_exist=False)
                        seen.partitions = described.config.write
                        seen.partitions_max = max(seen.partitions_max, seen.partitions)


async def _print_progress(stage: Stage, packing: Packing, seen: Seen) -> None:
    """Show the progress: a live table on a terminal, else a line every few seconds."""
    begin_s = time.monotonic()
    if stage.console.is_terminal:
        with Live(console=stage.console, auto_refresh=False) as live:
            while True:
                live.update(_table(packing, seen, recent_s=RECENT_S), refresh=True)
                await asyncio.sleep(POLL_S)
    while True:
        await asyncio.sleep(min(LINE_S, stage.seconds / 2))
        waits = ", ".join(f"{tenant.name} {_wait(packing, tenant, RECENT_S)}" for tenant in TENANTS)
        passed_s = time.monotonic() - begin_s
        stage.console.print(f"{passed_s:3.0f} s: waits: {waits}; partitions: {seen.partitions}", highlight=False)


def _table(packing: Packing, seen: Seen, *, recent_s: float) -> Table:
    partitions = "1 partition" if seen.partitions == 1 else f"{seen.partitions} partitions"
    table = Table(title=f"task queue {QUEUE!r}: {partitions}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("tenant")
    for heading in ("weight", "ordered", "packed", "waiting", "median wait"):
        table.add_column(heading, justify="right")
    for tenant in TENANTS:
        ordered, packed = seen.ordered.get(tenant.name, 0), packing.packed[tenant.name]
        waiting = f"{max(0, ordered - packed):,}"
        row = (f"{tenant.weight:g}", f"{ordered:,}", f"{packed:,}", waiting, _wait(packing, tenant, recent_s))
        table.add_row(tenant.name, *row)
    return table


def _wait(packing: Packing, tenant: Tenant, recent_s: float) -> str:
    since_s = time.monotonic() - recent_s
    recent = [wait_s for at_s, wait_s in packing.waits_s.get(tenant.name, ()) if at_s >= since_s]
    return f"{median(recent):.2f} s" if recent else "-"


def _verdict(packing: Packing, seen: Seen) -> str:
    """Return the result in one sentence."""
    waits = {
        is_flood: [
            wait_s
            for tenant in TENANTS
            if tenant.is_flood is is_flood
            for _, wait_s in packing.waits_s.get(tenant.name, ())
        ]
        for is_flood in (True, False)
    }
    if not waits[True] or not waits[False]:
        return "The time was too short for a result: raise --seconds."
    return (
        f"The flooding tenant waited {median(waits[True]):.2f} s (median), the other tenants "
        f"{median(waits[False]):.2f} s. The scaler used up to {seen.partitions_max} partitions."
    )
