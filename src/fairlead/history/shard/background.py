"""Work of a shard for which no caller waits, and which may be lost if the process ends."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from fairlead.core.errors import FairleadError
from fairlead.history.state.tasks import QueueRow
from fairlead.telemetry import get_log

_log = get_log("history.shard")


class BackgroundWork:
    """The coroutines and the in-memory timers of one shard."""

    def __init__(self, shard_id: int, *, run: Callable[[QueueRow], Awaitable[None]]) -> None:
        """`run` executes a task when its timer fires."""
        self._shard_id = shard_id
        self._run = run
        self._timers: set[asyncio.TimerHandle] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine until it ends or the shard closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def call_later(self, delay_s: float, row: QueueRow) -> None:
        """Execute a task after a delay."""

        def fire() -> None:
            self._timers.discard(handle)
            self.start(self._execute(row))

        handle = asyncio.get_running_loop().call_later(max(0.0, delay_s), fire)
        self._timers.add(handle)

    def cancel_timers(self) -> None:
        """Cancel the timers that have not fired."""
        for timer in self._timers:
            timer.cancel()

    async def close(self) -> None:
        """Cancel the running coroutines and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _execute(self, row: QueueRow) -> None:
        try:
            await self._run(row)
        except FairleadError as failure:
            _log.warning("in-memory timer task failed", shard=self._shard_id, task=repr(row.task), error=str(failure))
