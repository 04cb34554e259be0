"""Futures that can't be cancelled, and the tasks that await them."""

import asyncio

import pytest

from fairlead.aio.cancellation import Uncancellable


async def test_a_task_that_awaits_an_uncancellable_future_is_cancelled_when_the_future_is_done() -> None:
    written: Uncancellable[int] = Uncancellable()
    seen: list[object] = []

    async def write() -> None:
        try:
            await written
        except asyncio.CancelledError:
            seen.append(written.done())
            seen.append(await written)
            raise

    task = asyncio.create_task(write())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    assert not written.cancelled()
    written.set_result(7)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [True, 7]


async def test_the_failure_of_an_uncancellable_future_is_known_after_a_cancellation() -> None:
    written: Uncancellable[int] = Uncancellable()

    async def write() -> None:
        try:
            await written
        except asyncio.CancelledError:
            await written

    task = asyncio.create_task(write())
    await asyncio.sleep(0)
    task.cancel()
    written.set_exception(ValueError("the disk is full"))
    with pytest.raises(ValueError, match="the disk is full"):
        await task


async def test_a_timeout_ends_when_the_uncancellable_future_is_done() -> None:
    written: Uncancellable[int] = Uncancellable()
    asyncio.get_running_loop().call_later(0.02, written.set_result, 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await written
    assert written.done()
