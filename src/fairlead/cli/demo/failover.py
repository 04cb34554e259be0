"""The second part: a namespace fails over between clusters while workflows run, once because one is killed."""

import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from temporalio.api.history.v1 import History
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.cli.demo.clusters import NAMES, POLL_S, Clusters, clusters
from fairlead.cli.demo.shipments import LEGS, Shipment, carry
from fairlead.cli.demo.stage import Stage
from fairlead.core.errors import GiveUp

QUEUE = "shipments"
# Number of workflows that run during each of the two failovers.
SHIPMENTS = 12
RESULT_S_MAX = 60.0
WRITTEN_S = 0.6


class NotTheSame(GiveUp):
    """The clusters' histories or results are wrong: the demonstration has failed."""


async def failover(stage: Stage) -> None:
    """Show a graceful failover, then a forced one; every workflow completes once, with the right result."""
    # Suppress the SDK's logs about lost servers, which are expected here.
    logging.getLogger("temporalio").setLevel(logging.CRITICAL)
    east, west = NAMES
    with tempfile.TemporaryDirectory(prefix="fairlead-demo-") as folder:
        async with clusters(Path(folder), stage.journal) as both:
            timeline = _Timeline(stage)
            timeline.line(f"Clusters {east} and {west} are ready. The namespace is in both, and active in {east}.")
            ids = [f"shipment-{number}" for number in range(2 * SHIPMENTS)]
            async with _workers(both, *NAMES):
                await _begin(await both.client(east), ids[:SHIPMENTS])
                timeline.line(f"{SHIPMENTS} workflows run in {east}; each does {LEGS} activities and waits.")
                began_s = time.monotonic()
                version = await both.fail_over(west, is_graceful=True)
                took_s = time.monotonic() - began_s
                timeline.line(f"Graceful failover: {west} is active, at version {version}, after {took_s:.2f} s.")
                # Either cluster accepts the signals: east forwards them.
                await _send_destination(await both.client(east), ids[:SHIPMENTS], west)
                await _begin(await both.client(west), ids[SHIPMENTS:])
                await asyncio.sleep(WRITTEN_S)
            async with _workers(both, east):
                await both.kill(west)
                timeline.line(f"{west} is killed, while {SHIPMENTS} more workflows run.")
                version = await both.fail_over(east, is_graceful=False)
                timeline.line(
                    f"Forced failover: {east} is active, at version {version}, and continues with its events."
                )
                await _come_back(both, west)
                timeline.line(
                    f"{west} is back; {east} gets the events that only {west} had, and {west} those that it missed."
                )
                client = await both.client(east)
                await _arrived(client, ids)
            events = await _same(await both.client(east), await both.client(west), ids)
            timeline.line(
                f"All {len(ids)} workflows completed, once and right. Both clusters have the same {events:,} events."
            )


class _Timeline:
    """Prints lines with the elapsed time."""

    def __init__(self, stage: Stage) -> None:
        self._console = stage.console
        self._began_s = time.monotonic()

    def line(self, words: str) -> None:
        passed_s = time.monotonic() - self._began_s
        self._console.print(f"{passed_s:5.1f} s: {words}", highlight=False, markup=False)


@asynccontextmanager
async def _workers(both: Clusters, *names: str) -> AsyncIterator[None]:
    """Run a worker at each of these clusters, like two data centers."""
    workers = [
        Worker(
            await both.client(name),
            task_queue=QUEUE,
            workflows=[Shipment],
            activities=[carry],
            workflow_runner=UnsandboxedWorkflowRunner(),
            graceful_shutdown_timeout=timedelta(seconds=1),
        )
        for name in names
    ]
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        await asyncio.gather(*(worker.shutdown() for worker in workers), return_exceptions=True)
        await asyncio.gather(*tasks, return_exceptions=True)


async def _begin(client: Client, ids: list[str]) -> None:
    await asyncio.gather(*(client.start_workflow(Shipment.run, id=each, task_queue=QUEUE) for each in ids))


async def _send_destination(client: Client, ids: list[str], where: str) -> None:
    await asyncio.gather(*(_handle(client, each).signal(Shipment.set_destination, where) for each in ids))


def _handle(client: Client, workflow_id: str) -> WorkflowHandle[Shipment, tuple[int, list[str]]]:
    return client.get_workflow_handle_for(Shipment.run, workflow_id)


async def _come_back(both: Clusters, name: str) -> None:
    await both.start(name)
    await both.until_active(NAMES[0])


async def _arrived(client: Client, ids: list[str]) -> None:
    """Signal the second half of the workflows as soon as this cluster has them; wait for all, and check each result."""
    async with asyncio.timeout(RESULT_S_MAX):
        for each in ids[SHIPMENTS:]:
            while True:
                try:
                    await _handle(client, each).signal(Shipment.set_destination, NAMES[0])
                    break
                except RPCError:
                    # The workflow was started in the other cluster just before the kill, and is not replicated yet.
                    await asyncio.sleep(POLL_S)
        results = await asyncio.gather(*(_handle(client, each).result() for each in ids))
    for each, (carried, destinations) in zip(ids, results, strict=True):
        where = NAMES[1] if each in ids[:SHIPMENTS] else NAMES[0]
        if (carried, destinations) != (LEGS, [where]):
            raise NotTheSame(f"workflow {each} completed with {carried} legs and the signals {destinations}")


async def _same(one: Client, other: Client, ids: list[str]) -> int:
    """Wait until both clusters have the same histories; return their number of events."""
    ours: list[History] = []
    try:
        async with asyncio.timeout(RESULT_S_MAX):
            while True:
                ours, theirs = [await _histories(client, ids) for client in (one, other)]
                if ours == theirs:
                    return sum(len(history.events) for history in ours)
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise NotTheSame("the two clusters do not have the same histories") from None


async def _histories(client: Client, ids: list[str]) -> list[History]:
    found = []
    for each in ids:
        fetched = await client.get_workflow_handle(each).fetch_history()
        found.append(History(events=fetched.events))
    return found
