"""Fair turns of namespaces in the task queues of a shard and of a host, on virtual time."""

import asyncio
from collections.abc import Callable

import pytest

from fairlead.aio.admission import Admission
from fairlead.history.shard import queue as queues
from fairlead.history.shard.queue import ShardQueue
from fairlead.history.state.tasks import QueueRow, RunTimeout, UpsertVisibility, encode_row
from fairlead.storage.commit import Commit, TaskWrite
from fairlead.storage.history import TaskKey
from fairlead.storage.memory.history import MemoryHistory
from tests.virtual_time import on_virtual_time

SECOND_NS = 1_000_000_000
TASK_S = 0.01
FLOOD = 600


class Host:
    """A host whose tasks take a fixed time; notes when each one ends."""

    def __init__(self, *, at_once_max: int = 1_000_000) -> None:
        self.store = MemoryHistory()
        self.turns = Admission(lambda: at_once_max)
        self.ended_s: dict[str, list[float]] = {}
        self.running = self.running_max = 0

    async def run(self, row: QueueRow) -> None:
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        await asyncio.sleep(TASK_S)
        self.running -= 1
        self.ended_s.setdefault(row.namespace_id, []).append(asyncio.get_running_loop().time())


class Queue:
    """The queue of one shard."""

    def __init__(self, host: Host, shard_id: int, *, is_timed: bool) -> None:
        self._host = host
        self._shard_id = shard_id
        self._is_timed = is_timed
        self._range_id = self._next_id = 0
        self.queue = ShardQueue(
            "queue",
            shard_id=shard_id,
            store=host.store,
            run=host.run,
            clock_ns=lambda: int(asyncio.get_running_loop().time() * SECOND_NS),
            range_id=lambda: self._range_id,
            on_lost=lambda: None,
            is_timed=is_timed,
            turns=host.turns,
        )

    async def open(self) -> "Queue":
        lease = await self._host.store.take_shard(self._shard_id)
        self._range_id = lease.range_id
        self._next_id = lease.range_id << 24
        await self.queue.open(None)
        return self

    async def write(self, namespace: str, number: int) -> None:
        """Write tasks of a namespace in one commit."""
        tasks: list[tuple[TaskKey, QueueRow]] = []
        for n in range(number):
            task = RunTimeout(0, 0) if self._is_timed else UpsertVisibility(0)
            self._next_id += 1
            tasks.append((self.queue.assign(0, self._next_id), QueueRow(namespace, "workflow", f"run-{n}", task)))
        writes = [TaskWrite("queue", *key, encode_row(row)) for key, row in tasks]
        await self._host.store.commit(self._shard_id, self._range_id, Commit(tasks=writes))
        for key, row in tasks:
            self.queue.written(key, row)


async def waited_s(host: Host, is_over: Callable[[], bool], namespace: str) -> float:
    """Seconds from now until the last task of a namespace has ended."""
    began_s = asyncio.get_running_loop().time()
    async with asyncio.timeout(60):
        while not is_over():  # noqa: ASYNC110 - on virtual time, and the queue has no event for it
            await asyncio.sleep(TASK_S)
    return host.ended_s[namespace][-1] - began_s


@pytest.mark.parametrize("is_timed", [False, True])
def test_a_namespace_with_many_tasks_in_a_shard_delays_another_by_little_more_than_one_task(*, is_timed: bool) -> None:
    @on_virtual_time
    async def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queues, "CONCURRENT_MAX", 4)
            host = Host()
            shard = await Queue(host, 1, is_timed=is_timed).open()
            await shard.write("flood", FLOOD)
            await asyncio.sleep(5 * TASK_S)
            await shard.write("neighbour", 1)
            took_s = await waited_s(host, lambda: "neighbour" in host.ended_s, "neighbour")
            assert took_s <= 3.1 * TASK_S
            # Nothing is lost, and the flood's order is that of its tasks.
            await waited_s(host, lambda: len(host.ended_s["flood"]) == FLOOD, "flood")
            await shard.queue.close()

    run()


@on_virtual_time
async def test_a_namespace_with_tasks_in_many_shards_delays_another_by_little_more_than_one_task() -> None:
    host = Host(at_once_max=4)
    shards = [await Queue(host, number, is_timed=False).open() for number in range(1, 11)]
    await shards[9].write("neighbour", 1)
    for shard in shards:
        await shard.write("flood", FLOOD // len(shards))
    await asyncio.sleep(5 * TASK_S)
    host.running_max = 0
    await shards[0].write("neighbour", 1)
    took_s = await waited_s(host, lambda: len(host.ended_s["neighbour"]) == 2, "neighbour")
    assert took_s <= 3.1 * TASK_S
    # The limit, and the neighbour's task, which begins at once.
    assert host.running_max <= 4 + 1
    await waited_s(host, lambda: len(host.ended_s["flood"]) == FLOOD, "flood")
    for shard in shards:
        await shard.queue.close()


@on_virtual_time
async def test_tasks_of_a_single_namespace_are_not_bounded_by_the_turns() -> None:
    host = Host(at_once_max=4)
    shard = await Queue(host, 1, is_timed=False).open()
    await shard.write("only", 100)
    await waited_s(host, lambda: len(host.ended_s.get("only", ())) == 100, "only")
    assert host.running_max == 100
    await shard.queue.close()
