"""One worker's own task list: tasks are taken for it while it polls, and given back when it goes."""

import asyncio
from typing import Any

import pytest

from fairlead.cluster.wire import Errors
from fairlead.core.partitions import Partition, TaskList, TaskType
from fairlead.matching.messages import DESCRIBE, DescribeRequest, PollAnswer, StickyWorkerGone, TaskListKind
from fairlead.matching.sticky import StickyWorker
from fairlead.storage.memory import MemoryStore
from tests.matching.hosts import Hosts, hosts, new
from tests.virtual_time import on_virtual_time

STICKY = TaskList("namespace", "worker-1:abc", TaskType.WORKFLOW)


async def add(there: Hosts, payload: str) -> bool:
    return (await there.client.add(STICKY, new(payload), kind=TaskListKind.STICKY)).is_started


async def poll(there: Hosts, *, timeout_s: float = 5.0) -> PollAnswer:
    return await there.client.poll(STICKY, "worker", timeout_s=timeout_s, kind=TaskListKind.STICKY)


async def now_s() -> float:
    return asyncio.get_running_loop().time()


@on_virtual_time
async def test_without_a_worker_a_sticky_task_list_is_not_even_loaded_by_an_add() -> None:
    async with hosts("one", "two") as there:
        began_s = await now_s()
        with pytest.raises(StickyWorkerGone, match="add the task to the normal one"):
            await add(there, "a")
        assert await now_s() == began_s
        assert [host.service.engine.loaded for host in there.values()] == [[], []]
        assert await there.store.list_queues(None, after=None, limit=10) == []


@on_virtual_time
async def test_a_task_waits_for_a_worker_that_polled_of_late_and_is_refused_when_it_has_been_silent() -> None:
    async with hosts() as there:
        assert (await poll(there, timeout_s=1)).task is None
        await asyncio.sleep(9.9)
        assert await add(there, "a") is False
        await asyncio.sleep(0.2)
        with pytest.raises(StickyWorkerGone):
            await add(there, "b")
        # It has only been busy.
        assert (await poll(there)).task == b"a"
        assert await add(there, "c") is False


@on_virtual_time
async def test_the_window_is_a_setting() -> None:
    async with hosts(overrides={"matching.stickyPollerUnavailableWindow": "1s"}) as there:
        await poll(there, timeout_s=1)
        await asyncio.sleep(1.1)
        with pytest.raises(StickyWorkerGone):
            await add(there, "a")


@on_virtual_time
async def test_a_poll_that_has_waited_for_long_shows_that_its_worker_is_there() -> None:
    async with hosts() as there:
        polling = asyncio.create_task(poll(there, timeout_s=60))
        await asyncio.sleep(50)
        assert await add(there, "a") is True
        assert (await polling).task == b"a"
        # It works on that: the next task waits for it.
        await asyncio.sleep(5)
        assert await add(there, "b") is False


@on_virtual_time
async def test_a_worker_that_dies_in_the_middle_of_a_long_poll_is_gone_at_once() -> None:
    async with hosts() as there:
        polling = asyncio.create_task(poll(there, timeout_s=60))
        await asyncio.sleep(30)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        with pytest.raises(StickyWorkerGone):
            await add(there, "a")


@on_virtual_time
async def test_a_goodbye_answers_the_polls_gives_back_what_waits_and_refuses_what_comes() -> None:
    """Facts, compat: move the sticky tasks of a worker that shuts down at once, do not wait out the 10 s."""
    async with hosts("one", "two") as there:
        await poll(there, timeout_s=1)
        for payload in ("a", "b"):
            assert await add(there, payload) is False
        assert sorted(await there.client.forget_sticky(STICKY)) == [b"a", b"b"]
        with pytest.raises(StickyWorkerGone):
            await add(there, "c")
        # They are kept no longer: nobody is given them twice.
        assert (await poll(there, timeout_s=1)).task is None
        partition = Partition(STICKY, 0)
        request = DescribeRequest(partition, TaskListKind.STICKY, with_drain=True)
        described = await there.network.caller().call(there.client.route(partition), DESCRIBE, request, timeout_s=5)
        assert described.drain is not None
        assert described.drain.stored_tasks == 0


@on_virtual_time
async def test_polls_that_wait_are_answered_by_a_goodbye_at_once() -> None:
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
async def test_a_worker_that_comes_again_after_its_goodbye_gets_tasks() -> None:
    async with hosts() as there:
        await poll(there, timeout_s=1)
        await there.client.forget_sticky(STICKY)
        await poll(there, timeout_s=1)
        assert await add(there, "a") is False
        assert (await poll(there)).task == b"a"


@on_virtual_time
async def test_to_say_goodbye_where_nobody_polled_loads_nothing() -> None:
    async with hosts() as there:
        assert await there.client.forget_sticky(STICKY) == []
        assert there["one"].service.engine.loaded == []


class _SlowStore(MemoryStore):
    """Whose appends wait until a test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.may_append = asyncio.Event()

    async def append(self, *arguments: Any) -> None:
        await self.may_append.wait()
        await super().append(*arguments)


@on_virtual_time
async def test_a_task_that_is_being_stored_when_the_worker_goes_is_refused_and_not_kept() -> None:
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
async def test_a_task_that_is_not_kept_is_refused_like_any_other_where_the_worker_is_gone() -> None:
    async with hosts() as there:
        with pytest.raises(StickyWorkerGone):
            await there.client.offer(STICKY, new("query"), kind=TaskListKind.STICKY, wait_s=5)
        polling = asyncio.create_task(poll(there, timeout_s=60))
        await asyncio.sleep(1)
        assert await there.client.offer(STICKY, new("query"), kind=TaskListKind.STICKY, wait_s=5) is True
        assert (await polling).task == b"query"


def test_polls_overlap() -> None:
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


def test_a_worker_that_said_goodbye_is_gone_however_lately_it_polled() -> None:
    worker = StickyWorker(lambda: 100.0)
    worker.begin_poll()
    worker.leave()
    assert not worker.is_there(within_s=10)
    worker.begin_poll()
    assert worker.is_there(within_s=10)


def test_the_refusal_crosses_between_hosts_as_itself() -> None:
    errors = Errors([StickyWorkerGone])
    assert isinstance(errors.decode(errors.encode(StickyWorkerGone("gone"))), StickyWorkerGone)
