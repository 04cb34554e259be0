"""The memory store injects every fault that a real store can have."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.core.partitions import TaskType
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import Levels, Member, OutcomeUnknown, QueueId, StoredTask, StoreUnavailable

QUEUE = QueueId("namespace", "orders", TaskType.ACTIVITY)
PRIORITY = 3

Wait = Callable[[], Awaitable[None]]


@dataclass
class Script:
    """Applies the planned fault to each operation, and records the operations."""

    before_it: dict[str, Callable[[], Awaitable[Wait | None]]] = field(default_factory=dict)
    after_it: dict[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    asked: list[tuple[str, str, QueueId | None]] = field(default_factory=list)

    async def before(self, operation: str, queue: QueueId | None) -> Wait | None:
        self.asked.append(("before", operation, queue))
        return await self.before_it[operation]() if operation in self.before_it else None

    async def after(self, operation: str, queue: QueueId | None) -> None:
        self.asked.append(("after", operation, queue))
        if operation in self.after_it:
            await self.after_it[operation]()


def raising(error: Exception) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail


def late(event: asyncio.Event) -> Callable[[], Awaitable[Wait | None]]:
    async def wait() -> None:
        await event.wait()

    async def postpone() -> Wait | None:
        return wait

    return postpone


def task(task_id: int) -> StoredTask:
    return StoredTask(Level(1, task_id), "tenant", 1.0, b"x")


async def append(store: MemoryStore, range_id: int, task_id: int) -> None:
    await store.append(QUEUE, range_id, PRIORITY, [task(task_id)], Levels(LEVEL_ZERO, task(task_id).level))


async def stored_ids(store: MemoryStore) -> list[int]:
    return [found.level.task_id for found in await store.read(QUEUE, PRIORITY, after=LEVEL_ZERO, limit=100)]


async def settle() -> None:
    """Run the event loop until nothing is ready."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_fault_before_the_write_changes_nothing() -> None:
    script = Script(before_it={"append": raising(StoreUnavailable("down"))})
    store = MemoryStore(script)
    lease = await store.take_lease(QUEUE)
    with pytest.raises(StoreUnavailable):
        await append(store, lease.range_id, 1)
    assert await stored_ids(store) == []


async def test_a_response_can_be_lost_after_the_write_took_effect() -> None:
    script = Script(after_it={"append": raising(OutcomeUnknown("no answer"))})
    store = MemoryStore(script)
    lease = await store.take_lease(QUEUE)
    with pytest.raises(OutcomeUnknown):
        await append(store, lease.range_id, 1)
    assert await stored_ids(store) == [1]


async def test_a_write_can_take_effect_after_its_caller_got_outcome_unknown() -> None:
    """FB-16: a write that timed out may take effect later."""
    event = asyncio.Event()
    store = MemoryStore(Script(before_it={"append": late(event)}))
    lease = await store.take_lease(QUEUE)
    with pytest.raises(OutcomeUnknown):
        await append(store, lease.range_id, 1)
    await settle()
    assert await stored_ids(store) == []
    event.set()
    await settle()
    assert await stored_ids(store) == [1]
    await store.close()


@pytest.mark.parametrize("how", ["renew_lease", "take_lease"])
async def test_a_late_write_is_refused_after_a_renewal_or_a_takeover(how: str) -> None:
    """FB-17: a write takes effect before the new owner's takeover, or it fails."""
    event = asyncio.Event()
    store = MemoryStore(Script(before_it={"append": late(event), "delete_through": late(event)}))
    lease = await store.take_lease(QUEUE)
    with pytest.raises(OutcomeUnknown):
        await append(store, lease.range_id, 1)
    with pytest.raises(OutcomeUnknown):
        await store.delete_through(QUEUE, lease.range_id, PRIORITY, through=Level(9, 9), limit=10)
    if how == "renew_lease":
        await store.renew_lease(QUEUE, lease.range_id)
    else:
        await store.take_lease(QUEUE)
    event.set()
    await settle()
    assert await stored_ids(store) == []
    assert (await store.take_lease(QUEUE)).levels == {}
    await store.close()


async def test_a_late_append_at_an_existing_level_is_dropped_without_an_error() -> None:
    event = asyncio.Event()
    script = Script(before_it={"append": late(event)})
    store = MemoryStore(script)
    lease = await store.take_lease(QUEUE)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await append(store, lease.range_id, 1)
    event.set()
    await settle()
    assert await stored_ids(store) == [1]
    await store.close()


async def test_a_delayed_write_can_be_overtaken_by_a_later_one() -> None:
    event = asyncio.Event()

    async def hold() -> None:
        await event.wait()

    script = Script(before_it={"append": hold})
    store = MemoryStore(script)
    lease = await store.take_lease(QUEUE)
    first = asyncio.ensure_future(append(store, lease.range_id, 1))
    await settle()
    script.before_it.clear()
    await append(store, lease.range_id, 2)
    assert await stored_ids(store) == [2]
    event.set()
    await first
    assert await stored_ids(store) == [1, 2]


async def test_a_read_can_fail_or_be_delayed_like_a_write() -> None:
    script = Script()
    store = MemoryStore(script)
    await store.take_lease(QUEUE)
    for operation in ("read", "members"):
        script.before_it[operation] = raising(StoreUnavailable("down"))
    with pytest.raises(StoreUnavailable):
        await stored_ids(store)
    with pytest.raises(StoreUnavailable):
        await store.members(now_s=0.0)


async def test_every_operation_checks_for_faults_by_its_name() -> None:
    script = Script()
    store = MemoryStore(script)
    lease = await store.take_lease(QUEUE)
    await append(store, lease.range_id, 1)
    await store.heartbeat(Member("host", 1.0))
    assert script.asked == [
        ("before", "take_lease", QUEUE),
        ("after", "take_lease", QUEUE),
        ("before", "append", QUEUE),
        ("after", "append", QUEUE),
        ("before", "heartbeat", None),
        ("after", "heartbeat", None),
    ]


async def test_close_drops_writes_that_are_still_late() -> None:
    event = asyncio.Event()
    store = MemoryStore(Script(before_it={"append": late(event)}))
    lease = await store.take_lease(QUEUE)
    with pytest.raises(OutcomeUnknown):
        await append(store, lease.range_id, 1)
    await store.close()
    assert [other for other in asyncio.all_tasks() if other is not asyncio.current_task()] == []


async def test_without_faults_a_call_never_waits() -> None:
    """A simulation without faults then has no interleavings in the store."""
    store = MemoryStore()
    call = store.take_lease(QUEUE)
    with pytest.raises(StopIteration) as ended:
        call.send(None)
    assert ended.value.value.range_id == 1
