import asyncio
import sys

from hypothesis import given
from hypothesis import strategies as st

from fairlead.aio.deadlines import GRAIN_S, Deadlines, new_wakes, shared_moment
from tests.patience import until
from tests.virtual_time import on_virtual_time


def test_a_deadline_fires_once_and_never_early() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        fired: list[tuple[str, float]] = []
        deadlines = Deadlines[str](lambda item: fired.append((item, loop.time())))
        begin_s = loop.time()
        for item, after_s in (("b", 0.05), ("a", 0.02), ("c", 0.0501)):
            deadlines.add(item, begin_s + after_s)
        await until(lambda: len(fired) == 3)
        assert [item for item, _ in fired] == ["a", "b", "c"]
        for (_, at_s), after_s in zip(fired, (0.02, 0.05, 0.0501), strict=True):
            assert begin_s + after_s - 1e-6 <= at_s

    asyncio.run(run())


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=40))
@on_virtual_time
async def test_removed_items_do_not_fire_and_the_others_do(steps: list[tuple[int, bool]]) -> None:
    """Each step adds an item at a tick, or removes the last one that was added there."""
    fired: list[int] = []
    deadlines = Deadlines[int](fired.append)
    begin_s = asyncio.get_running_loop().time() + 1
    kept: dict[int, list[tuple[int, int]]] = {}
    for number, (tick, is_added) in enumerate(steps):
        if is_added:
            kept.setdefault(tick, []).append((number, deadlines.add(number, begin_s + tick * GRAIN_S)))
        elif kept.get(tick):
            deadlines.remove(*kept[tick].pop())
    await asyncio.sleep(2)
    assert sorted(fired) == sorted(number for items in kept.values() for number, _ in items)
    assert (deadlines._items, deadlines._ticks) == ({}, [])


def test_calls_that_end_before_long_deadlines_leave_little_behind() -> None:
    async def run() -> None:
        deadlines = Deadlines[object](lambda _: None)
        for number in range(10_000):
            item = object()
            deadlines.remove(item, deadlines.add(item, 1_000 + number * GRAIN_S))
        assert set(deadlines._items.values()) == {None}
        assert sys.getsizeof(deadlines._items) + sys.getsizeof(deadlines._ticks) < 10_000 * 60
        deadlines.close()

    asyncio.run(run())


class Sleeper:
    """Records the time at which it is woken; then fails if it should."""

    def __init__(self, *, fails: bool = False) -> None:
        self.woken_s: list[float] = []
        self._fails = fails

    def wake(self) -> None:
        self.woken_s.append(asyncio.get_running_loop().time())
        if self._fails:
            raise ZeroDivisionError


@on_virtual_time
async def test_an_object_that_fails_when_it_is_woken_does_not_stop_the_others() -> None:
    loop = asyncio.get_running_loop()
    failures: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    wakes = new_wakes()
    sleepers = [Sleeper(fails=True), Sleeper(), Sleeper()]
    for sleeper, after_s in zip(sleepers, (1.0, 1.0, 2.0), strict=True):
        wakes.add(sleeper, loop.time() + after_s)
    await asyncio.sleep(3)
    assert [len(sleeper.woken_s) for sleeper in sleepers] == [1, 1, 1]
    assert [type(one["exception"]) for one in failures] == [ZeroDivisionError]


@on_virtual_time
async def test_work_with_one_interval_is_due_at_few_moments_and_never_early() -> None:
    loop = asyncio.get_running_loop()
    moments = set()
    for _ in range(100):
        due_s = shared_moment(60.0)
        assert loop.time() + 60.0 - 1e-6 <= due_s <= loop.time() + 60.0 * 17 / 16 + 1e-6
        moments.add(due_s)
        await asyncio.sleep(0.6)
    assert len(moments) <= 18
