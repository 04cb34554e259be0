import asyncio
from collections import Counter

import pytest

from fairlead.core.partitions import Partition, PartitionConfig
from fairlead.matching.messages import (
    ADD,
    DESCRIBE,
    POLL,
    AddRequest,
    DescribeAnswer,
    DescribeRequest,
    PollAnswer,
    PollRequest,
    StaleConfig,
)
from tests.matching.hosts import ORDERS, Hosts, hosts, new, partitions


def at(number: int) -> Partition:
    return Partition(ORDERS, number)


async def add_to(there: Hosts, number: int, payload: str) -> bool:
    caller, host = there.network.caller(), there.client.route(at(number))
    return (await caller.call(host, ADD, AddRequest(at(number), new(payload)), timeout_s=5)).is_started


async def poll_at(there: Hosts, number: int, *, timeout_s: float = 5.0) -> PollAnswer:
    caller, host = there.network.caller(), there.client.route(at(number))
    request = PollRequest(at(number), "worker", f"poll-{number}-{id(object())}", timeout_s)
    return await caller.call(host, POLL, request, timeout_s=timeout_s + 1)


async def describe(there: Hosts, number: int) -> DescribeAnswer:
    caller, host = there.network.caller(), there.client.route(at(number))
    return await caller.call(host, DESCRIBE, DescribeRequest(at(number), with_drain=True), timeout_s=5)


async def test_tasks_and_polls_of_a_client_meet_whatever_the_partition() -> None:
    async with hosts("one", "two", "three", overrides=partitions(4)) as there:

        async def poll() -> list[bytes]:
            got = []
            while (answer := await there.client.poll(ORDERS, "worker", timeout_s=1)).task is not None:
                got.append(answer.task)
            return got

        polls = [asyncio.create_task(poll()) for _ in range(8)]
        answers = await asyncio.gather(*(there.client.add(ORDERS, new(str(number))) for number in range(200)))
        polled = await asyncio.gather(*polls)
        assert len(answers) == 200
        assert Counter(int(task) for tasks in polled for task in tasks) == Counter(range(200))
        assert answers[-1].config == PartitionConfig(version=1, read=4, write=4)


async def test_a_task_finds_a_poll_that_waits_at_another_partition() -> None:
    """Seed 000, 'Random Selection': a task at partition 5 and a poller at partition 3 meet at the root."""
    async with hosts(overrides={**partitions(6), "matching.forwarderMaxChildrenPerNode": 2}) as there:
        await there.client.add(ORDERS, new("first"))
        assert (await there.client.poll(ORDERS, "worker", timeout_s=5)).task == b"first"
        await there.loaded(partitions=6)
        poll = asyncio.create_task(poll_at(there, 3))
        await asyncio.sleep(0.1)
        assert await add_to(there, 5, "a") is True
        answer = await poll
        assert (answer.task, answer.was_forwarded) == (b"a", True)


async def test_a_backlog_without_polls_drains_at_the_speed_of_the_polls_at_the_root() -> None:
    async with hosts(overrides=partitions(4)) as there:
        await there.client.add(ORDERS, new("first"))
        await there.client.poll(ORDERS, "worker", timeout_s=5)
        await there.loaded(partitions=4)
        await asyncio.gather(*(add_to(there, 3, str(number)) for number in range(300)))

        async def poll() -> int:
            got = 0
            while (await poll_at(there, 0, timeout_s=0.7)).task is not None:
                got += 1
            return got

        began_s = asyncio.get_running_loop().time()
        counts = await asyncio.gather(*(poll() for _ in range(4)))
        assert sum(counts) == 300
        # Ten a second by forwarding alone: half a minute.
        assert asyncio.get_running_loop().time() - began_s < 5


async def test_a_request_by_an_old_configuration_is_refused_with_the_new_one() -> None:
    async with hosts(overrides=partitions(2)) as there:
        await there.client.add(ORDERS, new("a"))
        with pytest.raises(StaleConfig) as refused:
            await add_to(there, 2, "b")
        assert refused.value.config == PartitionConfig(version=1, read=2, write=2)
        with pytest.raises(StaleConfig):
            await poll_at(there, 2)
