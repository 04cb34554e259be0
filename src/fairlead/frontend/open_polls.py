"""The polls that workers have open at this host: a worker that shuts down has them answered at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

Worker = tuple[str, str]


class OpenPolls:
    """By namespace id and the worker's instance key: who waits in its name. As many as there are calls under way."""

    def __init__(self) -> None:
        self._waiting: dict[Worker, set[asyncio.Task[object]]] = {}
        self._answered: set[asyncio.Task[object]] = set()

    async def wait(self, worker: Worker, poll: Awaitable[T]) -> T | None:
        """What the poll brings, or None if the worker shuts down first. It must be awaited in a task of its own."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a poll waits outside of any task")
        waiting = self._waiting.setdefault(worker, set())
        waiting.add(task)
        try:
            return await poll
        except asyncio.CancelledError:
            # Where the caller has gone as well, there is one more cancellation, which goes on.
            if task in self._answered and not task.uncancel():
                return None
            raise
        finally:
            self._answered.discard(task)
            waiting.discard(task)
            if not waiting:
                self._waiting.pop(worker, None)

    def answer(self, worker: Worker) -> int:
        """Let the worker's polls wait no longer; how many there were."""
        waiting = self._waiting.get(worker, set()) - self._answered
        for task in waiting:
            self._answered.add(task)
            task.cancel()
        return len(waiting)
