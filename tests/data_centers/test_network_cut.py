"""The network between two clusters is cut while both write; after it heals, they converge."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus

from tests.data_centers.convergence import Run, Seen, converged, reconciled
from tests.data_centers.processes import World, clusters, until
from tests.data_centers.programs import ACTIVITY_IS_OVER, Acknowledged, result_of, worker
from tests.data_centers.wires import Cut

ORDERS = [f"order-{number}" for number in range(8)]
# Signal numbers of each order: before the cut, on either side of it, and afterwards.
BEFORE, AT_A, AT_B, AFTER = range(2), range(2, 5), range(5, 8), range(8, 9)
WANTED = 9


async def tell_all(teller: Acknowledged, orders: Sequence[str], numbers: range) -> None:
    """Every signal is acknowledged when this returns."""
    await asyncio.gather(*(teller.signal(order, number) for order in orders for number in numbers))


def signals_of(one: Seen) -> Counter[str]:
    """The request ids of the signals on the current branch of a run."""
    return Counter(
        event.workflow_execution_signaled_event_attributes.request_id
        for event in one.history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    )


@pytest.mark.timeout(400)
@pytest.mark.filterwarnings(ACTIVITY_IS_OVER)
@pytest.mark.parametrize("how", list(Cut))
async def test_clusters_that_both_write_during_a_network_cut_converge_afterwards(
    how: Cut, tmp_path: Path, spark: SparkSession
) -> None:
    """NDC-1, FL-55."""
    async with clusters(tmp_path, "a", "b") as world:
        await world.until_connected()
        await world.share(active="a")
        async with AsyncExitStack() as stack:
            for cluster in world.running:
                await stack.enter_async_context(worker(await cluster.connect(), identity=f"worker-of-{cluster.name}"))
            await _live_through_a_cut(world, how)
        runs = await converged(world)
        _check(runs)
        assert await reconciled(world, spark, tmp_path) == len(runs)


async def _live_through_a_cut(world: World, how: Cut) -> None:
    a, b = [Acknowledged([await cluster.connect()]) for cluster in world.running]
    await asyncio.gather(*(a.start(order, number, WANTED) for number, order in enumerate(ORDERS)))
    await tell_all(b, ORDERS, BEFORE)
    await world.until_caught_up()

    await world.cut_off("a", how)
    assert await world.fail_over("b") == 2
    await asyncio.gather(tell_all(a, ORDERS, AT_A), tell_all(b, ORDERS, AT_B))
    # The same workflow is started on both sides.
    await asyncio.gather(a.start("both", 100, 4), b.start("both", 100, 4))
    await asyncio.gather(*(teller.signal("both", number) for teller, number in ((a, 0), (a, 1), (b, 2))))

    async def has_both_versions() -> bool:
        return await _versions(world, "b") == {1, 2}

    # Signals to b are buffered while a worker of a holds a workflow task: until that task times out in b.
    await until(has_both_versions, "events of both versions in b")
    assert await _versions(world, "a") == {1}

    world.heal()
    await world.until_active("b")
    await asyncio.gather(tell_all(a, ORDERS, AFTER), b.signal("both", 3))
    results = await asyncio.gather(*(b.result(order) for order in [*ORDERS, "both"]))
    assert results == [result_of(number, WANTED) for number in range(len(ORDERS))] + [result_of(100, 4)]


async def _versions(world: World, name: str) -> set[int]:
    """The versions of all events that a cluster shows of the orders."""
    client = await world[name].connect()
    histories = [await client.get_workflow_handle(order).fetch_history() for order in ORDERS]
    return {event.version for history in histories for event in history.events}


def _check(runs: Mapping[Run, Seen]) -> None:
    for order in [*ORDERS, "both"]:
        mine = {run: one for run, one in runs.items() if run.workflow_id == order}
        (ended,) = [one for one in mine.values() if one.status is WorkflowExecutionStatus.COMPLETED]
        wanted = 4 if order == "both" else WANTED
        assert signals_of(ended) == Counter(f"{order}/{number}" for number in range(wanted))
        if order != "both":
            assert len(ended.branches) == 2
    others = [one.status for run, one in runs.items() if one.status is not WorkflowExecutionStatus.COMPLETED]
    assert others == [WorkflowExecutionStatus.TERMINATED]
