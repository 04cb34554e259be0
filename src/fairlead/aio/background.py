"""Background tasks of one owner."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from structlog.typing import FilteringBoundLogger

from fairlead.core.errors import FairleadError, GiveUp, RetryElsewhere

T = TypeVar("T")

# Seconds that the owner waits for cancelled tasks; most end at once, but one may ignore its cancellation.
END_S_MAX = 1.0


class BrokenOff(RetryElsewhere):
    """The owner of the background task is being closed: the work was not begun, or was cancelled."""


class Background:
    """Holds the background tasks of one owner; none begins after `end`. `ended` never waits for the calling task.

    A `FairleadError` is for the caller that awaits the task, if there is one, and is not logged. Two kinds of errors
    are logged: `GiveUp`, which needs a person, and any other exception, which is a bug.
    """

    __slots__ = ("_log", "_tasks", "is_ended")

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_ended = False

    def begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run `work` in the background."""
        if self.is_ended:
            work.close()
            raise BrokenOff("the partition is being unloaded: look up its owner again")
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._take_leave)
        return task

    async def apart(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end even if the caller is cancelled; raise `BrokenOff` if the owner ends first."""
        task = self.begin(work)
        # Unlike a plain await, this does not cancel `task` when the caller is cancelled.
        await asyncio.wait({task})
        if task.cancelled():
            raise BrokenOff("the partition was unloaded during the call: look up its owner again")
        return task.result()

    async def each(
        self, numbers: Sequence[int], work: Callable[[int], Awaitable[None]], *, at_once_max: int, wait_s_max: float
    ) -> None:
        """Run `work` for each number, `at_once_max` at a time; after `wait_s_max` seconds cancel the rest."""
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
        """Cancel all tasks except the one that calls this method: it may have more to do."""
        self.is_ended = True
        for task in self._others():
            task.cancel()

    async def ended(self) -> None:
        """Wait until the cancelled tasks have ended, `END_S_MAX` at most."""
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
