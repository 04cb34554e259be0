import asyncio

import pytest
import structlog
from structlog.testing import capture_logs

from fairlead.aio.background import END_S_MAX, Background, BrokenOff
from fairlead.core.errors import GiveUp, RetryLater
from tests.matching.root_world import never, on_virtual_time


def make() -> Background:
    return Background(structlog.get_logger())


async def raising(error: Exception) -> None:
    raise error


@on_virtual_time
async def test_work_run_apart_continues_if_its_caller_is_cancelled() -> None:
    background, done = make(), asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(1.0)
        done.set()

    caller = asyncio.create_task(background.apart(work()))
    await asyncio.sleep(0.5)
    caller.cancel()
    await asyncio.sleep(1.0)
    assert caller.cancelled()
    assert done.is_set()


@on_virtual_time
async def test_work_run_apart_returns_its_result_or_error_to_the_caller() -> None:
    background = make()
    assert await background.apart(asyncio.sleep(1.0, 7)) == 7
    with pytest.raises(RetryLater, match="later"):
        await background.apart(raising(RetryLater("later")))


@on_virtual_time
async def test_the_end_raises_broken_off_in_waiting_callers() -> None:
    background = make()
    caller = asyncio.create_task(background.apart(never()))
    await asyncio.sleep(1.0)
    background.end()
    with pytest.raises(BrokenOff):
        await caller
    assert not caller.cancelled()


@on_virtual_time
async def test_no_work_begins_after_the_end() -> None:
    background = make()
    background.end()
    with pytest.raises(BrokenOff):
        background.begin(never())
    with pytest.raises(BrokenOff):
        await background.apart(never())
    await background.ended()


@on_virtual_time
async def test_the_end_does_not_cancel_or_wait_for_the_task_that_calls_it() -> None:
    background, seen = make(), list[str]()

    async def work() -> None:
        background.begin(never())
        background.end()
        await background.ended()
        await asyncio.sleep(1.0)
        seen.append("went on")

    began_s = asyncio.get_running_loop().time()
    await background.begin(work())
    assert seen == ["went on"]
    assert asyncio.get_running_loop().time() - began_s == 1.0


@on_virtual_time
async def test_the_end_waits_a_bounded_time_for_a_task_that_ignores_cancellation() -> None:
    background = make()

    async def stubborn() -> None:
        try:
            await never()
        finally:
            await asyncio.sleep(1000.0)

    task = background.begin(stubborn())
    await asyncio.sleep(1.0)
    began_s = asyncio.get_running_loop().time()
    background.end()
    await background.ended()
    assert asyncio.get_running_loop().time() - began_s == END_S_MAX
    assert not task.done()


@on_virtual_time
async def test_only_unexpected_and_permanent_errors_are_logged() -> None:
    with capture_logs() as logs:
        background = make()
        for error in (RetryLater("later"), GiveUp("broken"), ZeroDivisionError()):
            background.begin(raising(error))
        background.begin(never())
        await asyncio.sleep(1.0)
        background.end()
        await background.ended()
    assert [type(log["exc_info"]) for log in logs] == [GiveUp, ZeroDivisionError]


@on_virtual_time
async def test_the_method_each_bounds_concurrency_and_cancels_late_items() -> None:
    background = make()
    under_way, most, done = 0, 0, list[int]()

    async def work(number: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await asyncio.sleep(1000.0 if number == 0 else 1.0)
            done.append(number)
        finally:
            under_way -= 1

    began_s = asyncio.get_running_loop().time()
    await background.each(range(10), work, at_once_max=4, wait_s_max=60.0)
    assert asyncio.get_running_loop().time() - began_s == 60.0
    await asyncio.sleep(0)
    assert (most, under_way, sorted(done)) == (4, 0, list(range(1, 10)))
    await background.each((), work, at_once_max=4, wait_s_max=60.0)
