"""A review moves the waiting tasks of a partition that belong elsewhere: none is lost, and none is executed twice."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlead.core.fairness import BufferLimits
from fairlead.core.partitions import TaskType
from fairlead.matching.handlers.review_tasks import review_queue
from fairlead.matching.messages import NewTask
from fairlead.matching.partition.backlog_limits import BacklogLimits
from fairlead.matching.partition.queue import PhysicalQueue
from fairlead.matching.task_starter import NotStarted
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import QueueId, StoreUnavailable
from fairlead.telemetry import Metrics
from tests.matching.partition.queue_calls import poll

MARK = b"review"
QUEUE = QueueId("namespace", "orders", TaskType.WORKFLOW)


class Owner:
    """Moves some tasks to another queue when they are reviewed."""

    def __init__(self) -> None:
        self.elsewhere: list[bytes] = []
        self.asked: list[bytes] = []
        self.is_away = False

    async def start(self, payload: bytes, _identity: str, worker: bytes) -> bytes | NotStarted:
        await asyncio.sleep(0)
        if worker != MARK:
            return payload
        if self.is_away:
            raise StoreUnavailable("away")
        self.asked.append(payload)
        if payload.startswith(b"moves"):
            self.elsewhere.append(payload)
            return NotStarted.GONE
        return NotStarted.REFUSED


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
async def partition(owner: Owner) -> AsyncIterator[PhysicalQueue]:
    one = PhysicalQueue(
        MemoryStore(),
        QUEUE,
        clock=asyncio.get_running_loop().time,
        start=owner.start,
        counts=Metrics().partition("namespace", "orders", TaskType.WORKFLOW, 0),
        limits=BacklogLimits(buffer=BufferLimits(batch_size=8, reload_at=2)),
    )
    await one.backlog.open()
    yield one
    await one.close()


async def keep(partition: PhysicalQueue, *payloads: str) -> None:
    for payload in payloads:
        await partition.backlog.writer.append(NewTask(3, "", 1.0, payload.encode()))


async def review(partition: PhysicalQueue) -> bool:
    return await review_queue(partition, MARK, asyncio.get_running_loop().time() + 5)


async def test_a_review_moves_tasks_to_their_version_and_dispatches_the_others(
    partition: PhysicalQueue, owner: Owner
) -> None:
    await keep(partition, "moves 1", "stays 1", "moves 2", "stays 2")
    assert await review(partition)
    assert sorted(owner.elsewhere) == [b"moves 1", b"moves 2"]
    polled = [await poll(partition, "worker", timeout_s=5) for _ in range(2)]
    assert polled == [b"stays 1", b"stays 2"]
    assert await poll(partition, "worker", timeout_s=0.05) is None


async def test_tasks_beyond_memory_are_moved_too(partition: PhysicalQueue, owner: Owner) -> None:
    names = [f"moves {number}" for number in range(100)]
    await keep(partition, *names)
    assert await review(partition)
    assert sorted(owner.elsewhere) == sorted(name.encode() for name in names)
    assert partition.backlog.priorities.tasks == 0


async def test_no_task_is_lost_while_its_version_is_unknown(partition: PhysicalQueue, owner: Owner) -> None:
    await keep(partition, "moves 1")
    owner.is_away = True
    assert await review(partition)
    owner.is_away = False
    assert await review(partition)
    assert owner.elsewhere == [b"moves 1"]


async def test_each_task_that_stays_is_reviewed_once(partition: PhysicalQueue, owner: Owner) -> None:
    await keep(partition, "stays 1", "stays 2")
    assert await review(partition)
    assert sorted(owner.asked) == [b"stays 1", b"stays 2"]


async def test_a_review_without_time_left_reports_that(partition: PhysicalQueue) -> None:
    await keep(partition, "moves 1")
    assert not await review_queue(partition, MARK, asyncio.get_running_loop().time())
