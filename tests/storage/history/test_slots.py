"""Slots of running activities: every store refuses beyond a limit, also to takers that come at the same time."""

import asyncio
from collections import Counter

import pytest

from fairlead.core.concurrency import Full, Slot, SlotLimits
from fairlead.storage.history import HistoryStore, LeaseLost
from tests.storage.history.hosts import OpenStore


def slot(token: str, *, key: str = "a", queue: str = "q", shard_id: int = 1) -> Slot:
    return Slot(token, shard_id, "ns", queue, key, "ns", f"workflow-{token}", f"run-{token}", 5)


async def test_a_slot_is_refused_at_the_limit_of_its_key_or_of_its_task_queue(store: HistoryStore) -> None:
    """FL-80: a started activity of a limited task queue holds a slot, and there are no more slots than the limit."""
    range_id = (await store.take_shard(1)).range_id
    limits = SlotLimits(key_max=2, queue_max=3)
    assert await store.take_slot(range_id, slot("1"), limits) is None
    assert await store.take_slot(range_id, slot("2"), limits) is None
    assert await store.take_slot(range_id, slot("3"), limits) is Full.KEY
    assert await store.take_slot(range_id, slot("4", key="b"), limits) is None
    assert await store.take_slot(range_id, slot("5", key="b"), limits) is Full.QUEUE
    assert await store.take_slot(range_id, slot("6", queue="other"), limits) is None
    assert await store.count_slots("ns", "q") == {"a": 2, "b": 1}
    # A repeated request takes nothing more, even at the limit.
    assert await store.take_slot(range_id, slot("1"), limits) is None
    await store.free_slot("1")
    await store.free_slot("1")
    assert await store.take_slot(range_id, slot("3"), limits) is None
    assert await store.count_slots("ns", "q") == {"a": 2, "b": 1}
    assert [each.token for each in await store.list_slots(1)] == ["2", "3", "4", "6"]
    assert await store.list_slots(2) == []
    assert await store.count_slots("ns", "unknown") == {}


async def test_an_owner_that_has_lost_its_shard_takes_no_slot(store: HistoryStore) -> None:
    """FL-82: the next owner lists the slots of its shard, and an earlier owner can't add one."""
    before = (await store.take_shard(1)).range_id
    await store.take_shard(1)
    with pytest.raises(LeaseLost):
        await store.take_slot(before, slot("1"), SlotLimits(key_max=1))
    assert await store.list_slots(1) == []


async def test_takers_on_many_hosts_never_exceed_a_limit_together(open_store: OpenStore) -> None:
    hosts = [(await open_store()).history for _ in range(3)]
    ranges = [(await host.take_shard(number)).range_id for number, host in enumerate(hosts)]
    for limits, expected in ((SlotLimits(key_max=4), 8), (SlotLimits(key_max=4, queue_max=5), 5)):
        queue = f"q{expected}"
        answers = await asyncio.gather(
            *(
                hosts[number % 3].take_slot(
                    ranges[number % 3],
                    slot(f"{queue}-{number}", key="ab"[number % 2], queue=queue, shard_id=number % 3),
                    limits,
                )
                for number in range(30)
            )
        )
        assert Counter(answers)[None] == expected
        counts = await hosts[0].count_slots("ns", queue)
        assert sum(counts.values()) == expected
        assert max(counts.values()) <= 4
