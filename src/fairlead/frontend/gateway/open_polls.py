"""Open polls of workers at this host: they end at once when their worker shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

Worker = tuple[str, str]


class OpenPolls:
    """The tasks that wait in a poll, by namespace id and worker instance key; bounded by the number of open calls."""

    def __init__(self) -> None:
        self._waiting: dict[Worker, set[asyncio.Task[object]]] = {}
        self._answered: set[asyncio.Task[object]] = set()

    async def wait(self, worker: Worker, poll: Awaitable[T]) -> T | None:
        """Await the poll; None if the worker shuts down first. The caller must be an asyncio task of its own."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a poll must run in an asyncio task")
        waiting = self._waiting.setdefault(worker, set())
        waiting.add(task)
        try:
            return await poll
        except asyncio.CancelledError:
            # If the caller has disconnected too, the task was cancelled twice: the second cancellation must propagate.
            if task in self._answered and not task.uncancel():
                return None
            raise
        finally:
            self._answered.discard(task)
            waiting.discard(task)
            if not waiting:
                self._waiting.pop(worker, None)

    def answer(self, worker: Worker) -> int:
        """End the worker's polls; returns their number."""
        waiting = self._waiting.get(worker, set()) - self._answered
        for task in waiting:
            self._answered.add(task)
            task.cancel()
        return len(waiting)
