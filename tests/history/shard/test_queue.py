"""A shard's queue: every task is executed at its time, despite faults and changes of the owner."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from fairlead.core.errors import RetryLater
from fairlead.history.shard import queue as queues
from fairlead.history.shard.queue import ShardQueue
from fairlead.history.state.tasks import QueueRow, RunTimeout, UpsertVisibility, decode_row, encode_row
from fairlead.storage.commit import Commit, TaskWrite
from fairlead.storage.history import StoredHistoryTask, TaskKey
from fairlead.storage.memory.history import MemoryHistory
from fairlead.storage.tasks import StoreUnavailable
from tests.virtual_time import on_virtual_time

SECOND_NS = 1_000_000_000
SHARD = 1


def now_ns() -> int:
    return int(asyncio.get_running_loop().time() * SECOND_NS)


class World:
    """A queue over a store in memory, and the run ids of the executed tasks."""

    def __init__(
        self,
        store: MemoryHistory,
        *,
        is_timed: bool,
        do: Callable[[QueueRow], Awaitable[None]] | None = None,
        tasks_max: int = 1_000,
        ahead_ns: int | None = queues.AHEAD_NS,
        over: Sequence[str] = (),
    ) -> None:
        """`over` are the run ids whose tasks have no effect any more."""
        self.store = store
        self.is_timed = is_timed
        self.done: list[str] = []
        self.was_lost = False
        self.range_id = 0
        self._do = do
        self._next_id = 0
        self.queue = ShardQueue(
            "queue",
            shard_id=SHARD,
            store=store,
            run=self._run,
            clock_ns=now_ns,
            range_id=lambda: self.range_id,
            on_lost=self._lose,
            is_over=lambda row: row.run_id in over,
            is_timed=is_timed,
            tasks_max=tasks_max,
            ahead_ns=ahead_ns,
        )

    async def open(self) -> "World":
        lease = await self.store.take_shard(SHARD)
        self.range_id = lease.range_id
        self._next_id = lease.range_id << 24
        await self.queue.open(lease.levels.get("queue"))
        return self

    async def write(self, run_id: str, fire_at_ns: int = 0) -> TaskKey:
        """Write a task, as a step of a run does."""
        task = RunTimeout(0, fire_at_ns) if self.is_timed else UpsertVisibility(0)
        row = QueueRow("namespace", "workflow", run_id, task)
        self._next_id += 1
        key = self.queue.assign(fire_at_ns, self._next_id)
        write = TaskWrite("queue", *key, encode_row(row))
        await self.store.commit(SHARD, self.range_id, Commit(tasks=[write]))
        self.queue.written(key, row)
        return key

    async def stored(self) -> list[str]:
        tasks = await self.store.read_tasks(SHARD, "queue", after=TaskKey(-1, -1), until_ns=None, limit=1000)
        return [decode_row(task.payload).run_id for task in tasks]

    async def _run(self, row: QueueRow) -> None:
        if self._do is not None:
            await self._do(row)
        self.done.append(row.run_id)

    def _lose(self) -> None:
        self.was_lost = True


@on_virtual_time
async def test_a_task_is_executed_once_it_is_written_and_deleted_later() -> None:
    world = await World(MemoryHistory(), is_timed=False).open()

    await world.write("a")
    await world.write("b")
    await asyncio.sleep(0.1)

    assert world.done == ["a", "b"]
    assert await world.stored() == ["a", "b"]
    await asyncio.sleep(queues.DELETE_INTERVAL_S)
    assert await world.stored() == []
    await world.queue.close()


@on_virtual_time
async def test_a_timer_that_is_over_is_deleted_without_being_executed() -> None:
    world = await World(MemoryHistory(), is_timed=True, over=["ended"]).open()

    await world.write("ended", 5 * SECOND_NS)
    await world.write("ended", 10 * SECOND_NS)
    await world.write("pending", 10 * SECOND_NS)
    await asyncio.sleep(4)
    assert await world.stored() == ["ended", "ended", "pending"]
    await asyncio.sleep(7)

    assert world.done == ["pending"]
    assert world.queue.pending == 0
    await asyncio.sleep(queues.DELETE_INTERVAL_S)
    assert await world.stored() == []
    await world.queue.close()


@on_virtual_time
async def test_timers_fire_at_their_times_in_their_order() -> None:
    world = await World(MemoryHistory(), is_timed=True).open()

    await world.write("late", 30 * SECOND_NS)
    await world.write("soon", 10 * SECOND_NS)
    await world.write("past", 0)

    await asyncio.sleep(5)
    assert world.done == ["past"]
    await asyncio.sleep(5.1)
    assert world.done == ["past", "soon"]
    await asyncio.sleep(20)
    assert world.done == ["past", "soon", "late"]
    await world.queue.close()


@on_virtual_time
async def test_a_timer_far_away_is_not_in_memory_and_fires_in_time() -> None:
    world = await World(MemoryHistory(), is_timed=True).open()

    await world.write("far", 1000 * SECOND_NS)

    assert world.queue.pending == 0
    await asyncio.sleep(999)
    assert world.done == []
    await asyncio.sleep(1.5)
    assert world.done == ["far"]
    await world.queue.close()


class CountedReads(MemoryHistory):
    """Counts the reads and completions of queues."""

    calls = 0

    async def read_tasks(self, *arguments: Any, **named: Any) -> list[StoredHistoryTask]:
        self.calls += 1
        return await super().read_tasks(*arguments, **named)

    async def complete_tasks(self, *arguments: Any, **named: Any) -> int:
        self.calls += 1
        return await super().complete_tasks(*arguments, **named)


@on_virtual_time
async def test_an_idle_queue_does_not_call_the_store() -> None:
    store = CountedReads()
    world = await World(store, is_timed=True).open()
    await world.write("far", 3 * 3600 * SECOND_NS)
    await asyncio.sleep(10)
    store.calls = 0

    await asyncio.sleep(2 * 3600)
    assert store.calls == 0
    # A timer that is due soon, after a long time without a read.
    await world.write("soon", now_ns() + 5 * SECOND_NS)
    await asyncio.sleep(6)
    assert world.done == ["soon"]
    await asyncio.sleep(3600)
    assert world.done == ["soon", "far"]
    assert await world.stored() == []
    await world.queue.close()


@on_virtual_time
async def test_a_far_timer_of_the_last_owner_is_found_in_time() -> None:
    store = CountedReads()
    first = await World(store, is_timed=True).open()
    await first.write("later", 7200 * SECOND_NS)
    await first.write("far", 3600 * SECOND_NS)
    await first.queue.close()
    second = await World(store, is_timed=True).open()

    await asyncio.sleep(3599)
    assert second.done == []
    await asyncio.sleep(2)
    assert second.done == ["far"]
    await asyncio.sleep(3600)
    assert second.done == ["far", "later"]
    await second.queue.close()


@on_virtual_time
async def test_the_next_owner_executes_the_remaining_tasks() -> None:
    store = MemoryHistory()
    stuck = asyncio.Event()

    async def wait(row: QueueRow) -> None:
        if row.run_id == "stuck":
            await stuck.wait()

    first = await World(store, is_timed=False, do=wait).open()
    await first.write("done")
    await first.write("stuck")
    await first.write("done after it")
    await asyncio.sleep(2)
    assert await first.stored() == ["stuck", "done after it"]
    await first.queue.close()

    second = await World(store, is_timed=False).open()
    await asyncio.sleep(1)

    # At least once: tasks after the stuck one may be executed again.
    assert second.done == ["stuck", "done after it"]
    await second.queue.close()


@on_virtual_time
async def test_a_queue_that_can_not_be_read_is_read_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "PAGE_MAX", 2)
    store = MemoryHistory()
    first = await World(store, is_timed=False).open()
    for run_id in "abcd":
        await first.write(run_id)
    faults: list[Exception | None] = [StoreUnavailable("no store"), ValueError("a bug"), None]
    read = store.read_tasks

    async def fail_after_the_first(*arguments: Any, **options: Any) -> list[StoredHistoryTask]:
        if faults and (fault := faults.pop()) is not None:
            raise fault
        return await read(*arguments, **options)

    monkeypatch.setattr(store, "read_tasks", fail_after_the_first)
    second = await World(store, is_timed=False, tasks_max=2).open()
    await asyncio.sleep(0.5)

    assert faults == []
    assert second.done == ["a", "b", "c", "d"]
    await first.queue.close()
    await second.queue.close()


@on_virtual_time
async def test_a_failing_task_is_retried_until_it_succeeds() -> None:
    attempts = 0

    async def fail_twice(_row: QueueRow) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise RetryLater("not now")

    world = await World(MemoryHistory(), is_timed=False, do=fail_twice).open()
    await world.write("a")
    await asyncio.sleep(1)

    assert world.done == ["a"]
    assert attempts == 3
    await world.queue.close()


@on_virtual_time
async def test_a_task_in_flight_is_not_deleted_with_later_ones() -> None:
    store = MemoryHistory()
    world = await World(store, is_timed=False).open()
    slow = world.queue.assign(0, (world.range_id << 24) + 500)
    world._next_id += 1000

    await world.write("behind")
    await asyncio.sleep(3)

    assert await world.stored() == ["behind"], "the level must not pass a task that may yet be written"
    row = QueueRow("namespace", "workflow", "slow", UpsertVisibility(0))
    await store.commit(SHARD, world.range_id, Commit(tasks=[TaskWrite("queue", *slow, encode_row(row))]))
    world.queue.written(slow, row)
    await asyncio.sleep(3)
    assert world.done == ["behind", "slow"]
    assert await world.stored() == []
    await world.queue.close()


@on_virtual_time
async def test_a_timer_before_the_deleted_level_is_placed_after_it() -> None:
    world = await World(MemoryHistory(), is_timed=True).open()
    await asyncio.sleep(10)
    await world.write("first", 9 * SECOND_NS)
    await asyncio.sleep(3)
    assert await world.stored() == []

    await world.write("earlier", 5 * SECOND_NS)
    await asyncio.sleep(0.1)

    assert world.done == ["first", "earlier"]
    await world.queue.close()


@on_virtual_time
async def test_tasks_beyond_memory_stay_in_the_store_and_are_executed() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues, "CONCURRENT_MAX", 2)
        patch.setattr(queues, "PAGE_MAX", 4)
        gate = asyncio.Event()

        async def wait(_row: QueueRow) -> None:
            await gate.wait()

        world = await World(MemoryHistory(), is_timed=False, do=wait, tasks_max=10).open()
        for number in range(50):
            await world.write(str(number))
        assert world.queue.pending <= 10
        gate.set()
        await asyncio.sleep(60)

        assert sorted(map(int, set(world.done))) == list(range(50))
        assert await world.stored() == []
        await world.queue.close()


@on_virtual_time
async def test_a_former_owner_deletes_nothing_and_notices_its_loss() -> None:
    store = MemoryHistory()
    first = await World(store, is_timed=False).open()
    await first.write("a")
    await World(store, is_timed=False).open()

    await asyncio.sleep(2)

    assert first.was_lost
    await first.queue.close()


@on_virtual_time
async def test_a_queue_with_an_unlimited_lookahead_knows_its_next_timer() -> None:
    store = MemoryHistory()
    before = await World(store, is_timed=True).open()
    await before.write("stored", now_ns() + 10**6 * SECOND_NS)
    await before.queue.close()
    world = await World(store, is_timed=True, ahead_ns=None).open()
    await world.write("near", now_ns() + 10**5 * SECOND_NS)
    found = []
    while (timer := await world.queue.next_timer()) is not None:
        found.append(timer[1].run_id)
        world.queue.drop_timer(timer[0])
    assert found == ["near", "stored"]
    assert not world.queue.is_busy
    await world.queue.close()


@on_virtual_time
async def test_a_dropped_timer_is_not_executed_and_does_not_delay_earlier_ones() -> None:
    world = await World(MemoryHistory(), is_timed=True, ahead_ns=None).open()
    dropped = await world.write("dropped", now_ns() + 3600 * SECOND_NS)
    world.queue.drop_timer(dropped)
    await world.queue.delete_done()
    key = await world.write("earlier", now_ns() + 60 * SECOND_NS)
    assert key.fire_at_ns == now_ns() + 60 * SECOND_NS
    await asyncio.sleep(7200)
    assert world.done == ["earlier"]
    await world.queue.close()


@on_virtual_time
async def test_a_queue_is_busy_while_a_task_is_due_running_or_waiting_for_a_retry() -> None:
    gate = asyncio.Event()
    tries: list[str] = []

    async def do(row: QueueRow) -> None:
        tries.append(row.run_id)
        if len(tries) == 1:
            raise RetryLater("not yet")
        await gate.wait()

    world = await World(MemoryHistory(), is_timed=True, do=do).open()
    await world.write("one", now_ns() + SECOND_NS)
    assert (tries, world.queue.is_busy) == ([], False)
    await asyncio.sleep(1.01)
    assert (tries, world.queue.is_busy) == (["one"], True)
    await asyncio.sleep(1)
    assert (tries, world.queue.is_busy) == (["one", "one"], True)
    gate.set()
    await asyncio.sleep(0.01)
    assert (world.done, world.queue.is_busy) == (["one"], False)
    await world.queue.close()
