"""An event loop in a thread of its own: Playwright's loop runs in the test's thread."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds until a cancelled task counts as hanging.
CANCEL_S_MAX = 20.0


@dataclass(frozen=True)
class LoopThread:
    """Runs coroutines in its loop."""

    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


@contextmanager
def loop_thread() -> Iterator[LoopThread]:
    """Run a loop until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield LoopThread(loop)
    finally:
        try:
            asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def _cancel_all() -> None:
    """Cancel the tasks that are left, as `asyncio.run` does; fails if one of them does not end."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, stuck = await asyncio.wait(left, timeout=CANCEL_S_MAX)
        assert not stuck, f"tasks did not end within {CANCEL_S_MAX} s of their cancellation: {stuck}"
