"""Concurrent requests for the same refresh are coalesced: one running, and one queued after it."""

import asyncio

import pytest

from fairlead.aio.coalescer import Coalescer, GivenUp
from fairlead.core.errors import RetryLater
from tests.patience import step


class Refreshes:
    """A coalescer whose refreshes wait until `may_end` is set, and then may fail."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = asyncio.Event()
        self.failure: Exception | None = None
        self.coalescer = Coalescer(self._do)

    async def _do(self, key: str) -> None:
        self.begun.append(key)
        await self.may_end.wait()
        if self.failure is not None:
            raise self.failure

    def ask(self, count: int, key: str = "a") -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.coalescer.refresh(key)) for _ in range(count)]


async def test_all_requests_during_a_refresh_share_the_next_one() -> None:
    doing = Refreshes()
    first = doing.ask(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert doing.begun == ["a"]
    others = doing.ask(100) + doing.ask(1, "b")
    await step()
    assert doing.begun == ["a", "b"]
    doing.may_end.set()
    await asyncio.gather(*first, *others)
    assert doing.begun == ["a", "b", "a"]
    # A later request starts another refresh.
    await doing.coalescer.refresh("a")
    assert len(doing.begun) == 4
    await doing.coalescer.close()


async def test_a_cancelled_caller_does_not_cancel_the_refresh_and_all_others_get_its_failure() -> None:
    doing = Refreshes()
    impatient, *others = doing.ask(3)
    await step()
    impatient.cancel()
    doing.failure = RetryLater("not now")
    doing.may_end.set()
    for other in others:
        with pytest.raises(RetryLater, match="not now"):
            await other
    assert doing.begun == ["a"]
    # The next refresh doesn't get the old failure.
    doing.failure = None
    await doing.coalescer.refresh("a")
    await doing.coalescer.close()


async def test_close_ends_running_and_queued_refreshes() -> None:
    doing = Refreshes()
    asking = doing.ask(2)
    await step()
    asking += doing.ask(2)
    await step()
    await doing.coalescer.close()
    assert all(isinstance(one, GivenUp) for one in await asyncio.gather(*asking, return_exceptions=True))
    assert doing.begun == ["a"]
