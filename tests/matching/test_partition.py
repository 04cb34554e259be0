import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from fairlead.core.fairness import BufferLimits, InvalidFairnessKey, InvalidWeight, WeightOverrides
from fairlead.core.partitions import TaskType
from fairlead.matching.backlog import BacklogLimits
from fairlead.matching.messages import NewTask
from fairlead.matching.partition import InvalidPoll, InvalidTask, Partition
from fairlead.matching.starting import NotStarted
from fairlead.storage.contract import QueueId
from fairlead.storage.memory import MemoryStore
from fairlead.telemetry import Metrics

QUEUE = QueueId("namespace", "orders", TaskType.ACTIVITY)
Open = Callable[..., Awaitable[Partition]]


class History:
    """Starts what it is asked to start, unless it was told otherwise."""

    def __init__(self) -> None:
        self.started: list[tuple[str, str]] = []
        self.answers: dict[str, list[NotStarted]] = {}
        self.slow: asyncio.Event | None = None

    async def start(self, payload: bytes, identity: str, _worker: bytes) -> bytes | NotStarted:
        if self.slow is not None:
            await self.slow.wait()
        answers = self.answers.get(payload.decode())
        if answers:
            return answers.pop(0)
        self.started.append((payload.decode(), identity))
        return payload


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def open_partition(store: MemoryStore, history: History) -> AsyncIterator[Open]:
    opened: list[Partition] = []

    async def open_one(**settings: object) -> Partition:
        clock = asyncio.get_running_loop().time
        partition = Partition(
            store,
            QUEUE,
            clock=clock,
            start=history.start,
            counts=Metrics().partition(*QUEUE, 0),
            **settings,  # type: ignore[arg-type]
        )
        opened.append(partition)
        await partition.open()
        return partition

    yield open_one
    for partition in opened:
        await partition.close()


def new(payload: str, *, key: str = "", weight: float = 1.0, priority: int = 3) -> NewTask:
    return NewTask(priority, key, weight, payload.encode())


async def test_a_task_that_finds_a_waiting_poll_is_started_at_once_and_not_stored(
    open_partition: Open, history: History
) -> None:
    partition = await open_partition()
    poll = asyncio.create_task(partition.poll("worker", timeout_s=5))
    await asyncio.sleep(0)
    assert await partition.add(new("a")) is True
    assert await poll == b"a"
    assert history.started == [("a", "worker")]
    assert await partition.backlog.count() == 0


async def test_a_task_without_a_poll_is_durable_when_it_is_answered(open_partition: Open) -> None:
    partition = await open_partition()
    assert await partition.add(new("a")) is False
    assert await partition.backlog.count() == 1
    assert await partition.poll("worker", timeout_s=5) == b"a"


async def test_a_poll_is_answered_empty_when_its_time_is_over(open_partition: Open) -> None:
    partition = await open_partition()
    assert await partition.poll("worker", timeout_s=0.01) is None
    assert partition.polls_waiting == 0


async def test_a_poll_whose_caller_has_gone_gives_its_task_back(open_partition: Open, history: History) -> None:
    """Facts, cadence-matching (b) 10."""
    partition = await open_partition()
    gone = asyncio.create_task(partition.poll("gone", timeout_s=5))
    await asyncio.sleep(0)
    adding = asyncio.create_task(partition.add(new("a")))
    await asyncio.sleep(0)
    # It has been given the task, but has not been resumed yet.
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await adding is False
    assert await partition.poll("other", timeout_s=5) == b"a"
    assert history.started == [("a", "other")]


async def test_a_poll_that_goes_while_its_task_is_being_started_gives_it_back(
    open_partition: Open, history: History
) -> None:
    partition = await open_partition()
    await partition.add(new("a"))
    history.slow = asyncio.Event()
    gone = asyncio.create_task(partition.poll("gone", timeout_s=5))
    await asyncio.sleep(0.01)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    history.slow.set()
    assert await partition.poll("other", timeout_s=5) == b"a"


async def test_a_task_that_is_refused_goes_to_another_poll_and_one_that_is_gone_to_nobody(
    open_partition: Open, history: History
) -> None:
    partition = await open_partition()
    history.answers = {"busy": [NotStarted.REFUSED], "gone": [NotStarted.GONE]}
    await partition.add(new("gone"))
    await partition.add(new("busy"))
    assert await partition.poll("worker", timeout_s=5) == b"busy"
    assert await partition.poll("worker", timeout_s=0.01) is None
    assert [payload for payload, _ in history.started] == ["busy"]


async def test_a_task_matched_at_once_but_refused_is_stored(open_partition: Open, history: History) -> None:
    partition = await open_partition()
    history.answers = {"a": [NotStarted.REFUSED]}
    poll = asyncio.create_task(partition.poll("worker", timeout_s=5))
    await asyncio.sleep(0)
    await partition.add(new("a"))
    assert await poll == b"a"
    assert history.started == [("a", "worker")]


async def test_priority_comes_first_and_then_the_fair_turn(open_partition: Open) -> None:
    partition = await open_partition(overrides=WeightOverrides({"gold": 2.0}))
    for number in range(6):
        await partition.add(new(f"flood-{number}", key="flood"))
    for number in range(4):
        await partition.add(new(f"gold-{number}", key="gold"))
    await partition.add(new("urgent", priority=1))
    got = [await partition.poll("worker", timeout_s=5) for _ in range(7)]
    assert got[0] == b"urgent"
    assert Counter((payload or b"").split(b"-")[0] for payload in got[1:]) == {b"gold": 4, b"flood": 2}


async def test_the_rate_limit_holds_and_nothing_is_forgotten_for_it(open_partition: Open) -> None:
    partition = await open_partition(rate_per_s=20)
    for number in range(30):
        await partition.add(new(str(number)))
    started_s = asyncio.get_running_loop().time()
    got = await asyncio.gather(*(partition.poll("worker", timeout_s=5) for _ in range(30)))
    took_s = asyncio.get_running_loop().time() - started_s
    assert len(set(got)) == 30
    # Twenty at once, and ten more at twenty a second.
    assert took_s >= 0.45


async def test_a_key_that_is_held_back_stops_nobody_else(open_partition: Open) -> None:
    partition = await open_partition(
        key_rate_per_s=1, limits=BacklogLimits(buffer=BufferLimits(batch_size=10, reload_at=3))
    )
    for number in range(30):
        await partition.add(new(f"limited-{number}", key="limited"))
    for number in range(30):
        await partition.add(new(f"free-{number}", key=f"free-{number}"))
    got = [await partition.poll("worker", timeout_s=1) for _ in range(31)]
    assert Counter((payload or b"").split(b"-")[0] for payload in got) == {b"limited": 1, b"free": 30}


async def test_a_pause_ends_when_the_limit_is_lifted(open_partition: Open) -> None:
    partition = await open_partition(rate_per_s=0)
    await partition.add(new("a"))
    assert await partition.poll("worker", timeout_s=0.02) is None
    poll = asyncio.create_task(partition.poll("worker", timeout_s=5))
    await asyncio.sleep(0.01)
    partition.change_rates(rate_per_s=math.inf, key_rate_per_s=math.inf)
    assert await poll == b"a"


async def test_a_new_owner_goes_on_with_what_waits(open_partition: Open) -> None:
    old = await open_partition()
    for number in range(2500):
        await old.add(new(str(number), key=f"key-{number % 7}"))
    new_owner = await open_partition()
    got = {await new_owner.poll("worker", timeout_s=5) for _ in range(2500)}
    assert len(got) == 2500
    assert await new_owner.poll("worker", timeout_s=0.01) is None


async def test_closing_answers_the_polls_that_wait(open_partition: Open) -> None:
    partition = await open_partition()
    polls = [asyncio.create_task(partition.poll("worker", timeout_s=60)) for _ in range(3)]
    await asyncio.sleep(0)
    await partition.close()
    assert await asyncio.gather(*polls) == [None, None, None]


async def test_a_partition_tells_its_rate_and_its_pollers(open_partition: Open) -> None:
    partition = await open_partition()
    for number in range(10):
        await partition.add(new(str(number)))
        await partition.poll(f"worker-{number % 2}", timeout_s=5)
    assert partition.dispatches_per_s == 2.0
    assert sorted(poller.identity for poller in partition.pollers()) == ["worker-0", "worker-1"]


async def test_bad_tasks_and_polls_are_refused_with_their_reason(open_partition: Open) -> None:
    """Issue, 'Bad input'."""
    partition = await open_partition()
    with pytest.raises(InvalidTask, match="priority is 6"):
        await partition.add(new("a", priority=6))
    with pytest.raises(InvalidFairnessKey, match="65 bytes"):
        await partition.add(new("a", key="x" * 65))
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidWeight):
            await partition.add(new("a", weight=weight))
    for timeout_s in (0.0, -1.0, math.nan):
        with pytest.raises(InvalidPoll, match="deadline is over"):
            await partition.poll("worker", timeout_s=timeout_s)
    assert await partition.backlog.count() == 0


async def test_many_producers_and_pollers_lose_nothing(open_partition: Open, history: History) -> None:
    partition = await open_partition()
    got: Counter[bytes] = Counter()

    async def work() -> None:
        while (payload := await partition.poll("worker", timeout_s=0.3)) is not None:
            got[payload] += 1

    async def produce(producer: int) -> None:
        for number in range(100):
            await partition.add(new(f"{producer}/{number}", key=f"key-{producer}"))

    await asyncio.gather(*(produce(number) for number in range(20)), *(work() for _ in range(10)))
    assert len(got) == 2000
    assert set(got.values()) == {1}
    assert len(history.started) == 2000
