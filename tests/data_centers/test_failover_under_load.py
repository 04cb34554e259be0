"""Failovers back and forth between two clusters, under running workflows: some by force, with the old cluster killed.

Every workflow ends with the right result, once; every signal that was acknowledged is counted once.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus, WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from tests.data_centers.convergence import Seen, converged, reconciled
from tests.data_centers.processes import World, clusters
from tests.data_centers.programs import ACTIVITY_IS_OVER, ROUNDS, Acknowledged, Order, result_of, worker
from tests.depth import IS_DEEP


class Load(NamedTuple):
    """Size of the load."""

    workflows: int
    failovers: int
    # Minimum duration of the signals in seconds.
    signals_s: float


# `make sim` runs the full load.
LOAD = Load(200, 10, 50.0) if IS_DEEP else Load(30, 4, 12.0)
SIGNALS = 4
SEED = 20_261_116
PAUSE_S = (0.5, 2.0)
ALONE_S = (0.2, 1.0)
AWAY_S = (0.5, 2.0)
END_S_MAX = 240.0


async def live(teller: Acknowledged, number: int, over: asyncio.Event, chance: random.Random) -> list[int]:
    """Start a workflow and signal it; the last signal comes after all failovers."""
    name = f"order-{number}"
    await teller.start(name, number, SIGNALS)
    for each in range(SIGNALS - 1):
        await asyncio.sleep(chance.uniform(0, LOAD.signals_s / SIGNALS))
        await teller.signal(name, each)
    await over.wait()
    await teller.signal(name, SIGNALS - 1)
    return await teller.result(name)


async def fail_over_and_back(world: World, chance: random.Random) -> list[int]:
    """Fail over back and forth, half of the times by force, from either cluster; returns the namespace's versions."""
    versions: list[int] = []
    here, there = "a", "b"
    for number in range(LOAD.failovers):
        await asyncio.sleep(chance.uniform(*PAUSE_S))
        if number % 4 in (1, 2):
            # Events that this cluster acknowledges from now on are only on its own disk.
            await world.cut_off(here)
            await asyncio.sleep(chance.uniform(*ALONE_S))
            await world[here].kill()
            versions.append(await world.fail_over(there))
            await asyncio.sleep(chance.uniform(*AWAY_S))
            await world[here].start()
            world.heal()
            await world.until_active(there)
        else:
            versions.append(await world.fail_over(there, is_graceful=True))
        here, there = there, here
    return versions


def check(number: int, runs: Sequence[Seen]) -> None:
    """One run completed; it has every signal once, and each of its activities completed once."""
    (ended,) = [one for one in runs if one.status is WorkflowExecutionStatus.COMPLETED]
    events = ended.history.events
    assert [event.event_id for event in events] == list(range(1, len(events) + 1))
    received = Counter(
        event.workflow_execution_signaled_event_attributes.request_id
        for event in events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    )
    assert received == Counter(f"order-{number}/{each}" for each in range(SIGNALS))
    ends = [
        event.activity_task_completed_event_attributes.scheduled_event_id
        for event in events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
    ]
    assert len(ends) == len(set(ends)) == ROUNDS
    # Only a start that was not acknowledged, and was repeated elsewhere, may leave another run.
    others = [one.status for one in runs if one is not ended]
    assert set(others) <= {WorkflowExecutionStatus.TERMINATED}


async def live_all(world: World, chance: random.Random) -> None:
    """Run all workflows to their end, through all failovers."""
    clients = [await cluster.connect() for cluster in world.running]
    tellers = [Acknowledged(clients), Acknowledged(clients[::-1])]
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        living = [
            group.create_task(live(tellers[number % 2], number, over, chance)) for number in range(LOAD.workflows)
        ]
        versions = await fail_over_and_back(world, chance)
        assert not any(task.done() for task in living)
        over.set()
        async with asyncio.timeout(END_S_MAX):
            results = await asyncio.gather(*living)
    expected_version, expected = 1, []
    for number in range(LOAD.failovers):
        # The version of B, then that of A, and so on.
        expected_version += 9 if number % 2 else 1
        expected.append(expected_version)
    assert versions == expected
    assert results == [result_of(number, SIGNALS) for number in range(LOAD.workflows)], f"seed {SEED}"


@pytest.mark.sim
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings(ACTIVITY_IS_OVER)
async def test_every_workflow_completes_once_despite_failovers_and_killed_clusters(
    tmp_path: Path, spark: SparkSession
) -> None:
    chance = random.Random(SEED)
    async with clusters(tmp_path, "a", "b") as world:
        await world.until_connected()
        await world.share(active="a")
        async with AsyncExitStack() as stack:
            for cluster in world.running:
                await stack.enter_async_context(worker(await cluster.connect(), identity=f"worker-of-{cluster.name}"))
            await live_all(world, chance)
        runs = await converged(world)
        for number in range(LOAD.workflows):
            check(number, [one for run, one in runs.items() if run.workflow_id == f"order-{number}"])
        assert any(len(one.branches) > 1 for one in runs.values()), "no failover has cost anything: it was too quiet"
        replayer = Replayer(workflows=[Order], workflow_runner=UnsandboxedWorkflowRunner())
        for run, one in list(runs.items())[::5]:
            await replayer.replay_workflow(WorkflowHistory(run.workflow_id, one.history.events))
        assert await reconciled(world, spark, tmp_path) == len(runs)
