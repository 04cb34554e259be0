"""Idle task queues cost little: no asyncio task, no coordinator, and a few kilobytes."""

import asyncio
import gc
import tracemalloc
from pathlib import Path

from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.matching.engine import OPENINGS_MAX
from fairlead.matching.partition.manager import PartitionManager
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic import matching
from tests.matching.hosts import Hosts, hosts, new
from tests.virtual_time import on_virtual_time

QUEUES = 100
# Bytes of a loaded idle task queue, with its rows in the store in memory and what its client caches.
QUEUE_BYTES_MAX = 11_000


def task_queue(number: int) -> TaskQueueId:
    return TaskQueueId("namespace", f"queue-{number}", TaskType.ACTIVITY)


async def use(there: Hosts, number: int) -> None:
    """Add a task to a task queue, and take it."""
    await there.client.add(task_queue(number), new("task"))
    assert (await there.client.poll(task_queue(number), "worker", timeout_s=5)).task == b"task"


def manager(there: Hosts, number: int) -> PartitionManager:
    found = there["one"].service.engine.ready(Partition(task_queue(number), 0))
    assert found is not None
    return found


@on_virtual_time
async def test_an_idle_task_queue_has_no_asyncio_task_and_no_coordinator() -> None:
    async with hosts() as there:
        await use(there, 0)
        await asyncio.sleep(20)
        before = len(asyncio.all_tasks())
        for number in range(1, 20):
            await use(there, number)
        await asyncio.sleep(20)
        assert len(asyncio.all_tasks()) == before
        assert all(manager(there, number).root is None for number in range(20))


@on_virtual_time
async def test_an_idle_root_begins_its_work_when_a_setting_gives_it_some(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("{}")
    settings = DynamicSettings(file=file)
    async with hosts(settings=settings) as there:
        await use(there, 0)
        await use(there, 1)
        file.write_text(
            f"{matching.ENABLE_ADAPTIVE_SCALER.key}: [{{value: true, constraints: {{taskQueueName: queue-1}}}}]"
        )
        settings.reload()
        assert manager(there, 0).root is None
        root = manager(there, 1).root
        assert root is not None
        await asyncio.sleep(60)
        assert root.decisions.latest is not None


@on_virtual_time
async def test_a_new_number_of_partitions_reaches_an_idle_root(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    source = f"{matching.ENABLE_GET_NUMBER_OF_PARTITIONS_FROM_CACHE.key}: [{{value: false}}]\n"
    file.write_text(source)
    settings = DynamicSettings(file=file)
    async with hosts(settings=settings) as there:
        await use(there, 0)
        assert manager(there, 0).root is None
        counts = (
            f"{matching.NUM_READ_PARTITIONS.key}: [{{value: 3}}]\n{matching.NUM_WRITE_PARTITIONS.key}: [{{value: 3}}]\n"
        )
        file.write_text(source + counts)
        settings.reload()
        await asyncio.sleep(10)
        assert manager(there, 0).configs.config.read == 3


async def test_an_idle_task_queue_takes_few_kilobytes() -> None:
    async with hosts() as there:
        await use(there, -1)
        gc.collect()
        tracemalloc.start()
        try:
            before_bytes, _ = tracemalloc.get_traced_memory()
            for number in range(QUEUES):
                await use(there, number)
            gc.collect()
            after_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (after_bytes - before_bytes) / QUEUES <= QUEUE_BYTES_MAX


@on_virtual_time
async def test_few_partitions_are_opened_at_the_same_time() -> None:
    async with hosts() as there:
        opening = most = 0
        take_lease = there.store.take_lease

        async def counted(queue):  # type: ignore[no-untyped-def]
            nonlocal opening, most
            opening += 1
            most = max(most, opening)
            await asyncio.sleep(0.01)
            opening -= 1
            return await take_lease(queue)

        there.store.take_lease = counted  # type: ignore[method-assign]
        await asyncio.gather(*(there.client.add(task_queue(number), new("task")) for number in range(3 * OPENINGS_MAX)))
        assert most == OPENINGS_MAX
