"""Whether the running task was cancelled, and futures that can't be cancelled."""

import asyncio
from typing import Any, TypeVar

T = TypeVar("T")


class Uncancellable(asyncio.Future[T]):
    """A future that always gets its result. A task that awaits it can be cancelled only when the future is done.

    It does the same as `asyncio.shield` for a future of our own, without a second future and its callbacks.
    """

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002 - asyncio's signature
        """Refuse to be cancelled. Asyncio then cancels the awaiting task at its next step, when this future is done."""
        return False


def is_cancelled() -> bool:
    """Whether the running task itself was cancelled, not only something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
