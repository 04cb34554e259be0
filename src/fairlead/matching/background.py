"""What runs on behalf of one owner while nobody waits for it, and how that ends."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from structlog.typing import FilteringBoundLogger

from fairlead.core.errors import FairleadError, GiveUp, RetryElsewhere

T = TypeVar("T")

# What was cancelled ends at once, unless it takes no notice; its owner waits no longer than this.
END_S_MAX = 1.0


class BrokenOff(RetryElsewhere):
    """Something was asked of what is being unloaded: it was not done, or was not finished."""


class Background:
    """Holds the tasks of one owner: none begins after the end, and the end never waits for the one that calls it.

    An error of ours is for whoever waits for the task, and nobody may. One that a person must look at is logged, and so
    is any other: it is a bug.
    """

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_ended = False

    def begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Let `work` run by itself until the end."""
        if self.is_ended:
            work.close()
            raise BrokenOff("the partition is being unloaded: ask for its owner again")
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._take_leave)
        return task

    async def apart(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` to its end even where the caller is cancelled meanwhile; `BrokenOff` if the end came first."""
        task = self.begin(work)
        # Unlike a plain await, this does not pass on the caller's cancellation.
        await asyncio.wait({task})
        if task.cancelled():
            raise BrokenOff("the partition was unloaded meanwhile: ask for its owner again")
        return task.result()

    async def each(
        self, numbers: Sequence[int], work: Callable[[int], Awaitable[None]], *, at_once_max: int, wait_s_max: float
    ) -> None:
        """Do `work` for each number, so many at once; what is not done by then is given up."""
        remaining = iter(numbers)

        async def take() -> None:
            for number in remaining:
                await work(number)
                if self.is_ended:
                    return

        workers = [self.begin(take()) for _ in range(min(at_once_max, len(numbers)))]
        if workers:
            _, late = await asyncio.wait(workers, timeout=wait_s_max)
            for worker in late:
                worker.cancel()

    def end(self) -> None:
        """Cancel everything but the task that calls this: it may have something else to finish."""
        self.is_ended = True
        for task in self._others():
            task.cancel()

    async def ended(self) -> None:
        """Wait until what was cancelled has gone."""
        others = self._others()
        if others:
            await asyncio.wait(others, timeout=END_S_MAX)

    def _others(self) -> set[asyncio.Task[Any]]:
        return self._tasks - {asyncio.current_task()}

    def _take_leave(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and (isinstance(error, GiveUp) or not isinstance(error, FairleadError)):
            self._log.error("background_task_failed", exc_info=error)
