"""The task queues of a shard on every store: read in order, due by time, completed by range or one by one."""

import pytest

from fairlead.storage.commit import BadCommit, Commit
from fairlead.storage.history import TASK_KEY_ZERO, TASKS_COMPLETED_MAX, HistoryStore, StoredHistoryTask, TaskKey
from fairlead.storage.history_conflicts import TaskBelowLevel
from tests.storage.history.writes import SHARD, task


async def ids(store: HistoryStore, queue: str = "transfer", until_ns: int | None = None) -> list[int]:
    found = await store.read_tasks(SHARD, queue, after=TASK_KEY_ZERO, until_ns=until_ns, limit=1000)
    return [one.key.task_id for one in found]


async def test_tasks_are_read_in_order_of_time_then_id(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    times = [(50, 1), (10, 9), (50, 0), (10, 2), (2**62, 3), (0, 8)]
    writes = [
        task(task_id, queue="timer", fire_at_ns=fire_at_ns, payload=b"%d" % fire_at_ns) for fire_at_ns, task_id in times
    ]
    await store.commit(SHARD, lease.range_id, Commit(tasks=[*writes, task(77)]))
    found: list[StoredHistoryTask] = []
    while page := await store.read_tasks(
        SHARD, "timer", after=found[-1].key if found else TASK_KEY_ZERO, until_ns=None, limit=2
    ):
        found += page
    assert found == [StoredHistoryTask(TaskKey(*at), b"%d" % at[0]) for at in sorted(times)]
    assert await ids(store) == [77]


async def test_only_due_tasks_are_read(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    writes = [task(number, queue="timer", fire_at_ns=100 * number) for number in range(1, 5)]
    await store.commit(SHARD, lease.range_id, Commit(tasks=writes))
    assert await ids(store, "timer", until_ns=99) == []
    assert await ids(store, "timer", until_ns=200) == [1, 2]
    assert await ids(store, "timer", until_ns=299) == [1, 2]


async def test_completing_a_range_deletes_its_tasks_and_saves_its_end(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    await store.commit(SHARD, lease.range_id, Commit(tasks=[task(number) for number in range(1, 8)]))
    await store.commit(SHARD, lease.range_id, Commit(tasks=[task(1, queue="timer")]))
    assert await store.complete_tasks(SHARD, lease.range_id, "transfer", TaskKey(0, 3)) == 3
    assert await ids(store) == [4, 5, 6, 7]
    # A level never decreases.
    assert await store.complete_tasks(SHARD, lease.range_id, "transfer", TaskKey(0, 2)) == 0
    assert await store.complete_tasks(SHARD, lease.range_id, "transfer", TaskKey(0, 6), limit=2) == 2
    assert await ids(store) == [6, 7]
    assert (await store.take_shard(SHARD)).levels == {"transfer": TaskKey(0, 6)}
    assert await ids(store, "timer") == [1]


async def test_single_tasks_can_be_completed_out_of_order(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    await store.commit(SHARD, lease.range_id, Commit(tasks=[task(number) for number in range(1, 8)]))
    singles = [TaskKey(0, 5), TaskKey(0, 3), TaskKey(9, 1)]
    assert await store.complete_tasks(SHARD, lease.range_id, "transfer", singles=singles) == 2
    assert await ids(store) == [1, 2, 4, 6, 7]
    both = [TaskKey(0, 7), TaskKey(0, 2)]
    assert await store.complete_tasks(SHARD, lease.range_id, "transfer", TaskKey(0, 2), singles=both) == 3
    assert await ids(store) == [4, 6]
    assert (await store.take_shard(SHARD)).levels == {"transfer": TaskKey(0, 2)}
    too_many = [TaskKey(0, 1)] * (TASKS_COMPLETED_MAX + 1)
    with pytest.raises(BadCommit, match="10001 single tasks"):
        await store.complete_tasks(SHARD, lease.range_id + 1, "transfer", singles=too_many)


async def test_a_task_at_or_below_the_completed_level_is_refused(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    await store.complete_tasks(SHARD, lease.range_id, "timer", TaskKey(100, 5))
    for fire_at_ns, task_id in [(100, 5), (100, 4), (99, 9)]:
        late = task(task_id, queue="timer", fire_at_ns=fire_at_ns)
        with pytest.raises(TaskBelowLevel) as raised:
            await store.commit(SHARD, lease.range_id, Commit(tasks=[late]))
        assert raised.value.level == TaskKey(100, 5)
    above = [task(6, queue="timer", fire_at_ns=100), task(1, queue="timer", fire_at_ns=101), task(1)]
    await store.commit(SHARD, lease.range_id, Commit(tasks=above))
    assert await ids(store, "timer") == [6, 1]
    assert await ids(store) == [1]


async def test_a_task_written_twice_is_stored_once(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    for payload in (b"first", b"second"):
        await store.commit(SHARD, lease.range_id, Commit(tasks=[task(1, payload=payload)]))
    found = await store.read_tasks(SHARD, "transfer", after=TASK_KEY_ZERO, until_ns=None, limit=10)
    assert found == [StoredHistoryTask(TaskKey(0, 1), b"second")]
