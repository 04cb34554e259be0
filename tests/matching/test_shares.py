"""The shares of fairness keys through the real service and its client, over all partitions."""

import asyncio
import random
from collections import Counter

import pytest

from fairlead.core.fairness.measures import jain_index
from fairlead.matching.messages import NewTask
from tests.matching.hosts import ORDERS, Hosts, hosts, partitions
from tests.virtual_time import on_virtual_time

PARTITIONS = pytest.mark.parametrize("count", [1, 16])


async def add_all(there: Hosts, tasks: list[NewTask]) -> None:
    left = iter(tasks)

    async def produce() -> None:
        for task in left:
            await there.client.add(ORDERS, task)

    await asyncio.gather(*(produce() for _ in range(100)))


async def poll(there: Hosts, tasks: int) -> list[str]:
    """Take this number of tasks with 32 workers. Returns their payloads in the order of dispatch."""
    got: list[str] = []

    async def work() -> None:
        while len(got) < tasks:
            answer = await there.client.poll(ORDERS, "worker", timeout_s=20)
            if answer.task is not None:
                got.append(answer.task.decode())
            await asyncio.sleep(0.001)

    await asyncio.gather(*(work() for _ in range(32)))
    return got[:tasks]


@PARTITIONS
@on_virtual_time
async def test_small_keys_beside_a_flood_finish_within_their_fair_share(count: int) -> None:
    """FL-39, with a flood of 10,000 tasks: `make bench` runs it with 100,000."""
    flood, small, each = 10_000, 99, 10
    async with hosts(overrides=partitions(count)) as there:
        await add_all(there, [NewTask(3, "flood", 1.0, b"flood")] * flood)
        tasks = [NewTask(3, f"small-{key}", 1.0, f"small-{key}".encode()) for key in range(small) for _ in range(each)]
        random.Random(1).shuffle(tasks)
        await add_all(there, tasks)
        order = await poll(there, 2_000)
    assert Counter(one for one in order if one != "flood") == {f"small-{key}": each for key in range(small)}
    if count == 1:
        # A fair share is ten rounds of all keys; two more rounds are tolerated.
        last = max(place for place, one in enumerate(order) if one != "flood")
        assert last < (each + 2) * (small + 1)
    served = Counter(order[: each * (small + 1)])
    assert jain_index([served[f"small-{key}"] for key in range(small)]) >= 0.99


@PARTITIONS
@on_virtual_time
async def test_shares_are_in_the_ratio_of_the_weights(count: int) -> None:
    """FL-39: 1:2:5 to within 3 %, over all partitions."""
    weights = {"one": 1.0, "two": 2.0, "five": 5.0}
    async with hosts(overrides=partitions(count)) as there:
        await add_all(there, [NewTask(3, key, weights[key], key.encode()) for _ in range(3_000) for key in weights])
        served = Counter(await poll(there, 3_200))
    for key, weight in weights.items():
        assert served[key] / 3_200 == pytest.approx(weight / 8, rel=0.03)
    assert jain_index([served[key] / weight for key, weight in weights.items()]) >= 0.99
