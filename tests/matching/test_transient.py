"""Query tasks: they go before all other tasks, and are never stored; without a poll they end at their timeout."""

import asyncio

import pytest

from fairlead.matching.messages import DESCRIBE, DescribeRequest
from fairlead.matching.partition import dispatcher
from fairlead.matching.partition.dispatcher import TooManyQueryTasks
from fairlead.matching.task_starter import NotStarted
from tests.matching.hosts import ORDERS, Hosts, add_to, at, hosts, new, partitions, poll_at
from tests.virtual_time import on_virtual_time


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def stored(there: Hosts, number: int = 0) -> int | None:
    caller, host = there.network.caller(), there.client.route(at(number))
    answer = await caller.call(host, DESCRIBE, DescribeRequest(at(number), with_drain=True), timeout_s=5)
    assert answer.drain is not None
    return answer.drain.stored_tasks


@on_virtual_time
async def test_a_query_task_is_started_by_a_waiting_poll() -> None:
    async with hosts() as there:
        polling = asyncio.create_task(poll_at(there, 0))
        await asyncio.sleep(1)
        assert await there.client.offer(ORDERS, new("query"), wait_s=5) is True
        assert (await polling).task == b"query"


@on_virtual_time
async def test_a_query_task_waits_for_the_next_poll_until_its_timeout() -> None:
    async with hosts() as there:
        began_s = now_s()
        offering = asyncio.create_task(there.client.offer(ORDERS, new("query"), wait_s=5))
        await asyncio.sleep(4)
        assert (await poll_at(there, 0)).task == b"query"
        assert await offering is True
        assert now_s() == pytest.approx(began_s + 4, abs=0.1)
        assert await there.client.offer(ORDERS, new("late"), wait_s=5) is False
        assert now_s() == pytest.approx(began_s + 9, abs=0.2)
        assert await stored(there) == 0
        assert (await poll_at(there, 0, timeout_s=1)).task is None


@on_virtual_time
async def test_a_query_task_goes_before_the_backlog_and_ignores_the_rate_limit() -> None:
    async with hosts(overrides={"matching.overrideTaskListRps": 1.0}) as there:
        for payload in ("a", "b", "c"):
            assert await add_to(there, 0, payload) is False
        offering = [asyncio.create_task(there.client.offer(ORDERS, new(name), wait_s=5)) for name in ("q", "r")]
        await asyncio.sleep(0.1)
        began_s = now_s()
        assert [(await poll_at(there, 0)).task for _ in range(3)] == [b"q", b"r", b"a"]
        assert now_s() == began_s
        assert await asyncio.gather(*offering) == [True, True]
        # The next task waits for the rate limit; a query task still gets the waiting poll.
        polling = asyncio.create_task(poll_at(there, 0))
        await asyncio.sleep(0.1)
        assert await there.client.offer(ORDERS, new("s"), wait_s=5) is True
        assert (await polling).task == b"s"


@on_virtual_time
async def test_a_query_task_is_matched_with_polls_at_other_partitions() -> None:
    async with hosts("one", "two", overrides=partitions(4)) as there:
        for number in range(4):
            await add_to(there, number, "warm")
            assert (await poll_at(there, number)).task == b"warm"
        await there.client.add(ORDERS, new("known"))
        while (await there.client.poll(ORDERS, "worker", timeout_s=1)).task is not None:
            pass
        for number in range(4):
            polling = asyncio.create_task(poll_at(there, number, timeout_s=60))
            await asyncio.sleep(2)
            assert await there.client.offer(ORDERS, new(f"query {number}"), wait_s=5) is True
            assert (await polling).task == f"query {number}".encode()


@on_virtual_time
async def test_a_query_task_is_removed_if_its_caller_is_cancelled() -> None:
    async with hosts() as there:
        offering = asyncio.create_task(there.client.offer(ORDERS, new("query"), wait_s=50))
        await asyncio.sleep(1)
        offering.cancel()
        await asyncio.gather(offering, return_exceptions=True)
        assert (await poll_at(there, 0, timeout_s=1)).task is None


@on_virtual_time
async def test_a_query_task_cancelled_at_the_moment_of_its_match_is_not_started() -> None:
    started: list[bytes] = []

    async def start(payload: bytes, _identity: str, _worker: bytes) -> bytes:
        started.append(payload)
        return payload

    async with hosts(start=start) as there:
        polling = asyncio.create_task(poll_at(there, 0, timeout_s=5))
        await asyncio.sleep(1)
        offering = asyncio.create_task(there.client.offer(ORDERS, new("query"), wait_s=50))
        (manager,) = there["one"].service.engine.managers()
        while manager.queue.polls_waiting:  # noqa: ASYNC110 - the cancellation must come right after the match
            await asyncio.sleep(0)
        offering.cancel()
        await asyncio.gather(offering, return_exceptions=True)
        await add_to(there, 0, "next")
        assert (await polling).task == b"next"
        assert started == [b"next"]


@on_virtual_time
async def test_a_query_task_that_history_rejects_is_retried_until_its_timeout() -> None:
    refusals = 2

    async def start(payload: bytes, _identity: str, _worker: bytes) -> bytes | NotStarted:
        nonlocal refusals
        refusals -= 1
        return NotStarted.REFUSED if refusals >= 0 else payload

    async with hosts(start=start) as there:
        polling = asyncio.create_task(poll_at(there, 0))
        await asyncio.sleep(0.1)
        assert await there.client.offer(ORDERS, new("query"), wait_s=5) is True
        assert (await polling).task == b"query"


@on_virtual_time
async def test_an_obsolete_query_task_counts_as_done() -> None:
    async def start(_payload: bytes, _identity: str, _worker: bytes) -> NotStarted:
        return NotStarted.GONE

    async with hosts(start=start) as there:
        polling = asyncio.create_task(poll_at(there, 0, timeout_s=2))
        await asyncio.sleep(0.1)
        assert await there.client.offer(ORDERS, new("query"), wait_s=5) is True
        assert (await polling).task is None


@on_virtual_time
async def test_a_query_task_moves_to_the_next_owner_when_its_partition_is_unloaded() -> None:
    async with hosts("one", "two") as there:
        offering = asyncio.create_task(there.client.offer(ORDERS, new("query"), wait_s=30))
        await asyncio.sleep(1)
        owner = there.client.route(at(0))
        other = next(name for name in there if name != owner)
        await there[owner].membership.leave()
        await asyncio.sleep(3)
        polling = asyncio.create_task(there[other].client.poll(ORDERS, "worker", timeout_s=20))
        assert await offering is True
        assert (await polling).task == b"query"


@on_virtual_time
async def test_the_number_of_waiting_query_tasks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "QUERY_TASKS_MAX", 2)
    async with hosts() as there:
        offering = [asyncio.create_task(there.client.offer(ORDERS, new("a"), wait_s=5)) for _ in range(2)]
        await asyncio.sleep(1)
        with pytest.raises(TooManyQueryTasks, match="retry in a while"):
            await there.client.offer(ORDERS, new("b"), wait_s=5)
        assert await asyncio.gather(*offering) == [False, False]
