"""The contract of a task store, tested on every store: what the matching service relies on."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fairlead.core.fairness import LEVEL_ZERO, Level, StoredKey
from fairlead.core.partitions import PartitionConfig, TaskType
from fairlead.storage.tasks import (
    MEMBER_FORGOTTEN_AFTER_S,
    Lease,
    LeaseLost,
    Levels,
    LevelTaken,
    Member,
    QueueId,
    StoredTask,
    StoreUnavailable,
    TaskStore,
)

QUEUE = QueueId("namespace", "orders", TaskType.ACTIVITY)
PRIORITY = 3
HIGHEST = Level(2**62, 2**62)


def task(
    pass_number: int, task_id: int, *, key: str = "tenant", weight: float = 1.0, payload: bytes = b"x"
) -> StoredTask:
    return StoredTask(Level(pass_number, task_id), key, weight, payload, created_s=1e9 + task_id)


def reached(tasks: list[StoredTask], *, ack_level: Level = LEVEL_ZERO) -> Levels:
    return Levels(ack_level, max(task.level for task in tasks))


async def append(store: TaskStore, range_id: int, *tasks: StoredTask, priority: int = PRIORITY) -> None:
    await store.append(QUEUE, range_id, priority, tasks, reached(list(tasks)))


async def all_tasks(store: TaskStore, queue: QueueId = QUEUE, priority: int = PRIORITY) -> list[StoredTask]:
    return await store.read(queue, priority, after=LEVEL_ZERO, limit=10_000)


# --- the lease


async def test_the_first_lease_of_a_queue_creates_it(store: TaskStore) -> None:
    assert await store.take_lease(QUEUE) == Lease(1, {}, None)


async def test_every_lease_has_a_higher_range_id(store: TaskStore) -> None:
    """FB-17: the new owner raises the range id, so that writes of the old owner fail."""
    range_ids = [(await store.take_lease(QUEUE)).range_id]
    range_ids.append((await store.take_lease(QUEUE)).range_id)
    range_ids.append(await store.renew_lease(QUEUE, range_ids[-1]))
    range_ids.append((await store.take_lease(QUEUE)).range_id)
    assert range_ids == [1, 2, 3, 4]


async def test_leases_of_different_queues_are_independent(store: TaskStore) -> None:
    other = QUEUE._replace(type=TaskType.WORKFLOW)
    mine = await store.take_lease(QUEUE)
    await store.take_lease(other)
    await store.take_lease(other)
    await append(store, mine.range_id, task(1, 1))
    assert await all_tasks(store, other) == []


async def test_owners_that_race_for_a_queue_get_distinct_range_ids(store: TaskStore) -> None:
    leases = await asyncio.gather(*(store.take_lease(QUEUE) for _ in range(20)))
    assert sorted(lease.range_id for lease in leases) == list(range(1, 21))


async def test_writes_with_the_old_range_id_fail_after_a_renewal(store: TaskStore) -> None:
    """The promise of `OutcomeUnknown`: after a renewal, an earlier write has taken effect or never will."""
    lease = await store.take_lease(QUEUE)
    renewed = await store.renew_lease(QUEUE, lease.range_id)
    with pytest.raises(LeaseLost):
        await append(store, lease.range_id, task(1, 1))
    await append(store, renewed, task(1, 2))
    assert await all_tasks(store) == [task(1, 2)]


# --- fencing

CONFIG = PartitionConfig(version=1, read=4, write=4)
WRITES: dict[str, Callable[[TaskStore, int], Awaitable[object]]] = {
    "append": lambda store, range_id: append(store, range_id, task(9, 9)),
    "delete_through": lambda store, range_id: store.delete_through(
        QUEUE, range_id, PRIORITY, through=HIGHEST, limit=100
    ),
    "save_levels": lambda store, range_id: store.save_levels(QUEUE, range_id, {PRIORITY: Levels(HIGHEST, HIGHEST)}),
    "save_config": lambda store, range_id: store.save_config(
        QUEUE, range_id, PartitionConfig(version=7, read=9, write=9)
    ),
    "save_rules": lambda store, range_id: store.save_rules(
        QUEUE, range_id, PartitionConfig(version=7, read=9, write=9), b"late"
    ),
    "count": lambda store, range_id: store.count(QUEUE, range_id),
    "renew_lease": lambda store, range_id: store.renew_lease(QUEUE, range_id),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_every_write_of_the_old_owner_fails_after_a_takeover(
    store: TaskStore, write: Callable[[TaskStore, int], Awaitable[object]]
) -> None:
    """FL-42: every write is conditional on the range id, deletes included."""
    old = await store.take_lease(QUEUE)
    await append(store, old.range_id, task(1, 1), task(2, 2))
    await store.save_rules(QUEUE, old.range_id, CONFIG, b"rules")
    new = await store.take_lease(QUEUE)
    with pytest.raises(LeaseLost):
        await write(store, old.range_id)
    assert await all_tasks(store) == [task(1, 1), task(2, 2)]
    assert await store.load_config(QUEUE) == CONFIG
    assert await store.load_rules(QUEUE) == b"rules"
    assert await store.count(QUEUE, new.range_id) == 2
    assert await store.take_lease(QUEUE) == Lease(3, {PRIORITY: Levels(LEVEL_ZERO, Level(2, 2))}, CONFIG)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_a_write_to_a_queue_without_a_lease_fails(
    store: TaskStore, write: Callable[[TaskStore, int], Awaitable[object]]
) -> None:
    for range_id in (0, 1):
        with pytest.raises(LeaseLost):
            await write(store, range_id)
    assert await store.list_queues(None, after=None, limit=10) == []
    assert await store.take_lease(QUEUE) == Lease(1, {}, None)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_a_write_with_a_range_id_above_the_current_one_fails(
    store: TaskStore, write: Callable[[TaskStore, int], Awaitable[object]]
) -> None:
    lease = await store.take_lease(QUEUE)
    with pytest.raises(LeaseLost):
        await write(store, lease.range_id + 1)


async def test_writes_of_two_concurrent_owners_succeed_only_for_the_later_one(store: TaskStore) -> None:
    """Each append of the old owner took effect before the takeover and is visible to the new owner, or failed."""
    old = await store.take_lease(QUEUE)
    appends = [asyncio.ensure_future(append(store, old.range_id, task(number, number))) for number in range(1, 51)]
    new = await store.take_lease(QUEUE)
    seen_by_new = {task.level.task_id for task in await all_tasks(store)}
    appends += [asyncio.ensure_future(append(store, old.range_id, task(number, number))) for number in range(51, 101)]
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    acknowledged = {number for number, outcome in enumerate(outcomes, start=1) if outcome is None}
    assert all(outcome is None or isinstance(outcome, LeaseLost) for outcome in outcomes)
    assert seen_by_new == acknowledged
    assert acknowledged <= set(range(1, 51))
    assert await store.count(QUEUE, new.range_id) == len(acknowledged)


# --- appending and reading


async def test_tasks_are_read_in_order_of_pass_then_id(store: TaskStore) -> None:
    """FB-2: the store orders levels by pass, then by id."""
    lease = await store.take_lease(QUEUE)
    await append(store, lease.range_id, task(10, 1), task(2, 2), task(2**40, 3))
    await append(store, lease.range_id, task(2, 5), task(1, 6))
    await append(store, lease.range_id, task(2, 4))
    levels = [task.level for task in await all_tasks(store)]
    assert levels == [Level(1, 6), Level(2, 2), Level(2, 4), Level(2, 5), Level(10, 1), Level(2**40, 3)]


async def test_each_priority_has_its_own_backlog(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    for priority in (1, 5):
        await append(store, lease.range_id, task(priority, priority), priority=priority)
    assert await all_tasks(store, priority=1) == [task(1, 1)]
    assert await all_tasks(store, priority=5) == [task(5, 5)]
    assert await all_tasks(store, priority=3) == []
    assert await store.delete_through(QUEUE, lease.range_id, 1, through=HIGHEST, limit=100) == 1
    assert await all_tasks(store, priority=5) == [task(5, 5)]
    assert await store.count(QUEUE, lease.range_id) == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
async def test_a_page_is_full_unless_it_is_the_last(store: TaskStore, limit: int) -> None:
    lease = await store.take_lease(QUEUE)
    tasks = [task(number // 2, number) for number in range(1, 6)]
    await append(store, lease.range_id, *tasks)
    assert await store.read(QUEUE, PRIORITY, after=LEVEL_ZERO, limit=limit) == tasks[:limit]


async def test_a_read_begins_above_the_given_level(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    tasks = [task(1, 1), task(1, 3), task(2, 2)]
    await append(store, lease.range_id, *tasks)
    expected = {
        Level(0, 9): tasks,
        Level(1, 0): tasks,
        Level(1, 1): tasks[1:],
        Level(1, 2): tasks[1:],
        Level(1, 3): tasks[2:],
        Level(1, 9): tasks[2:],
        Level(2, 1): tasks[2:],
        Level(2, 2): [],
        HIGHEST: [],
    }
    for after, found in expected.items():
        assert await store.read(QUEUE, PRIORITY, after=after, limit=10) == found


async def test_consecutive_pages_hold_the_whole_backlog(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    # Ids fall as passes rise, so that the second page begins with lower ids than the first page ended with.
    tasks = [task(number // 7, 10_000 - number, key=f"tenant-{number % 13}") for number in range(5000)]
    for start in range(0, 5000, 500):
        await append(store, lease.range_id, *tasks[start : start + 500])
    found: list[StoredTask] = []
    while page := await store.read(QUEUE, PRIORITY, after=found[-1].level if found else LEVEL_ZERO, limit=333):
        found += page
    assert found == sorted(tasks)


async def test_every_field_of_a_task_is_read_as_it_was_written(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    tasks = [
        task(0, 1, key="", weight=0.001, payload=b""),
        task(2**62, 2**62, key="ключ/钥匙 🔑", weight=0.1 + 0.2, payload=bytes(range(256))),
        task(1, 3, key="nul\0inside", weight=1e9, payload=b"\0"),
    ]
    await append(store, lease.range_id, *tasks)
    assert await all_tasks(store) == sorted(tasks)
    assert all(type(found.payload) is bytes for found in await all_tasks(store))


async def test_an_old_task_is_not_deleted(store: TaskStore) -> None:
    """FB-18: a task has no time to live."""
    lease = await store.take_lease(QUEUE)
    old = task(2, 1)._replace(created_s=1.0)
    await append(store, lease.range_id, old)
    # A store would clean up during a write, a delete, or the removal of expired members.
    await append(store, lease.range_id, task(1, 2), task(3, 3))
    await store.heartbeat(Member("host-a:7235", 2e9))
    await store.delete_through(QUEUE, lease.range_id, PRIORITY, through=Level(1, 2), limit=100)
    assert await all_tasks(store) == [old, task(3, 3)]


async def test_a_payload_of_2_mib_is_stored_completely(store: TaskStore) -> None:
    """The limit of a blob is 2 MiB."""
    lease = await store.take_lease(QUEUE)
    large = [task(1, number, payload=bytes([number]) * 2 * 1024 * 1024) for number in range(1, 12)]
    await asyncio.gather(*(append(store, lease.range_id, one) for one in large))
    assert await all_tasks(store) == large


@pytest.mark.parametrize(
    "name", ["/_sys/orders/3", "a/b//c", "заказы", "订单 📦", " ", "a'b\"c;--", "x" * 1000, "É" * 1000]
)
async def test_names_are_stored_exactly(store: TaskStore, name: str) -> None:
    queue = QueueId("пространство/1", name, TaskType.WORKFLOW)
    lease = await store.take_lease(queue)
    await store.append(queue, lease.range_id, PRIORITY, [task(1, 1)], reached([task(1, 1)]))
    assert await store.list_queues(None, after=None, limit=10) == [queue]
    assert await all_tasks(store, queue) == [task(1, 1)]
    assert await all_tasks(store, queue._replace(name=name.swapcase() + " ")) == []


async def test_names_that_differ_only_in_case_or_unicode_form_are_different_queues(store: TaskStore) -> None:
    # The last two look alike: a precomposed letter, and a letter with a combining accent.
    names = ["orders", "Orders", "orders ", "\u00e9", "e\u0301"]
    for number, name in enumerate(names, start=1):
        queue = QUEUE._replace(name=name)
        lease = await store.take_lease(queue)
        assert lease.range_id == 1
        await store.append(queue, lease.range_id, PRIORITY, [task(number, number)], reached([task(number, number)]))
    for number, name in enumerate(names, start=1):
        assert await all_tasks(store, QUEUE._replace(name=name)) == [task(number, number)]


async def test_an_unknown_queue_is_empty(store: TaskStore) -> None:
    await store.take_lease(QUEUE._replace(name="another"))
    assert await all_tasks(store) == []
    assert await store.stored_keys(QUEUE, PRIORITY, after=LEVEL_ZERO) == []
    assert await store.load_config(QUEUE) is None


async def test_an_append_is_stored_completely_or_not_at_all(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    await append(store, lease.range_id, task(5, 5))
    with pytest.raises(LevelTaken):
        await append(store, lease.range_id, task(4, 4), task(5, 5, payload=b"another"), task(6, 6))
    assert await all_tasks(store) == [task(5, 5)]
    assert await store.count(QUEUE, lease.range_id) == 1
    assert (await store.take_lease(QUEUE)).levels == {PRIORITY: Levels(LEVEL_ZERO, Level(5, 5))}


async def test_an_append_with_a_duplicate_level_is_refused_completely(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    with pytest.raises(LevelTaken):
        await append(store, lease.range_id, task(4, 4), task(4, 4, payload=b"another"))
    assert await all_tasks(store) == []
    assert await store.count(QUEUE, lease.range_id) == 0


async def test_a_refused_append_fails_no_other_append_of_the_same_transaction(store: TaskStore) -> None:
    """Group commit: callers share a transaction, but not its errors."""
    lease = await store.take_lease(QUEUE)
    stale = await store.take_lease(QUEUE._replace(name="stale"))
    await store.take_lease(QUEUE._replace(name="stale"))
    await append(store, lease.range_id, task(0, 500))

    def one(number: int) -> Awaitable[None]:
        if number == 20:
            return append(store, lease.range_id, task(0, 500), task(0, 501))
        if number % 10 == 5:
            other = QUEUE._replace(name="stale")
            return store.append(other, stale.range_id, PRIORITY, [task(1, number)], reached([task(1, number)]))
        return append(store, lease.range_id, task(1, number))

    outcomes = await asyncio.gather(*(one(number) for number in range(1, 101)), return_exceptions=True)
    refused = {number: type(outcome) for number, outcome in enumerate(outcomes, start=1) if outcome is not None}
    assert refused == {20: LevelTaken} | dict.fromkeys(range(5, 101, 10), LeaseLost)
    stored = [found.level.task_id for found in await all_tasks(store)]
    assert stored == [500, *(number for number in range(1, 101) if number not in refused)]
    assert await store.count(QUEUE, lease.range_id) == len(stored)
    assert await all_tasks(store, QUEUE._replace(name="stale")) == []


async def test_concurrent_appends_to_many_queues_are_all_stored(store: TaskStore) -> None:
    queues = [QUEUE._replace(name=f"orders-{number}") for number in range(20)]
    leases = await asyncio.gather(*(store.take_lease(queue) for queue in queues))

    async def fill(queue: QueueId, lease: Lease) -> None:
        tasks = [task(number, number, key=queue.name) for number in range(1, 51)]
        await asyncio.gather(*(store.append(queue, lease.range_id, PRIORITY, [one], reached([one])) for one in tasks))

    await asyncio.gather(*(fill(queue, lease) for queue, lease in zip(queues, leases, strict=True)))
    for queue, lease in zip(queues, leases, strict=True):
        assert await all_tasks(store, queue) == [task(number, number, key=queue.name) for number in range(1, 51)]
        assert await store.count(queue, lease.range_id) == 50
        assert (await store.take_lease(queue)).levels == {PRIORITY: Levels(LEVEL_ZERO, Level(50, 50))}


async def test_a_read_sees_every_acknowledged_append(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    for number in range(1, 51):
        await append(store, lease.range_id, task(number, number))
        assert await store.read(QUEUE, PRIORITY, after=Level(number - 1, number - 1), limit=10) == [
            task(number, number)
        ]
        assert await store.count(QUEUE, lease.range_id) == number


# --- the keys of the stored tasks


async def test_stored_keys_have_their_lowest_and_highest_pass_and_the_last_tasks_weight(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    await append(
        store,
        lease.range_id,
        task(7, 1, key="a", weight=1.0),
        task(3, 2, key="a", weight=2.0),
        task(5, 3, key="a", weight=3.0),
        task(4, 4, key="b", weight=4.0),
        task(9, 5, key="", weight=0.5),
        # If two tasks have the same pass, the one with the higher id is the last.
        task(6, 8, key="c", weight=8.0),
        task(6, 7, key="c", weight=7.0),
        task(6, 9, key="c", weight=0.25),
        task(6, 6, key="c", weight=6.0),
    )
    assert sorted(await store.stored_keys(QUEUE, PRIORITY, after=LEVEL_ZERO)) == [
        StoredKey("", 9, 9, 0.5),
        StoredKey("a", 3, 7, 1.0),
        StoredKey("b", 4, 4, 4.0),
        StoredKey("c", 6, 6, 0.25),
    ]


async def test_stored_keys_count_only_tasks_above_the_level(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    await append(
        store, lease.range_id, task(1, 1, key="a"), task(2, 2, key="a"), task(2, 3, key="b"), task(3, 4, key="b")
    )
    await append(store, lease.range_id, task(9, 9, key="a"), priority=1)
    assert sorted(await store.stored_keys(QUEUE, PRIORITY, after=Level(2, 2))) == [StoredKey("b", 2, 3, 1.0)]
    assert sorted(await store.stored_keys(QUEUE, PRIORITY, after=Level(1, 1))) == [
        StoredKey("a", 2, 2, 1.0),
        StoredKey("b", 2, 3, 1.0),
    ]
    assert await store.stored_keys(QUEUE, PRIORITY, after=Level(3, 4)) == []


async def test_stored_keys_are_complete_if_there_are_thousands(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    await append(store, lease.range_id, *(task(1, number, key=f"key-{number}") for number in range(1, 4_102)))
    keys = await store.stored_keys(QUEUE, PRIORITY, after=LEVEL_ZERO)
    assert {key.key for key in keys} == {f"key-{number}" for number in range(1, 4_102)}
    assert len(keys) == 4_101


# --- deleting


async def test_a_delete_includes_its_level_and_nothing_above_it(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    tasks = [task(1, 1), task(1, 4), task(2, 2), task(2, 3), task(3, 5)]
    await append(store, lease.range_id, *tasks)
    assert await store.delete_through(QUEUE, lease.range_id, PRIORITY, through=Level(2, 2), limit=100) == 3
    assert await all_tasks(store) == tasks[3:]
    assert await store.count(QUEUE, lease.range_id) == 2
    assert await store.delete_through(QUEUE, lease.range_id, PRIORITY, through=Level(2, 2), limit=100) == 0


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (4, 4), (5, 5), (6, 5)])
async def test_a_delete_begins_with_the_lowest_level_and_stops_at_its_limit(
    store: TaskStore, limit: int, expected: int
) -> None:
    lease = await store.take_lease(QUEUE)
    tasks = [task(number, number) for number in range(1, 8)]
    await append(store, lease.range_id, *tasks)
    assert await store.delete_through(QUEUE, lease.range_id, PRIORITY, through=Level(5, 5), limit=limit) == expected
    assert await all_tasks(store) == tasks[expected:]
    assert await store.count(QUEUE, lease.range_id) == 7 - expected


async def test_a_delete_saves_its_level_as_the_ack_level(store: TaskStore) -> None:
    """The next owner after a crash must not begin below the deleted levels."""
    lease = await store.take_lease(QUEUE)
    await append(store, lease.range_id, *(task(number, number) for number in range(1, 8)))
    await store.delete_through(QUEUE, lease.range_id, PRIORITY, through=Level(5, 9), limit=2)
    assert (await store.take_lease(QUEUE)).levels == {PRIORITY: Levels(Level(5, 9), Level(7, 7))}


async def test_a_delete_in_a_priority_without_tasks_saves_its_level_too(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    assert await store.delete_through(QUEUE, lease.range_id, PRIORITY, through=Level(5, 9), limit=2) == 0
    assert (await store.take_lease(QUEUE)).levels == {PRIORITY: Levels(Level(5, 9), LEVEL_ZERO)}


async def test_concurrent_deletes_and_appends_keep_the_count_exact(store: TaskStore) -> None:
    """A partition is drained only when the store holds no task of it, so the count must be exact."""
    lease = await store.take_lease(QUEUE)
    work: list[Awaitable[object]] = []
    for number in range(1, 101):
        work.append(append(store, lease.range_id, task(number, number)))
        if number % 10 == 0:
            through = Level(number - 5, number - 5)
            work.append(store.delete_through(QUEUE, lease.range_id, PRIORITY, through=through, limit=7))
    await asyncio.gather(*work)
    assert await store.count(QUEUE, lease.range_id) == len(await all_tasks(store))
    while await store.delete_through(QUEUE, lease.range_id, PRIORITY, through=HIGHEST, limit=30):
        pass
    assert await store.count(QUEUE, lease.range_id) == 0
    assert await all_tasks(store) == []


# --- levels and configuration


async def test_a_new_lease_returns_the_saved_levels(store: TaskStore) -> None:
    """FB-5, FB-7: the next owner begins with the last saved levels."""
    lease = await store.take_lease(QUEUE)
    levels = {1: Levels(Level(1, 2), Level(3, 4)), 5: Levels(LEVEL_ZERO, Level(2**62, 2**62))}
    await store.save_levels(QUEUE, lease.range_id, levels)
    assert (await store.take_lease(QUEUE)).levels == levels
    await store.save_levels(QUEUE, lease.range_id + 1, {5: Levels(Level(9, 9), Level(2**62, 2**62))})
    assert (await store.take_lease(QUEUE)).levels == {**levels, 5: Levels(Level(9, 9), Level(2**62, 2**62))}


@pytest.mark.parametrize("how", ["append", "save_levels"])
async def test_saved_levels_never_decrease(store: TaskStore, how: str) -> None:
    """FB-4: A never decreases, although writes of one owner may arrive out of order."""
    lease = await store.take_lease(QUEUE)
    await store.save_levels(QUEUE, lease.range_id, {PRIORITY: Levels(Level(5, 5), Level(8, 8))})
    older = Levels(Level(5, 4), Level(7, 9))
    if how == "append":
        await store.append(QUEUE, lease.range_id, PRIORITY, [task(7, 9)], older)
    else:
        await store.save_levels(QUEUE, lease.range_id, {PRIORITY: older})
    assert (await store.take_lease(QUEUE)).levels == {PRIORITY: Levels(Level(5, 5), Level(8, 8))}
    # Each of the two levels by itself.
    await store.save_levels(QUEUE, lease.range_id + 1, {PRIORITY: Levels(Level(5, 6), Level(1, 1))})
    await store.save_levels(QUEUE, lease.range_id + 1, {PRIORITY: Levels(Level(1, 1), Level(9, 1))})
    assert (await store.take_lease(QUEUE)).levels == {PRIORITY: Levels(Level(5, 6), Level(9, 1))}


async def test_an_append_saves_its_levels_with_its_tasks(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    await store.append(QUEUE, lease.range_id, 2, [task(4, 4)], Levels(Level(3, 3), Level(4, 4)))
    assert (await store.take_lease(QUEUE)).levels == {2: Levels(Level(3, 3), Level(4, 4))}


async def test_the_configuration_can_be_read_without_a_lease(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    assert await store.load_config(QUEUE) is None
    for config in (PartitionConfig(version=1, read=4, write=4), PartitionConfig(version=2, read=4, write=2)):
        await store.save_config(QUEUE, lease.range_id, config)
        assert await store.load_config(QUEUE) == config
    assert (await store.take_lease(QUEUE)).config == PartitionConfig(version=2, read=4, write=2)
    assert await store.load_config(QUEUE._replace(type=TaskType.WORKFLOW)) is None


async def test_rules_are_saved_with_the_configuration_and_kept_when_it_changes(store: TaskStore) -> None:
    assert await store.load_rules(QUEUE) is None
    lease = await store.take_lease(QUEUE)
    assert await store.load_rules(QUEUE) is None
    long = bytes(range(256)) * 400
    for version, rules in enumerate((b"", b"first", long), start=1):
        config = PartitionConfig(version=version, read=4, write=4)
        await store.save_rules(QUEUE, lease.range_id, config, rules)
        assert (await store.load_config(QUEUE), await store.load_rules(QUEUE)) == (config, rules)
    changed = PartitionConfig(version=9, read=2, write=1)
    await store.save_config(QUEUE, lease.range_id, changed)
    assert (await store.take_lease(QUEUE)).config == changed
    assert await store.load_rules(QUEUE) == long
    assert await store.load_rules(QUEUE._replace(type=TaskType.WORKFLOW)) is None


async def test_a_root_lists_its_stored_partitions_and_which_of_them_hold_tasks(store: TaskStore) -> None:
    names = ["/_sys/{}/1", "/_sys/{}/12", "/_sys/{}/x/3", "/_sys/{}0/4", "{}", "{}/5"]
    for name in names:
        await store.take_lease(QUEUE._replace(name=name.format(QUEUE.name)))
    await store.take_lease(QUEUE._replace(name=f"/_sys/{QUEUE.name}/7", type=TaskType.WORKFLOW))
    await store.take_lease(QUEUE._replace(name=f"/_sys/{QUEUE.name}/8", namespace_id="other"))
    full = QUEUE._replace(name=f"/_sys/{QUEUE.name}/12")
    lease = await store.take_lease(full)
    await store.append(full, lease.range_id, 2, [task(4, 4)], Levels(LEVEL_ZERO, Level(4, 4)))
    assert await store.list_partitions(QUEUE) == {1: False, 12: True}
    await store.delete_through(full, lease.range_id, 2, through=Level(4, 4), limit=10)
    assert await store.list_partitions(QUEUE) == {1: False, 12: False}


async def test_the_task_count_includes_all_priorities(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    assert await store.count(QUEUE, lease.range_id) == 0
    for priority in range(1, 6):
        await append(store, lease.range_id, *(task(1, number) for number in range(1, priority + 1)), priority=priority)
    assert await store.count(QUEUE, lease.range_id) == 15


# --- the list of queues


async def test_queues_are_listed_in_pages_in_order(store: TaskStore) -> None:
    queues = [
        QueueId(namespace, name, type_)
        for namespace in ("a", "B", "é")
        for name in ("x", "X", "/_sys/x/1", "ж", "🚢", "\uffee")
        for type_ in (TaskType.WORKFLOW, TaskType.ACTIVITY)
    ]
    for queue in queues:
        await store.take_lease(queue)
    found: list[QueueId] = []
    while page := await store.list_queues(None, after=found[-1] if found else None, limit=5):
        assert len(page) == min(5, len(queues) - len(found))
        found += page
    assert found == sorted(queues)
    assert all(isinstance(queue.type, TaskType) for queue in found)


async def test_a_list_of_one_namespaces_queues_has_no_others(store: TaskStore) -> None:
    for namespace in ("a", "b", "c"):
        for number in range(5):
            await store.take_lease(QueueId(namespace, f"orders-{number}", TaskType.ACTIVITY))
    page = await store.list_queues("b", after=None, limit=3)
    assert page == [QueueId("b", f"orders-{number}", TaskType.ACTIVITY) for number in range(3)]
    page = await store.list_queues("b", after=page[-1], limit=3)
    assert page == [QueueId("b", f"orders-{number}", TaskType.ACTIVITY) for number in range(3, 5)]
    assert await store.list_queues("b", after=page[-1], limit=3) == []
    assert await store.list_queues("nobody", after=None, limit=3) == []


# --- members


async def test_a_member_is_alive_until_its_heartbeat_expires(store: TaskStore) -> None:
    await store.heartbeat(Member("host-b:7235", 110.5))
    await store.heartbeat(Member("host-a:7235", 120.0))
    assert await store.members(now_s=100.0) == [Member("host-a:7235", 120.0), Member("host-b:7235", 110.5)]
    assert await store.members(now_s=110.4) == [Member("host-a:7235", 120.0), Member("host-b:7235", 110.5)]
    assert await store.members(now_s=110.5) == [Member("host-a:7235", 120.0)]
    assert await store.members(now_s=120.0) == []


async def test_a_heartbeat_extends_a_members_life(store: TaskStore) -> None:
    await store.heartbeat(Member("host-a:7235", 110.0))
    await store.heartbeat(Member("host-a:7235", 130.0))
    assert await store.members(now_s=120.0) == [Member("host-a:7235", 130.0)]


async def test_a_heartbeat_returns_the_members_that_are_alive_after_it(store: TaskStore) -> None:
    first, second = Member("host-a:7235", 110.0), Member("host-b:7235", 120.0)
    assert await store.heartbeat(first, now_s=100.0) == [first]
    assert await store.heartbeat(second, now_s=105.0) == [first, second]
    assert await store.heartbeat(second, now_s=110.0) == [second]
    again = Member("host-a:7235", 130.0)
    assert await store.heartbeat(again, now_s=110.0) == [again, second]
    late = Member("host-c:7235", 120.0 + MEMBER_FORGOTTEN_AFTER_S)
    assert await store.heartbeat(late, now_s=0.0) == [again, late]


async def test_a_member_that_leaves_is_removed_at_once(store: TaskStore) -> None:
    await store.heartbeat(Member("host-a:7235", 110.0))
    await store.heartbeat(Member("host-b:7235", 110.0))
    await store.leave("host-a:7235")
    await store.leave("host-never-seen:7235")
    assert await store.members(now_s=100.0) == [Member("host-b:7235", 110.0)]
    await store.heartbeat(Member("host-a:7235", 115.0))
    assert await store.members(now_s=100.0) == [Member("host-a:7235", 115.0), Member("host-b:7235", 110.0)]


async def test_members_without_a_heartbeat_for_long_are_deleted(store: TaskStore) -> None:
    await store.heartbeat(Member("host-a:7235", 100.0))
    await store.heartbeat(Member("host-b:7235", 101.0))
    await store.heartbeat(Member("host-c:7235", 100.0 + MEMBER_FORGOTTEN_AFTER_S))
    # Ask about a past moment, at which both would be alive if their rows still existed.
    assert [member.host for member in await store.members(now_s=0.0)] == ["host-b:7235", "host-c:7235"]


# --- closing


async def test_close_finishes_the_writes_under_way(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    appends = [asyncio.ensure_future(append(store, lease.range_id, task(1, number))) for number in range(1, 101)]
    await asyncio.sleep(0)
    await store.close()
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert outcomes == [None] * 100


async def test_a_closed_store_refuses_every_operation(store: TaskStore) -> None:
    lease = await store.take_lease(QUEUE)
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.take_lease(QUEUE)
    with pytest.raises(StoreUnavailable):
        await append(store, lease.range_id, task(1, 1))
    with pytest.raises(StoreUnavailable):
        await all_tasks(store)
