"""The refresh loop calls at every interval, and reports the first of consecutive failures."""

import asyncio

import pytest

from fairlead.aio.refresh_loop import refresh_forever
from fairlead.core.errors import FairleadError, RetryLater
from tests.virtual_time import on_virtual_time


@on_virtual_time
async def test_consecutive_failures_are_reported_once_and_again_after_a_success() -> None:
    outcomes = [None, RetryLater("first"), RetryLater("second"), None, RetryLater("third")]
    began: list[float] = []
    reported: list[FairleadError] = []
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def refresh() -> None:
        began.append(loop.time())
        outcome = outcomes.pop(0) if outcomes else None
        if not outcomes:
            is_over.set()
        if outcome is not None:
            raise outcome

    start_s = loop.time()
    running = asyncio.create_task(refresh_forever(refresh, interval_s=2.0, on_failure=reported.append))
    await is_over.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [at_s - start_s for at_s in began] == pytest.approx([2.0, 4.0, 6.0, 8.0, 10.0])
    assert [str(failure) for failure in reported] == ["first", "third"]


@on_virtual_time
async def test_an_unexpected_error_ends_the_loop() -> None:
    async def refresh() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await refresh_forever(refresh, interval_s=1.0, on_failure=lambda _: None)
