"""The sticky task queue of one worker: takes tasks while the worker polls, and returns them when the worker leaves."""

import asyncio
from typing import Any

import pytest

from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.matching.messages import DESCRIBE, DescribeRequest, PollResponse, QueueKind, StickyWorkerGone
from fairlead.matching.partition.sticky import StickyWorker
from fairlead.rpc.hosts.wire import Errors
from fairlead.storage.memory.tasks import MemoryStore
from tests.matching.hosts import Hosts, hosts, new
from tests.virtual_time import on_virtual_time

STICKY = TaskQueueId("namespace", "worker-1:abc", TaskType.WORKFLOW)


async def add(there: Hosts, payload: str) -> bool:
    return (await there.client.add(STICKY, new(payload), kind=QueueKind.STICKY)).is_started


async def poll(there: Hosts, *, timeout_s: float = 5.0) -> PollResponse:
    return await there.client.poll(STICKY, "worker", timeout_s=timeout_s, kind=QueueKind.STICKY)


async def now_s() -> float:
    return asyncio.get_running_loop().time()


@on_virtual_time
async def test_an_add_to_a_sticky_task_queue_without_a_worker_loads_no_partition() -> None:
    async with hosts("one", "two") as there:
        began_s = await now_s()
        with pytest.raises(StickyWorkerGone, match="add the task to the normal task queue"):
            await add(there, "a")
        assert await now_s() == began_s
        assert [host.service.engine.loaded for host in there.values()] == [[], []]
        assert await there.store.list_queues(None, after=None, limit=10) == []


@on_virtual_time
async def test_a_task_waits_for_a_worker_that_polled_recently_and_is_rejected_after_the_window() -> None:
    async with hosts() as there:
        assert (await poll(there, timeout_s=1)).task is None
        await asyncio.sleep(9.9)
        assert await add(there, "a") is False
        await asyncio.sleep(0.2)
        with pytest.raises(StickyWorkerGone):
            await add(there, "b")
        # The worker was only busy: it polls again and gets the task.
        assert (await poll(there)).task == b"a"
        assert await add(there, "c") is False


@on_virtual_time
async def test_the_window_in_which_a_worker_must_poll_is_a_setting() -> None:
    async with hosts(overrides={"matching.stickyPollerUnavailableWindow": "1s"}) as there:
        await poll(there, timeout_s=1)
        await asyncio.sleep(1.1)
        with pytest.raises(StickyWorkerGone):
            await add(there, "a")


@on_virtual_time
async def test_a_long_waiting_poll_shows_that_its_worker_is_alive() -> None:
    async with hosts() as there:
        polling = asyncio.create_task(poll(there, timeout_s=60))
        await asyncio.sleep(50)
        assert await add(there, "a") is True
        assert (await polling).task == b"a"
        # The worker is busy with the task: the next task waits for it.
        await asyncio.sleep(5)
        assert await add(there, "b") is False


@on_virtual_time
async def test_a_worker_that_dies_during_a_long_poll_counts_as_gone_at_once() -> None:
    async with hosts() as there:
        polling = asyncio.create_task(poll(there, timeout_s=60))
        await asyncio.sleep(30)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        with pytest.raises(StickyWorkerGone):
            await add(there, "a")


@on_virtual_time
async def test_forget_sticky_returns_the_stored_tasks_and_rejects_new_ones() -> None:
    """FL-15: the tasks of a worker that shuts down go back at once, not after 10 s."""
    async with hosts("one", "two") as there:
        await poll(there, timeout_s=1)
        for payload in ("a", "b"):
            assert await add(there, payload) is False
        assert sorted(await there.client.forget_sticky(STICKY)) == [b"a", b"b"]
        with pytest.raises(StickyWorkerGone):
            await add(there, "c")
        # The tasks are no longer stored: no worker gets them a second time.
        assert (await poll(there, timeout_s=1)).task is None
        partition = Partition(STICKY, 0)
        request = DescribeRequest(partition, QueueKind.STICKY, with_drain=True)
        described = await there.network.caller().call(there.client.route(partition), DESCRIBE, request, timeout_s=5)
        assert described.drain is not None
        assert described.drain.stored_tasks == 0


@on_virtual_time
async def test_forget_sticky_ends_waiting_polls_at_once() -> None:
    async with hosts() as there:
        polls = [asyncio.create_task(poll(there, timeout_s=60)) for _ in range(3)]
        await asyncio.sleep(5)
        began_s = await now_s()
        assert await there.client.forget_sticky(STICKY) == []
        assert [answer.task for answer in await asyncio.gather(*polls)] == [None] * 3
        assert await now_s() == began_s
        with pytest.raises(StickyWorkerGone):
            await add(there, "a")


@on_virtual_time
async def test_a_worker_that_polls_again_after_forget_sticky_gets_tasks() -> None:
    async with hosts() as there:
        await poll(there, timeout_s=1)
        await there.client.forget_sticky(STICKY)
        await poll(there, timeout_s=1)
        assert await add(there, "a") is False
        assert (await poll(there)).task == b"a"


@on_virtual_time
async def test_forget_sticky_without_a_worker_loads_no_partition() -> None:
    async with hosts() as there:
        assert await there.client.forget_sticky(STICKY) == []
        assert there["one"].service.engine.loaded == []


class _SlowStore(MemoryStore):
    """A store whose appends wait until `may_append` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_append = asyncio.Event()

    async def append(self, *arguments: Any) -> None:
        await self.may_append.wait()
        await super().append(*arguments)


@on_virtual_time
async def test_a_task_that_is_being_stored_during_forget_sticky_is_rejected_and_not_kept() -> None:
    store = _SlowStore()
    async with hosts(store=store) as there:
        await poll(there, timeout_s=1)
        adds = [asyncio.create_task(add(there, payload)) for payload in ("a", "b")]
        await asyncio.sleep(0.1)
        assert await there.client.forget_sticky(STICKY) == []
        store.may_append.set()
        for failure in await asyncio.gather(*adds, return_exceptions=True):
            assert isinstance(failure, StickyWorkerGone)
        assert (await poll(there, timeout_s=1)).task is None


@on_virtual_time
async def test_a_query_task_is_rejected_if_the_worker_is_gone() -> None:
    async with hosts() as there:
        with pytest.raises(StickyWorkerGone):
            await there.client.offer(STICKY, new("query"), kind=QueueKind.STICKY, wait_s=5)
        polling = asyncio.create_task(poll(there, timeout_s=60))
        await asyncio.sleep(1)
        assert await there.client.offer(STICKY, new("query"), kind=QueueKind.STICKY, wait_s=5) is True
        assert (await polling).task == b"query"


def test_a_worker_with_overlapping_polls_is_alive_until_the_last_one_ends() -> None:
    clock_s = 100.0
    worker = StickyWorker(lambda: clock_s)
    assert not worker.is_there(within_s=10)
    worker.begin_poll()
    worker.begin_poll()
    worker.end_poll(is_answered=False)
    clock_s = 500.0
    assert worker.is_there(within_s=10)
    worker.end_poll(is_answered=True)
    assert worker.is_there(within_s=10)
    clock_s = 510.1
    assert not worker.is_there(within_s=10)


def test_a_worker_that_left_is_gone_even_if_it_polled_just_before() -> None:
    worker = StickyWorker(lambda: 100.0)
    worker.begin_poll()
    worker.leave()
    assert not worker.is_there(within_s=10)
    worker.begin_poll()
    assert worker.is_there(within_s=10)


def test_the_error_sticky_worker_gone_keeps_its_class_between_hosts() -> None:
    errors = Errors([StickyWorkerGone])
    assert isinstance(errors.decode(errors.encode(StickyWorkerGone("gone"))), StickyWorkerGone)
