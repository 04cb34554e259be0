"""The end of an activity returns the next workflow task: the frontend offers a waiting poll in the same call."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueResponse, RespondActivityTaskCompletedRequest

from fairlead.api.tokens import ActivityTaskToken, decode_token
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.history.client import CALL
from fairlead.history.shard.queues import TRANSFER
from fairlead.history.state.tasks import PushWorkflowTask
from fairlead.matching.messages import PollResponse
from fairlead.rpc.hosts.caller import CallLost
from fairlead.storage.tasks import StoreUnavailable
from tests.history.shard_world import NAMESPACE, OneHost, World, complete, kinds, schedule_activity
from tests.virtual_time import on_virtual_time

WORKER = "worker"
ID = "one"


class Pair:
    """The owner of the only shard, and another host, to which the worker is connected."""

    def __init__(self, world: World, owner: OneHost, frontend: OneHost) -> None:
        self.world = world
        self.owner = owner
        self.frontend = frontend
        # The polls of the owner's task queues are forwarded to the owner.
        self.sticky = self.sticky_of(owner)
        self.polls: list[asyncio.Task[PollResponse]] = []

    def sticky_of(self, host: OneHost) -> TaskQueueId:
        """A sticky task queue that the host owns."""
        queues = (TaskQueueId(NAMESPACE.id, f"sticky-{number}", TaskType.WORKFLOW) for number in range(100))
        return next(queue for queue in queues if host.owns_partition(Partition(queue, 0)))

    async def poll(self, number: int) -> None:
        """Begin polls of the worker."""
        for _ in range(number):
            self.polls.append(asyncio.create_task(self.frontend.poll_sticky(self.sticky, WORKER)))
        await asyncio.sleep(0.1)

    async def begin_activity(self) -> bytes:
        """Start a workflow that schedules an activity; return the token of the activity's task."""
        await self.frontend.begin(ID)
        task = await self.frontend.poll()
        assert task is not None
        await self.frontend.respond(
            task,
            [schedule_activity()],
            sticky_attributes={
                "worker_task_queue": {"name": self.sticky.name},
                "schedule_to_start_timeout": {"seconds": 5},
            },
        )
        activity = await self.frontend.poll_activity()
        assert activity is not None
        return activity.task_token

    async def end_activity(self, token: bytes) -> None:
        """Respond to the activity, as the frontend does."""
        decoded = decode_token(token)
        assert isinstance(decoded, ActivityTaskToken)
        await self.frontend.history.client.call(
            "RespondActivityTaskCompleted",
            NAMESPACE.id,
            ID,
            RespondActivityTaskCompletedRequest(task_token=token),
            sticky_task_queue=decoded.sticky_task_queue,
        )

    async def tasks(self) -> list[PollWorkflowTaskQueueResponse]:
        """The tasks of the polls that have ended with one."""
        found = [poll.result().task for poll in self.polls if poll.done()]
        return [PollWorkflowTaskQueueResponse.FromString(task) for task in found if task]

    async def complete(self) -> None:
        """Complete the workflow with the task of the only poll that got one."""
        (task,) = await self.tasks()
        await self.frontend.respond(task, [complete()])
        events = kinds(await self.frontend.events(ID))
        assert events.count("WORKFLOW_TASK_STARTED") == 2
        assert events[-1] == "WORKFLOW_EXECUTION_COMPLETED"


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    world = World()
    hosts = [await world.start(name) for name in ("first", "second")]
    # On virtual time: until both hosts have the same ring, and the owner has opened the shard.
    await asyncio.sleep(20)
    owner, frontend = sorted(hosts, key=lambda host: not host.history.owns(0))
    made = Pair(world, owner, frontend)
    try:
        yield made
    finally:
        for poll in made.polls:
            poll.cancel()
        await asyncio.gather(*made.polls, return_exceptions=True)
        await world.close()


def _count_commits(world: World) -> Callable[[], int]:
    commits = 0

    async def count(operation: str) -> None:
        nonlocal commits
        commits += operation == "commit"

    world.faults.on_before = count
    return lambda: commits


@on_virtual_time
async def test_a_response_at_another_host_brings_the_next_task_in_one_commit() -> None:
    async with pair() as hosts:
        await hosts.poll(2)
        token = await hosts.begin_activity()
        commits = _count_commits(hosts.world)
        await hosts.end_activity(token)
        await asyncio.sleep(0.1)
        assert commits() == 1
        pushed = [row.task for row in await hosts.world.stored_rows(TRANSFER) if isinstance(row.task, PushWorkflowTask)]
        assert not [task for task in pushed if task.task_queue == hosts.sticky.name]
        await hosts.complete()


@on_virtual_time
async def test_a_poll_that_waits_at_the_partition_of_the_workers_host_is_offered_too() -> None:
    async with pair() as hosts:
        hosts.sticky = hosts.sticky_of(hosts.frontend)
        await hosts.poll(1)
        token = await hosts.begin_activity()
        commits = _count_commits(hosts.world)
        await hosts.end_activity(token)
        await asyncio.sleep(0.1)
        assert commits() == 1
        await hosts.complete()


@on_virtual_time
async def test_without_a_poll_to_offer_the_task_comes_through_matching() -> None:
    async with pair() as hosts:
        await hosts.poll(1)
        await hosts.end_activity(await hosts.begin_activity())
        await asyncio.sleep(0.1)
        await hosts.complete()


@on_virtual_time
async def test_the_offered_poll_continues_to_wait_if_the_commit_fails() -> None:
    async with pair() as hosts:
        await hosts.poll(2)
        token = await hosts.begin_activity()
        hosts.world.faults.fail_once("commit", StoreUnavailable("the disk is full: nothing was changed"))
        with pytest.raises(StoreUnavailable):
            await hosts.end_activity(token)
        assert not await hosts.tasks()
        await hosts.end_activity(token)
        await asyncio.sleep(0.1)
        await hosts.complete()


@on_virtual_time
async def test_a_task_in_a_lost_response_times_out_and_a_worker_gets_the_next_attempt() -> None:
    """The offered poll continues to wait; the lost start is not repeated for it."""
    async with pair() as hosts:
        await hosts.poll(2)
        token = await hosts.begin_activity()
        client = hosts.frontend.history.client
        caller = client._caller
        client._caller = _LosesOne(caller)
        with pytest.raises(CallLost):
            await hosts.end_activity(token)
        assert not await hosts.tasks()
        assert kinds(await hosts.frontend.events(ID))[-1] == "WORKFLOW_TASK_STARTED"
        task = await hosts.frontend.poll()
        assert task is not None
        assert "WORKFLOW_TASK_TIMED_OUT" in kinds(await hosts.frontend.events(ID))
        await hosts.frontend.respond(task, [complete()])
        assert kinds(await hosts.frontend.events(ID))[-1] == "WORKFLOW_EXECUTION_COMPLETED"
        assert not await hosts.tasks()


@on_virtual_time
async def test_a_host_that_hangs_holds_one_poll_of_a_task_queue() -> None:
    async with pair() as hosts:
        await hosts.poll(4)
        token = await hosts.begin_activity()
        client = hosts.frontend.history.client
        caller, client._caller = client._caller, _Hangs()
        calls = [asyncio.create_task(hosts.end_activity(token)) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert client._reserve is not None
        free = client._reserve(hosts.sticky)
        assert free is not None
        free.release()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        client._caller = caller
        await hosts.end_activity(token)
        await asyncio.sleep(0.1)
        await hosts.complete()


class _Hangs:
    """Never responds."""

    async def call(self, host: str, method: Any, request: Any, *, timeout_s: float) -> Any:
        await asyncio.Event().wait()


class _LosesOne:
    """Loses the response to the next call of the history service."""

    def __init__(self, caller: Any) -> None:
        self._caller = caller
        self._is_next = True

    async def call(self, host: str, method: Any, request: Any, *, timeout_s: float) -> Any:
        answer = await self._caller.call(host, method, request, timeout_s=timeout_s)
        if method is CALL and self._is_next:
            self._is_next = False
            raise CallLost("the connection was lost")
        return answer


@on_virtual_time
async def test_a_worker_that_disconnects_during_the_commit_leaves_the_task_to_another() -> None:
    async with pair() as hosts:
        await hosts.poll(2)
        token = await hosts.begin_activity()
        has_come, goes_on = hosts.world.faults.hold("commit")
        ending = asyncio.create_task(hosts.end_activity(token))
        await has_come.wait()
        for poll in hosts.polls:
            poll.cancel()
        await asyncio.gather(*hosts.polls, return_exceptions=True)
        hosts.polls.clear()
        goes_on.set()
        await ending
        task = await hosts.frontend.poll()
        assert task is not None
        assert "WORKFLOW_TASK_TIMED_OUT" in kinds(await hosts.frontend.events(ID))
        await hosts.frontend.respond(task, [complete()])


@on_virtual_time
async def test_a_caller_that_is_cancelled_during_the_commit_leaves_its_poll_waiting() -> None:
    async with pair() as hosts:
        await hosts.poll(2)
        token = await hosts.begin_activity()
        has_come, goes_on = hosts.world.faults.hold("commit")
        ending = asyncio.create_task(hosts.end_activity(token))
        await has_come.wait()
        ending.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await ending
        task = await hosts.frontend.poll()
        assert task is not None
        assert "WORKFLOW_TASK_TIMED_OUT" in kinds(await hosts.frontend.events(ID))
        assert not await hosts.tasks()
        await hosts.frontend.respond(task, [complete()])


@on_virtual_time
async def test_an_offered_poll_of_another_task_queue_continues_to_wait() -> None:
    async with pair() as hosts:
        await hosts.poll(2)
        token = await hosts.begin_activity()
        other = hosts.sticky
        hosts.sticky = TaskQueueId(NAMESPACE.id, "elsewhere", TaskType.WORKFLOW)
        await hosts.frontend.history.client.call(
            "RespondActivityTaskCompleted",
            NAMESPACE.id,
            ID,
            RespondActivityTaskCompletedRequest(task_token=token),
            sticky_task_queue="elsewhere",
        )
        hosts.sticky = other
        await asyncio.sleep(0.1)
        await hosts.complete()


async def test_no_sticky_poll_is_reserved_for_a_task_of_a_normal_task_queue() -> None:
    """A normal task queue may have the name of a sticky one."""
    world = World()
    host = await world.start()
    host.matching.reserve_sticky(lambda _queue: pytest.fail("asked for a poll of a normal task queue"))
    polling = asyncio.create_task(host.poll(timeout_s=1))
    await host.begin(ID)
    assert await polling is not None
    await world.close()
