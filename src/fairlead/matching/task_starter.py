"""The starter of tasks: called when a task is matched with a poll, it decides whether the task is still valid."""

from collections.abc import Awaitable, Callable
from enum import Enum


class NotStarted(Enum):
    """Why a task was not started."""

    GONE = "gone"  # Obsolete: the task was started earlier, or its work was cancelled.
    KEY_FULL = "key full"  # The task's fairness key is at its limit on running activities.
    QUEUE_FULL = "queue full"  # The task queue is at its limit on running activities.
    REFUSED = "refused"  # The starter can't start it now; another poll must get it later.


# Starts a task, given its payload, the worker's identity and the worker's description. Returns the poll's response.
Starter = Callable[[bytes, str, bytes], Awaitable[bytes | NotStarted]]


async def start_plainly(payload: bytes, _identity: str, _worker: bytes) -> bytes:
    """Start a task that has no owner in the history service: return its payload."""
    return payload
