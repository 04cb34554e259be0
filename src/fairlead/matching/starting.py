"""What happens when a task is given to a poll: whoever wants the work done says whether it is still to be done."""

from collections.abc import Awaitable, Callable
from enum import Enum


class NotStarted(Enum):
    """Why a task that was to be started was not."""

    GONE = "gone"  # Started before, or no longer wanted: nobody needs it any more.
    REFUSED = "refused"  # Not now; it must be given to another poll.


# Starts a task (its payload) for a worker: its identity, and what it says of itself. What this returns is what the poll
# is answered with.
Starter = Callable[[bytes, str, bytes], Awaitable[bytes | NotStarted]]


async def start_plainly(payload: bytes, _identity: str, _worker: bytes) -> bytes:
    """Start a task that nobody keeps account of: the poll gets it as it is."""
    return payload
