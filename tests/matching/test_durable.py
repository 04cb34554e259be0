"""The matching service on a real file: what was acknowledged is there after a restart."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fairlead.core.partitions import Partition as PartitionId
from fairlead.core.partitions import TaskList, TaskType
from fairlead.matching.backlog import BacklogLimits, NewTask
from fairlead.matching.engine import Engine
from fairlead.matching.partition import Partition, Started
from fairlead.storage.contract import QueueId
from fairlead.storage.sqlite import SqliteStore

TASK_LIST = TaskList("namespace", "orders", TaskType.ACTIVITY)
LIMITS = BacklogLimits(appends_waiting_max=2000)


async def start(_payload: bytes, _identity: str) -> Started:
    return Started.STARTED


@asynccontextmanager
async def host(file: Path) -> AsyncIterator[tuple[Engine, SqliteStore]]:
    """One run of the only host."""
    store = await SqliteStore.open(file)
    clock = asyncio.get_running_loop().time

    def open_partition(queue: QueueId) -> Partition:
        return Partition(store, queue, clock=clock, start=start, limits=LIMITS)

    engine = Engine("host", open_partition=open_partition, route=lambda _: "host", clock=clock)
    try:
        yield engine, store
    finally:
        await engine.close()
        await store.close()


async def test_tasks_and_their_fair_order_outlive_the_process(tmp_path: Path) -> None:
    partitions = [PartitionId(TASK_LIST, number) for number in range(3)]
    async with host(tmp_path / "tasks.db") as (engine, store):
        for partition in partitions:
            flood = (engine.add(partition, NewTask(3, "flood", 1.0, b"flood")) for _ in range(1000))
            await asyncio.gather(*flood)
            small = (engine.add(partition, NewTask(3, f"small-{number}", 1.0, b"small")) for number in range(20))
            await asyncio.gather(*small)
        # Thousands of appends, each on disk before it was answered, and few commits.
        assert store.commits < 500
    async with host(tmp_path / "tasks.db") as (engine, _):
        for partition in partitions:
            first = [await engine.poll(partition, "worker", timeout_s=5) for _ in range(40)]
            # None of the small keys waits behind the flood: each gets its turn in the first round.
            assert Counter(first)[b"small"] == 20
            rest = [await engine.poll(partition, "worker", timeout_s=5) for _ in range(980)]
            assert Counter(rest) == {b"flood": 980}
            assert await engine.poll(partition, "worker", timeout_s=0.05) is None
    async with host(tmp_path / "tasks.db") as (engine, _):
        for partition in partitions:
            assert await engine.poll(partition, "worker", timeout_s=0.05) is None
