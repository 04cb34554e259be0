"""The lists of task queues that are kept for a moment, and what holds the queues back."""

import asyncio

import pytest

from fairlead.console import reasons
from fairlead.console.directory import Kept
from fairlead.console.held_back import Cause, Held
from fairlead.console.reasons import Reasons
from fairlead.core.errors import RetryLater
from fairlead.matching.messages.inspection import LoadedQueue


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Source:
    """Counts its reads; the first ones fail."""

    def __init__(self, failures: int = 0) -> None:
        self.reads = 0
        self.failures = failures

    async def read(self) -> int:
        self.reads += 1
        await asyncio.sleep(0)
        if self.reads <= self.failures:
            raise RetryLater("the host is busy")
        return self.reads


async def test_callers_share_a_read_until_it_is_too_old() -> None:
    clock, source = Clock(), Source()
    kept: Kept[int] = Kept(2.0, clock=clock)
    assert await asyncio.gather(*(kept.get("a", source.read) for _ in range(3))) == [1, 1, 1]
    clock.now_s += 1.9
    assert await kept.get("a", source.read) == 1
    clock.now_s += 0.2
    assert await kept.get("a", source.read) == 2
    assert await kept.get("a", source.read, is_new=True) == 3


async def test_a_failed_read_is_not_kept() -> None:
    kept: Kept[int] = Kept(2.0, clock=Clock())
    source = Source(failures=1)
    with pytest.raises(RetryLater):
        await kept.get("a", source.read)
    assert await kept.get("a", source.read) == 2


async def test_a_caller_that_goes_away_does_not_end_the_read_of_the_others() -> None:
    kept: Kept[int] = Kept(2.0, clock=Clock())
    source = Source()
    first = asyncio.create_task(kept.get("a", source.read))
    await asyncio.sleep(0)
    second = asyncio.create_task(kept.get("a", source.read))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1


async def test_the_number_of_kept_results_is_bounded() -> None:
    kept: Kept[int] = Kept(2.0, entries_max=3, clock=Clock())
    source = Source()
    for number in range(10):
        await kept.get(str(number), source.read)
    assert len(kept._reads) <= 3


def queue(name: str, *, partitions: int = 1, polls: int = 0) -> LoadedQueue:
    return LoadedQueue("n", name, 1, partitions, 5, 1.0, 0.0, 0.0, polls)


class Reader:
    """Notes which task queues are read."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def read(self, one: LoadedQueue) -> Held:
        self.names.append(one.name)
        return Held(cause=Cause.BUSY_WORKERS, sentence=f"{one.name} is busy")


async def test_each_task_queue_gets_its_reason_and_keeps_it_for_some_seconds() -> None:
    clock, reader = Clock(), Reader()
    kept = Reasons(clock=clock)
    rows = [queue(f"q{number}") for number in range(100)]
    for _ in range(2):
        assert len(await kept.of(rows, reader.read)) == 100
    assert len(reader.names) == 100
    clock.now_s += reasons.FRESH_S + 1
    assert len(await kept.of(rows, reader.read)) == 100
    assert len(reader.names) == 100 + reasons.REFRESHED_MAX
    assert len(await kept.of(rows, reader.read)) == 100
    # The next page view reads other task queues, not the same ones again.
    assert len(set(reader.names[100:])) == 2 * reasons.REFRESHED_MAX


async def test_a_reason_is_read_again_at_once_when_the_first_poll_comes() -> None:
    kept, reader = Reasons(clock=Clock()), Reader()
    await kept.of([queue("orders")], reader.read)
    await kept.of([queue("orders", polls=1)], reader.read)
    await kept.of([queue("orders", polls=2)], reader.read)
    assert reader.names == ["orders", "orders"]


async def test_one_look_calls_a_bounded_number_of_partitions_and_later_ones_read_the_rest() -> None:
    kept, reader = Reasons(clock=Clock()), Reader()
    rows = [queue(f"q{number}", partitions=150) for number in range(4)]
    assert len(await kept.of(rows, reader.read)) == 2
    assert len(await kept.of(rows, reader.read)) == 4
    assert reader.names == ["q0", "q1", "q2", "q3"]


async def test_a_task_queue_with_more_partitions_than_the_bound_is_read_alone() -> None:
    kept, reader = Reasons(clock=Clock()), Reader()
    rows = [queue("huge", partitions=10_000), queue("small")]
    assert len(await kept.of(rows, reader.read)) == 1
    assert len(await kept.of(rows, reader.read)) == 2
    assert reader.names == ["huge", "small"]


async def test_the_number_of_kept_reasons_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "KEPT_MAX", 10)
    kept, reader = Reasons(clock=Clock()), Reader()
    for number in range(50):
        await kept.of([queue(f"q{number}")], reader.read)
    assert len(kept._known) <= 10
