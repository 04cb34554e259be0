"""What many ask for at once is done once for all of them, and after they have asked."""

import asyncio

import pytest

from fairlead.cluster.turns import GivenUp, Turns
from fairlead.core.errors import RetryLater


class Doing:
    """What is done, in turns that end when they are told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = asyncio.Event()
        self.failure: Exception | None = None
        self.turns = Turns(self._do)

    async def _do(self, key: str) -> None:
        self.begun.append(key)
        await self.may_end.wait()
        if self.failure is not None:
            raise self.failure

    def ask(self, count: int, key: str = "a") -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.turns.take(key)) for _ in range(count)]


async def test_all_who_ask_while_a_turn_is_under_way_share_the_next() -> None:
    doing = Doing()
    first = doing.ask(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert doing.begun == ["a"]
    others = doing.ask(100) + doing.ask(1, "b")
    await asyncio.sleep(0.01)
    assert doing.begun == ["a", "b"]
    doing.may_end.set()
    await asyncio.gather(*first, *others)
    assert doing.begun == ["a", "b", "a"]
    # Whoever comes later has another.
    await doing.turns.take("a")
    assert len(doing.begun) == 4
    await doing.turns.close()


async def test_one_who_does_not_wait_any_more_takes_it_from_nobody_and_all_hear_of_a_failure() -> None:
    doing = Doing()
    impatient, *others = doing.ask(3)
    await asyncio.sleep(0.01)
    impatient.cancel()
    doing.failure = RetryLater("not now")
    doing.may_end.set()
    for other in others:
        with pytest.raises(RetryLater, match="not now"):
            await other
    assert doing.begun == ["a"]
    # The next is not told of it.
    doing.failure = None
    await doing.turns.take("a")
    await doing.turns.close()


async def test_what_is_under_way_ends_when_it_is_closed() -> None:
    doing = Doing()
    asking = doing.ask(2)
    await asyncio.sleep(0.01)
    asking += doing.ask(2)
    await asyncio.sleep(0.01)
    await doing.turns.close()
    assert all(isinstance(one, GivenUp) for one in await asyncio.gather(*asking, return_exceptions=True))
    assert doing.begun == ["a"]
