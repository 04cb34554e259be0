"""A graceful failover under load: no call fails, and nothing acknowledged is lost or done twice."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from pyspark.sql import SparkSession
from temporalio.api.command.v1 import Command, ScheduleActivityTaskCommandAttributes
from temporalio.api.common.v1 import ActivityType, WorkflowType
from temporalio.api.enums.v1 import CommandType, EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollActivityTaskQueueResponse,
    PollWorkflowTaskQueueRequest,
    PollWorkflowTaskQueueResponse,
    RespondActivityTaskCompletedRequest,
    RespondWorkflowTaskCompletedRequest,
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tests.data_centers.convergence import Run, Seen, converged, reconciled, seen
from tests.data_centers.processes import World, clusters, until
from tests.depth import IS_DEEP
from tests.sdk.stage import execution

QUEUE = "polled-by-hand"
ACTIVITIES = 3
SEED = 20_261_116
# Seconds for which a worker holds a workflow task. While activities run, it holds one almost always, so that their
# completions are buffered.
HELD_S = (0.1, 0.6)
ACTIVE_S = (0.0, 2.0)
FAILOVERS = 6 if IS_DEEP else 2
# The version of cluster a after its last failover: it begins at 1, and the increment is 10.
LAST_VERSION = 1 + 10 * (FAILOVERS // 2)
SOME_CALLS = 8
LATENCY_S = 0.1
# Seconds that a call may take: the longest handover, plus the delay of a very busy machine.
CALL_S_MAX = 15.0


class Caller:
    """Starts workflows and signals them without a pause or a retry."""

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
    def workflows(self) -> set[str]:
        """The started workflows."""
        return {f"{self._name}-{call // 4}" for call in range(self.calls)}

    @property
    def acknowledged(self) -> Counter[tuple[str, int]]:
        """By workflow and call number: the acknowledged signals."""
        return Counter((f"{self._name}-{call // 4}", call) for call in range(self.calls) if call % 4)


class Worker:
    """A worker that is slow with workflow tasks and activities; each workflow has some activities."""

    def __init__(self, client: Client, chance: random.Random) -> None:
        self._service = client.workflow_service
        self._namespace = client.namespace
        self._chance = chance
        # By workflow and activity: the number of acknowledged results.
        self.acknowledged: Counter[tuple[str, str]] = Counter()
        # Number of workflow tasks that a handover ended because events were buffered behind them.
        self.taken_away = 0

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Poll during the block."""
        # A response that fails ends the test.
        async with asyncio.TaskGroup() as group:
            polls = (self._decide(group), self._decide(group), self._act(group), self._act(group))
            polling = [group.create_task(poll) for poll in polls]
            yield
            for task in polling:
                task.cancel()

    async def _decide(self, group: asyncio.TaskGroup) -> None:
        while True:
            try:
                task = await self._service.poll_workflow_task_queue(
                    PollWorkflowTaskQueueRequest(namespace=self._namespace, task_queue=TaskQueue(name=QUEUE))
                )
            except RPCError:
                await asyncio.sleep(0.05)
                continue
            if task.task_token:
                group.create_task(self._answer(task))

    async def _answer(self, task: PollWorkflowTaskQueueResponse) -> None:
        await asyncio.sleep(self._chance.uniform(*HELD_S))
        events = task.history.events
        is_first = not any(_is(event, "ACTIVITY_TASK_SCHEDULED") for event in events)
        is_last = sum(_is(event, "ACTIVITY_TASK_COMPLETED") for event in events) == ACTIVITIES
        request = RespondWorkflowTaskCompletedRequest(
            namespace=self._namespace,
            task_token=task.task_token,
            commands=[_schedule(str(number)) for number in range(ACTIVITIES)] if is_first else [],
            force_create_new_workflow_task=not is_last,
        )
        try:
            await self._service.respond_workflow_task_completed(request)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            self.taken_away += 1

    async def _act(self, group: asyncio.TaskGroup) -> None:
        while True:
            try:
                task = await self._service.poll_activity_task_queue(
                    PollActivityTaskQueueRequest(namespace=self._namespace, task_queue=TaskQueue(name=QUEUE))
                )
            except RPCError:
                await asyncio.sleep(0.05)
                continue
            if task.task_token:
                group.create_task(self._complete(task))

    async def _complete(self, task: PollActivityTaskQueueResponse) -> None:
        await asyncio.sleep(self._chance.uniform(*ACTIVE_S))
        await self._service.respond_activity_task_completed(
            RespondActivityTaskCompletedRequest(namespace=self._namespace, task_token=task.task_token)
        )
        self.acknowledged[task.workflow_execution.workflow_id, task.activity_id] += 1


def _schedule(activity_id: str) -> Command:
    return Command(
        command_type=CommandType.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK,
        schedule_activity_task_command_attributes=ScheduleActivityTaskCommandAttributes(
            activity_id=activity_id,
            activity_type=ActivityType(name="Any"),
            task_queue=TaskQueue(name=QUEUE),
            start_to_close_timeout=Duration(seconds=60),
        ),
    )


def _is(event: HistoryEvent, kind: str) -> bool:
    return EventType.Name(event.event_type) == f"EVENT_TYPE_{kind}"


def results_in(runs: Mapping[Run, Seen]) -> Counter[tuple[str, str]]:
    """By workflow and activity: the number of its results on the current branch."""
    found: Counter[tuple[str, str]] = Counter()
    for run, one in runs.items():
        events = {event.event_id: event for event in one.history.events}
        for event in one.history.events:
            if _is(event, "ACTIVITY_TASK_COMPLETED"):
                scheduled = events[event.activity_task_completed_event_attributes.scheduled_event_id]
                activity_id = scheduled.activity_task_scheduled_event_attributes.activity_id
                found[run.workflow_id, activity_id] += 1
    return found


async def until_all_activities_are_over(world: World, workflow_ids: Iterable[str]) -> None:
    """Wait until each activity of each workflow has a result on the current branch."""
    expected = {(workflow_id, str(number)) for workflow_id in workflow_ids for number in range(ACTIVITIES)}

    async def are_over() -> bool:
        return results_in(await seen(world["a"])).keys() == expected

    await until(are_over, "a result of each activity")


async def hand_over_and_back(world: World, callers: list[Caller]) -> list[float]:
    """Fail over back and forth; returns the duration of each in seconds."""
    durations_s: list[float] = []
    for number in range(FAILOVERS):
        await asyncio.gather(*(caller.until_more() for caller in callers))
        began_s = time.monotonic()
        await world.fail_over("ab"[1 - number % 2], is_graceful=True)
        durations_s.append(time.monotonic() - began_s)
    await asyncio.gather(*(caller.until_more() for caller in callers))
    return durations_s


@pytest.mark.sim
@pytest.mark.timeout(300)
async def test_no_call_fails_and_nothing_is_lost_during_graceful_failovers(tmp_path: Path, spark: SparkSession) -> None:
    chance = random.Random(SEED)
    async with clusters(tmp_path, "a", "b") as world:
        await world.until_connected()
        await world.share(active="a")
        # The target lags by this time when a handover begins.
        for wire in world.wires.values():
            wire.latency_s = LATENCY_S
        callers = [Caller(await cluster.connect(), f"of-{cluster.name}") for cluster in world.running]
        workers = [Worker(await cluster.connect(), chance) for cluster in world.running]
        over = asyncio.Event()
        async with AsyncExitStack() as stack:
            for worker in workers:
                await stack.enter_async_context(worker.working())
            async with asyncio.TaskGroup() as group:
                for caller in callers:
                    group.create_task(caller.run(over))
                durations_s = await hand_over_and_back(world, callers)
                over.set()
            await until_all_activities_are_over(world, callers[0].workflows | callers[1].workflows)
        runs = await converged(world)
        results = results_in(runs)
        assert set(results.values()) == {1}
        assert results == workers[0].acknowledged + workers[1].acknowledged
        # Otherwise no handover met a buffered event.
        assert workers[0].taken_away + workers[1].taken_away
        received = Counter(
            (run.workflow_id, int(event.workflow_execution_signaled_event_attributes.signal_name))
            for run, one in runs.items()
            for event in one.history.events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
        )
        assert received == callers[0].acknowledged + callers[1].acknowledged
        # No run was written in both clusters at the same time.
        assert all(len(one.branches) == 1 for one in runs.values())
        assert max(event.version for one in runs.values() for event in one.history.events) == LAST_VERSION
        slowest_s = max(caller.slowest_s for caller in callers)
        assert slowest_s < CALL_S_MAX, f"the hand-overs took {durations_s}"
        assert await reconciled(world, spark, tmp_path) == len(runs)
