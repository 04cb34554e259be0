import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from fairlead.core.fairness import BufferLimits, InvalidFairnessKey, InvalidWeight, WeightOverrides
from fairlead.core.partitions import TaskType
from fairlead.matching.messages import NewTask
from fairlead.matching.partition.backlog_limits import BacklogLimits
from fairlead.matching.partition.queue import PhysicalQueue
from fairlead.matching.partition.task_validation import InvalidTask
from fairlead.matching.task_starter import NotStarted
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import QueueId
from fairlead.telemetry import Metrics
from tests.matching.partition.queue_calls import add, poll
from tests.patience import step

QUEUE = QueueId("namespace", "orders", TaskType.ACTIVITY)
Open = Callable[..., Awaitable[PhysicalQueue]]


class History:
    """A fake history service: starts every task, except those with a planned result in `answers`."""

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
async def open_queue(store: MemoryStore, history: History) -> AsyncIterator[Open]:
    opened: list[PhysicalQueue] = []

    async def open_one(**settings: object) -> PhysicalQueue:
        clock = asyncio.get_running_loop().time
        queue = PhysicalQueue(
            store,
            QUEUE,
            clock=clock,
            start=history.start,
            counts=Metrics().partition(*QUEUE, 0),
            **settings,  # type: ignore[arg-type]
        )
        opened.append(queue)
        await queue.backlog.open()
        return queue

    yield open_one
    for queue in opened:
        await queue.close()


def new(payload: str, *, key: str = "", weight: float = 1.0, priority: int = 3) -> NewTask:
    return NewTask(priority, key, weight, payload.encode())


async def test_a_task_that_finds_a_waiting_poll_is_started_and_not_stored(open_queue: Open, history: History) -> None:
    """FL-1: an acknowledged task is started."""
    queue = await open_queue()
    polling = asyncio.create_task(poll(queue, "worker", timeout_s=5))
    await asyncio.sleep(0)
    assert await add(queue, new("a")) is True
    assert await polling == b"a"
    assert history.started == [("a", "worker")]
    assert await queue.backlog.count() == 0


async def test_a_task_without_a_poll_is_stored_before_the_response(open_queue: Open) -> None:
    """FL-1: an acknowledged task is stored, unless a poll has started it."""
    queue = await open_queue()
    assert await add(queue, new("a")) is False
    assert await queue.backlog.count() == 1
    assert await poll(queue, "worker", timeout_s=5) == b"a"


async def test_a_poll_gets_an_empty_response_at_its_timeout(open_queue: Open) -> None:
    queue = await open_queue()
    assert await poll(queue, "worker", timeout_s=0.01) is None
    assert queue.polls_waiting == 0


async def test_a_poll_cancelled_after_its_match_gives_the_task_back(open_queue: Open, history: History) -> None:
    """FL-10."""
    queue = await open_queue()
    gone = asyncio.create_task(poll(queue, "gone", timeout_s=5))
    await asyncio.sleep(0)
    adding = asyncio.create_task(add(queue, new("a")))
    await asyncio.sleep(0)
    # The poll is matched with the task, but its coroutine has not run yet.
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await adding is False
    assert await poll(queue, "other", timeout_s=5) == b"a"
    assert history.started == [("a", "other")]


async def test_a_poll_cancelled_during_the_start_of_its_task_gives_the_task_back(
    open_queue: Open, history: History
) -> None:
    queue = await open_queue()
    await add(queue, new("a"))
    history.slow = asyncio.Event()
    gone = asyncio.create_task(poll(queue, "gone", timeout_s=5))
    await step()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    history.slow.set()
    assert await poll(queue, "other", timeout_s=5) == b"a"


async def test_a_task_that_history_rejects_is_retried_and_an_obsolete_task_is_dropped(
    open_queue: Open, history: History
) -> None:
    queue = await open_queue()
    history.answers = {"busy": [NotStarted.REFUSED], "gone": [NotStarted.GONE]}
    await add(queue, new("gone"))
    await add(queue, new("busy"))
    assert await poll(queue, "worker", timeout_s=5) == b"busy"
    assert await poll(queue, "worker", timeout_s=0.01) is None
    assert [payload for payload, _ in history.started] == ["busy"]


async def test_a_sync_matched_task_that_history_rejects_is_retried(open_queue: Open, history: History) -> None:
    queue = await open_queue()
    history.answers = {"a": [NotStarted.REFUSED]}
    polling = asyncio.create_task(poll(queue, "worker", timeout_s=5))
    await asyncio.sleep(0)
    await add(queue, new("a"))
    assert await polling == b"a"
    assert history.started == [("a", "worker")]


async def test_tasks_are_dispatched_by_priority_and_then_by_fairness(open_queue: Open) -> None:
    queue = await open_queue(overrides=WeightOverrides({"gold": 2.0}))
    for number in range(6):
        await add(queue, new(f"flood-{number}", key="flood"))
    for number in range(4):
        await add(queue, new(f"gold-{number}", key="gold"))
    await add(queue, new("urgent", priority=1))
    got = [await poll(queue, "worker", timeout_s=5) for _ in range(7)]
    assert got[0] == b"urgent"
    assert Counter((payload or b"").split(b"-")[0] for payload in got[1:]) == {b"gold": 4, b"flood": 2}


async def test_the_rate_limit_delays_tasks_and_loses_none(open_queue: Open) -> None:
    queue = await open_queue(rate_per_s=20)
    for number in range(30):
        await add(queue, new(str(number)))
    started_s = asyncio.get_running_loop().time()
    got = await asyncio.gather(*(poll(queue, "worker", timeout_s=5) for _ in range(30)))
    took_s = asyncio.get_running_loop().time() - started_s
    assert len(set(got)) == 30
    # The burst of 20 passes at once; the other 10 need 0.5 s at 20 per second.
    assert took_s >= 0.45


async def test_a_rate_limited_key_does_not_block_other_keys(open_queue: Open) -> None:
    queue = await open_queue(key_rate_per_s=1, limits=BacklogLimits(buffer=BufferLimits(batch_size=10, reload_at=3)))
    for number in range(30):
        await add(queue, new(f"limited-{number}", key="limited"))
    for number in range(30):
        await add(queue, new(f"free-{number}", key=f"free-{number}"))
    got = [await poll(queue, "worker", timeout_s=1) for _ in range(31)]
    assert Counter((payload or b"").split(b"-")[0] for payload in got) == {b"limited": 1, b"free": 30}


async def test_a_waiting_poll_gets_a_task_when_the_rate_limit_is_removed(open_queue: Open) -> None:
    queue = await open_queue(rate_per_s=0)
    await add(queue, new("a"))
    assert await poll(queue, "worker", timeout_s=0.02) is None
    polling = asyncio.create_task(poll(queue, "worker", timeout_s=5))
    await step()
    queue.dispatcher.change_rates(rate_per_s=math.inf, key_rate_per_s=math.inf)
    assert await polling == b"a"


async def test_a_new_owner_dispatches_all_stored_tasks(open_queue: Open) -> None:
    old = await open_queue()
    for number in range(2500):
        await add(old, new(str(number), key=f"key-{number % 7}"))
    new_owner = await open_queue()
    got = {await poll(new_owner, "worker", timeout_s=5) for _ in range(2500)}
    assert len(got) == 2500
    assert await poll(new_owner, "worker", timeout_s=0.01) is None


async def test_close_ends_waiting_polls_with_empty_responses(open_queue: Open) -> None:
    queue = await open_queue()
    polls = [asyncio.create_task(poll(queue, "worker", timeout_s=60)) for _ in range(3)]
    await asyncio.sleep(0)
    await queue.close()
    assert await asyncio.gather(*polls) == [None, None, None]


async def test_a_queue_reports_its_dispatch_rate_and_its_pollers(open_queue: Open) -> None:
    queue = await open_queue()
    for number in range(10):
        await add(queue, new(str(number)))
        await poll(queue, f"worker-{number % 2}", timeout_s=5)
    assert queue.dispatches_per_s == 2.0
    assert sorted(poller.identity for poller in queue.pollers.recent()) == ["worker-0", "worker-1"]


async def test_invalid_tasks_are_rejected_with_the_reason(open_queue: Open) -> None:
    """FL-18: the error names the field and its value."""
    queue = await open_queue()
    with pytest.raises(InvalidTask, match="priority is 6"):
        await add(queue, new("a", priority=6))
    with pytest.raises(InvalidFairnessKey, match="65 bytes"):
        await add(queue, new("a", key="x" * 65))
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidWeight):
            await add(queue, new("a", weight=weight))
    assert await queue.backlog.count() == 0


async def test_many_producers_and_pollers_lose_no_task(open_queue: Open, history: History) -> None:
    queue = await open_queue()
    got: Counter[bytes] = Counter()

    async def work() -> None:
        while (payload := await poll(queue, "worker", timeout_s=0.3)) is not None:
            got[payload] += 1

    async def produce(producer: int) -> None:
        for number in range(100):
            await add(queue, new(f"{producer}/{number}", key=f"key-{producer}"))

    await asyncio.gather(*(produce(number) for number in range(20)), *(work() for _ in range(10)))
    assert len(got) == 2000
    assert set(got.values()) == {1}
    assert len(history.started) == 2000
