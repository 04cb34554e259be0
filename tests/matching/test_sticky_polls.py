"""Half of a sticky task queue's polls wait at the worker's host; the owner always has at least as many polls."""

import asyncio

import pytest

from fairlead.core.partitions import Partition, PartitionConfig, TaskQueueId, TaskType
from fairlead.core.routing import NoHosts
from fairlead.matching.messages import BacklogReport, PollResponse
from fairlead.matching.sticky_polls import StickyPolls
from fairlead.settings import DynamicSettings
from tests.patience import step
from tests.virtual_time import on_virtual_time

QUEUE = TaskQueueId("namespace", "worker-queue", TaskType.WORKFLOW)


def response(task: bytes | None) -> PollResponse:
    return PollResponse(task, PartitionConfig(0, 1, 1), BacklogReport(0, 0, 0.0, 0.0, 0.0))


class Ring:
    """Routes every partition to the host `owner`, if it has one."""

    hosts = ("here", "there")
    owner = "there"

    def route(self, _partition: Partition) -> str:
        if not self.owner:
            raise NoHosts("no host is known")
        return self.owner

    def on_change(self, _listener: object) -> None:
        raise NotImplementedError

    async def refresh(self) -> None:
        raise NotImplementedError


class Host:
    """A host, and the polls that it has forwarded to the owner, oldest first."""

    def __init__(self) -> None:
        self.ring = Ring()
        self.polls = StickyPolls("here", self.ring, DynamicSettings())
        self.forwarded: list[asyncio.Future[PollResponse]] = []

    async def _forward(self, *, timeout_s: float) -> PollResponse:
        answer: asyncio.Future[PollResponse] = asyncio.get_running_loop().create_future()
        self.forwarded.append(answer)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return response(None)
        finally:
            self.forwarded.remove(answer)

    def poll(self, identity: str = "worker", timeout_s: float = 60.0) -> "asyncio.Task[PollResponse]":
        return asyncio.create_task(self.polls.wait(QUEUE, identity, b"", timeout_s=timeout_s, forward=self._forward))

    async def poll_often(self, number: int) -> "list[asyncio.Task[PollResponse]]":
        polls = [self.poll() for _ in range(number)]
        await step()
        return polls


@on_virtual_time
async def test_half_of_the_polls_wait_here_and_a_single_poll_at_the_owner() -> None:
    host = Host()
    polls = await host.poll_often(1)
    assert len(host.forwarded) == 1
    assert host.polls.reserve(QUEUE) is None
    polls += await host.poll_often(4)
    assert len(host.forwarded) == 3
    for poll in polls:
        poll.cancel()


@pytest.mark.parametrize("owner", ["here", ""])
@on_virtual_time
async def test_all_polls_wait_at_the_owner_if_it_is_this_host_or_unknown(owner: str) -> None:
    host = Host()
    host.ring.owner = owner
    polls = await host.poll_often(4)
    assert len(host.forwarded) == 4
    for poll in polls:
        poll.cancel()


@on_virtual_time
async def test_a_reserved_poll_gets_its_task_once() -> None:
    host = Host()
    polls = await host.poll_often(2)
    reserved = host.polls.reserve(QUEUE)
    assert reserved is not None
    assert host.polls.reserve(QUEUE) is None
    reserved.give(b"task")
    reserved.release()
    reserved.give(b"other")
    assert (await polls[1]).task == b"task"
    assert host.polls.reserve(QUEUE) is None
    polls[0].cancel()


@on_virtual_time
async def test_a_released_poll_waits_again() -> None:
    host = Host()
    polls = await host.poll_often(2)
    for _ in range(2):
        reserved = host.polls.reserve(QUEUE)
        assert reserved is not None
        reserved.release()
    await step()
    assert not polls[1].done()
    for poll in polls:
        poll.cancel()


@on_virtual_time
async def test_a_poll_moves_to_the_owner_when_no_other_poll_waits_there() -> None:
    """A task that the owner gets must find a poll."""
    host = Host()
    polls = await host.poll_often(4)
    assert len(host.forwarded) == 2
    for number in range(4):
        host.forwarded[0].set_result(response(b"task %d" % number))
        await step()
        # Two wait at each side at first.
        assert len(host.forwarded) == (2, 1, 1, 0)[number]
    assert sorted([(await poll).task or b"" for poll in polls]) == [b"task 0", b"task 1", b"task 2", b"task 3"]
    assert not host.polls._queues


@on_virtual_time
async def test_a_released_poll_moves_to_the_owner_when_no_other_poll_waits_there() -> None:
    host = Host()
    polls = await host.poll_often(2)
    reserved = host.polls.reserve(QUEUE)
    assert reserved is not None
    host.forwarded[0].set_result(response(b"one"))
    await step()
    assert not host.forwarded
    reserved.release()
    await step()
    assert len(host.forwarded) == 1
    host.forwarded[0].set_result(response(b"two"))
    assert [(await poll).task for poll in polls] == [b"one", b"two"]


@on_virtual_time
async def test_polls_end_here_when_the_owner_ends_one_early() -> None:
    """The worker is shutting down, or the owner is closing: a poll that went there now would bring the worker back."""
    host = Host()
    polls = await host.poll_often(4)
    reserved = host.polls.reserve(QUEUE)
    assert reserved is not None
    host.forwarded[0].set_result(response(None))
    await step()
    assert len(host.forwarded) == 1
    reserved.release()
    await step()
    assert [poll.done() for poll in polls] == [True, True, False, True]
    polls[2].cancel()


@on_virtual_time
async def test_a_poll_of_another_worker_waits_at_the_owner() -> None:
    host = Host()
    polls = [*await host.poll_often(1), host.poll("another"), host.poll("another")]
    await step()
    assert len(host.forwarded) == 3
    for poll in polls:
        poll.cancel()


@on_virtual_time
async def test_a_poll_ends_at_its_deadline_and_a_reserved_poll_when_it_is_released() -> None:
    loop = asyncio.get_running_loop()
    host = Host()
    polls = await host.poll_often(6)
    reserved = host.polls.reserve(QUEUE)
    assert reserved is not None
    began_s = loop.time()
    await asyncio.sleep(61)
    assert [poll.done() for poll in polls] == [True, False, True, True, True, True]
    reserved.release()
    assert (await polls[1]).task is None
    assert loop.time() - began_s < 62
    assert not host.polls._queues


@pytest.mark.parametrize("is_reserved", [True, False])
@on_virtual_time
async def test_a_cancelled_poll_gets_no_task(is_reserved: bool) -> None:
    host = Host()
    polls = await host.poll_often(2)
    reserved = host.polls.reserve(QUEUE) if is_reserved else None
    polls[1].cancel()
    await step()
    if reserved is not None:
        reserved.give(b"task")
        reserved.release()
    assert host.polls.reserve(QUEUE) is None
    polls[0].cancel()
    await step()
    assert not host.polls._queues


@on_virtual_time
async def test_a_poll_that_is_cancelled_on_its_way_to_the_owner_lets_the_next_one_go() -> None:
    host = Host()
    polls = await host.poll_often(4)
    queue = host.polls._queues[QUEUE]
    for answer in list(host.forwarded):
        answer.set_result(response(b"task"))
    # The turn in which both polls of the owner end, and a poll of this host is about to go there.
    await step(1)
    while not any(poll.done() for poll in polls):
        await step(1)
    assert queue.forwarded == 1
    assert not host.forwarded
    polls[1].cancel()
    await step()
    assert len(host.forwarded) == 1
    polls[3].cancel()
    await step()
    assert not host.polls._queues
