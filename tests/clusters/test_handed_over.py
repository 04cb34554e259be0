"""A graceful failover under calls: nobody sees an error, and nothing that was acknowledged is lost or done twice."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from temporalio.api.common.v1 import WorkflowType
from temporalio.api.enums.v1 import EventType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest, StartWorkflowExecutionRequest
from temporalio.client import Client

from tests.clusters.converging import converged, reconciled
from tests.clusters.processes import World, clusters
from tests.sdk.stage import execution

QUEUE = "nobody-polls-this"
FAILOVERS = 6
SOME_CALLS = 8
LATENCY_S = 0.1
# No call waits longer than a hand-over may take, and what a very busy machine adds to it.
CALL_S_MAX = 15.0


class Caller:
    """Starts workflows and signals them without a pause, and tries nothing again."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self.calls = 0
        self.slowest_s = 0.0

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            began_s = time.monotonic()
            await (self._signal() if self.calls % 4 else self._start())
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
            self.calls += 1

    async def _start(self) -> None:
        await self._client.workflow_service.start_workflow_execution(
            StartWorkflowExecutionRequest(
                namespace=self._client.namespace,
                workflow_id=self._workflow,
                workflow_type=WorkflowType(name="Any"),
                task_queue=TaskQueue(name=QUEUE),
                request_id=f"call-{self.calls}",
            )
        )

    async def _signal(self) -> None:
        await self._client.workflow_service.signal_workflow_execution(
            SignalWorkflowExecutionRequest(
                namespace=self._client.namespace,
                workflow_execution=execution(self._workflow),
                signal_name=str(self.calls),
                request_id=f"call-{self.calls}",
            )
        )

    async def until_more(self) -> None:
        """Wait until some more calls have ended."""
        wanted = self.calls + SOME_CALLS
        while self.calls < wanted:  # noqa: ASYNC110 - a test that waits too long is ended by its own time
            await asyncio.sleep(0.01)

    @property
    def _workflow(self) -> str:
        return f"{self._name}-{self.calls // 4}"

    @property
    def acknowledged(self) -> Counter[tuple[str, int]]:
        """What each workflow was told: the numbers of the calls."""
        return Counter((f"{self._name}-{call // 4}", call) for call in range(self.calls) if call % 4)


async def hand_over_and_back(world: World, callers: list[Caller]) -> list[float]:
    """How long each took."""
    durations_s: list[float] = []
    for number in range(FAILOVERS):
        await asyncio.gather(*(caller.until_more() for caller in callers))
        began_s = time.monotonic()
        await world.fail_over("ab"[1 - number % 2], is_graceful=True)
        durations_s.append(time.monotonic() - began_s)
    await asyncio.gather(*(caller.until_more() for caller in callers))
    return durations_s


@pytest.mark.timeout(300)
async def test_no_call_fails_and_no_signal_is_lost_while_a_namespace_is_handed_over(
    tmp_path: Path, spark: SparkSession
) -> None:
    async with clusters(tmp_path, "a", "b") as world:
        await world.until_connected()
        await world.share(active="a")
        # The target is behind by so much whenever a hand-over begins.
        for wire in world.wires.values():
            wire.latency_s = LATENCY_S
        callers = [Caller(await cluster.connect(), f"of-{cluster.name}") for cluster in world.running]
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for caller in callers:
                group.create_task(caller.run(over))
            durations_s = await hand_over_and_back(world, callers)
            over.set()
        runs = await converged(world)
        told = Counter(
            (run.workflow_id, int(event.workflow_execution_signaled_event_attributes.signal_name))
            for run, one in runs.items()
            for event in one.history.events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
        )
        assert told == callers[0].acknowledged + callers[1].acknowledged
        # Nothing was ever written on two sides.
        assert all(len(one.branches) == 1 for one in runs.values())
        assert max(event.version for one in runs.values() for event in one.history.events) == 31
        slowest_s = max(caller.slowest_s for caller in callers)
        assert slowest_s < CALL_S_MAX, f"the hand-overs took {durations_s}"
        assert await reconciled(world, spark, tmp_path) == len(runs)
