"""Tasks that wait in a partition are asked whether they belong there: none is lost, and none is done twice."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlead.core.fairness import BufferLimits
from fairlead.core.partitions import TaskType
from fairlead.matching.backlog import BacklogLimits
from fairlead.matching.messages import NewTask
from fairlead.matching.partition import Partition
from fairlead.matching.starting import NotStarted
from fairlead.storage.contract import QueueId, StoreUnavailable
from fairlead.storage.memory import MemoryStore
from fairlead.telemetry import Metrics

MARK = b"review"
QUEUE = QueueId("namespace", "orders", TaskType.WORKFLOW)


class Owner:
    """Has some tasks moved elsewhere when they are reviewed."""

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
async def partition(owner: Owner) -> AsyncIterator[Partition]:
    one = Partition(
        MemoryStore(),
        QUEUE,
        clock=asyncio.get_running_loop().time,
        start=owner.start,
        counts=Metrics().partition("namespace", "orders", TaskType.WORKFLOW, 0),
        limits=BacklogLimits(buffer=BufferLimits(batch_size=8, reload_at=2)),
    )
    await one.open()
    yield one
    await one.close()


async def keep(partition: Partition, *payloads: str) -> None:
    for payload in payloads:
        await partition.keep(NewTask(3, "", 1.0, payload.encode()))


async def review(partition: Partition) -> bool:
    return await partition.review(MARK, asyncio.get_running_loop().time() + 5)


async def test_what_moves_is_kept_no_longer_and_what_stays_is_given_to_polls(
    partition: Partition, owner: Owner
) -> None:
    await keep(partition, "moves 1", "stays 1", "moves 2", "stays 2")
    assert await review(partition)
    assert sorted(owner.elsewhere) == [b"moves 1", b"moves 2"]
    polled = [await partition.poll("worker", timeout_s=5) for _ in range(2)]
    assert polled == [b"stays 1", b"stays 2"]
    assert await partition.poll("worker", timeout_s=0.05) is None


async def test_more_than_fits_into_memory_moves_too(partition: Partition, owner: Owner) -> None:
    names = [f"moves {number}" for number in range(100)]
    await keep(partition, *names)
    assert await review(partition)
    assert sorted(owner.elsewhere) == sorted(name.encode() for name in names)
    assert partition.backlog.tasks == 0


async def test_nothing_is_lost_while_nobody_knows_where_tasks_belong(partition: Partition, owner: Owner) -> None:
    await keep(partition, "moves 1")
    owner.is_away = True
    assert await review(partition)
    owner.is_away = False
    assert await review(partition)
    assert owner.elsewhere == [b"moves 1"]


async def test_each_that_stays_is_asked_once(partition: Partition, owner: Owner) -> None:
    await keep(partition, "stays 1", "stays 2")
    assert await review(partition)
    assert sorted(owner.asked) == [b"stays 1", b"stays 2"]


async def test_a_review_that_has_no_time_says_so(partition: Partition) -> None:
    await keep(partition, "moves 1")
    assert not await partition.review(MARK, asyncio.get_running_loop().time())
