"""The second part: a namespace moves from cluster to cluster while workflows run, once because one is killed."""

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

from fairlead.cli.demo.clusters import LOOK_S, NAMES, Clusters, clusters
from fairlead.cli.demo.shipments import LEGS, Shipment, carry
from fairlead.cli.demo.stage import Stage
from fairlead.core.errors import GiveUp

QUEUE = "shipments"
# Of each half: one is under way at each failover.
SHIPMENTS = 12
RESULT_S_MAX = 60.0
WRITTEN_S = 0.6


class NotTheSame(GiveUp):
    """The clusters did not come to hold the same: the demonstration has failed."""


async def failover(stage: Stage) -> None:
    """Show a graceful failover, then a forced one; every workflow ends, once, with the right result."""
    # That a server is gone is part of this, and none of the SDK's to tell here.
    logging.getLogger("temporalio").setLevel(logging.CRITICAL)
    east, west = NAMES
    with tempfile.TemporaryDirectory(prefix="fairlead-demo-") as folder:
        async with clusters(Path(folder), stage.journal) as both:
            tell = _Teller(stage)
            tell.line(f"Clusters {east} and {west} are ready. The namespace lives in both, and is active in {east}.")
            ids = [f"shipment-{number}" for number in range(2 * SHIPMENTS)]
            async with _workers(both, *NAMES):
                await _begin(await both.client(east), ids[:SHIPMENTS])
                tell.line(f"{SHIPMENTS} workflows are on their way in {east}; each does {LEGS} activities and waits.")
                began_s = time.monotonic()
                version = await both.fail_over(west, is_graceful=True)
                took_s = time.monotonic() - began_s
                tell.line(f"Graceful failover: {west} is active, at version {version}, after {took_s:.2f} s.")
                # Whichever cluster is asked: east sends it on.
                await _tell(await both.client(east), ids[:SHIPMENTS], west)
                await _begin(await both.client(west), ids[SHIPMENTS:])
                await asyncio.sleep(WRITTEN_S)
            async with _workers(both, east):
                await both.kill(west)
                tell.line(f"{west} is killed, with {SHIPMENTS} more workflows on their way.")
                version = await both.fail_over(east, is_graceful=False)
                tell.line(f"Forced failover: {east} is active, at version {version}, and goes on with what it has.")
                await _come_back(both, west)
                tell.line(f"{west} is back; what only it had written comes to {east}, and what it missed to {west}.")
                client = await both.client(east)
                await _arrived(client, ids)
            events = await _same(await both.client(east), await both.client(west), ids)
            tell.line(f"All {len(ids)} workflows ended, once and right. Both clusters hold the same {events:,} events.")


class _Teller:
    """Says what happens, and when."""

    def __init__(self, stage: Stage) -> None:
        self._console = stage.console
        self._began_s = time.monotonic()

    def line(self, words: str) -> None:
        passed_s = time.monotonic() - self._began_s
        self._console.print(f"{passed_s:5.1f} s: {words}", highlight=False, markup=False)


@asynccontextmanager
async def _workers(both: Clusters, *names: str) -> AsyncIterator[None]:
    """A worker at each of these clusters, as two data centers have them."""
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


async def _tell(client: Client, ids: list[str], where: str) -> None:
    await asyncio.gather(*(_handle(client, each).signal(Shipment.tell, where) for each in ids))


def _handle(client: Client, workflow_id: str) -> WorkflowHandle[Shipment, tuple[int, list[str]]]:
    return client.get_workflow_handle_for(Shipment.run, workflow_id)


async def _come_back(both: Clusters, name: str) -> None:
    await both.start(name)
    await both.until_active(NAMES[0])


async def _arrived(client: Client, ids: list[str]) -> None:
    """Tell the second half where to go, when it is known here, and wait for all; each result must be right."""
    async with asyncio.timeout(RESULT_S_MAX):
        for each in ids[SHIPMENTS:]:
            while True:
                try:
                    await _handle(client, each).signal(Shipment.tell, NAMES[0])
                    break
                except RPCError:
                    # It was begun in the other cluster at the last moment, and is yet to come.
                    await asyncio.sleep(LOOK_S)
        results = await asyncio.gather(*(_handle(client, each).result() for each in ids))
    for each, (carried, told) in zip(ids, results, strict=True):
        where = NAMES[1] if each in ids[:SHIPMENTS] else NAMES[0]
        if (carried, told) != (LEGS, [where]):
            raise NotTheSame(f"workflow {each} ended with {carried} legs and was told {told}")


async def _same(one: Client, other: Client, ids: list[str]) -> int:
    """Wait until both clusters tell the same of all workflows; how many events these are."""
    ours: list[History] = []
    try:
        async with asyncio.timeout(RESULT_S_MAX):
            while True:
                ours, theirs = [await _histories(client, ids) for client in (one, other)]
                if ours == theirs:
                    return sum(len(history.events) for history in ours)
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise NotTheSame("the two clusters do not tell the same of all workflows") from None


async def _histories(client: Client, ids: list[str]) -> list[History]:
    found = []
    for each in ids:
        fetched = await client.get_workflow_handle(each).fetch_history()
        found.append(History(events=fetched.events))
    return found
