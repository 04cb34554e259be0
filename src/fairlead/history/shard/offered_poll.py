"""A waiting poll that the frontend offers with a worker's response, for the workflow task that the response schedules.

The task comes back in the response to the call. The offer applies to one asyncio task, the one that handles the call.
"""

import asyncio
from contextvars import ContextVar

from fairlead.core.partitions import TaskQueueId
from fairlead.history.client import PollOffer
from fairlead.matching.messages import QueueKind

_CURRENT: ContextVar["tuple[object, OfferedPoll] | None"] = ContextVar("offered_poll", default=None)


class OfferedPoll:
    """A `ReservedPoll` at the caller's host; `task` is the poll's response, empty if no task was started."""

    __slots__ = ("_is_free", "identity", "task", "task_queue", "worker")

    def __init__(self, offer: PollOffer) -> None:
        self.task_queue = offer.task_queue
        self.identity = offer.identity
        self.worker = offer.worker
        self.task = b""
        self._is_free = True

    def reserve(self) -> bool:
        """Reserve the poll; False if it is reserved already."""
        was_free, self._is_free = self._is_free, False
        return was_free

    def give(self, response: bytes) -> None:
        """Return the task with the response to the call."""
        self.task = response

    def release(self) -> None:
        """Let another step of the call use the poll."""
        self._is_free = True


def use_offer(offer: PollOffer) -> OfferedPoll:
    """Offer a poll to the steps of the present call."""
    offered = OfferedPoll(offer)
    _CURRENT.set((asyncio.current_task(), offered))
    return offered


def reserve_offered(task_queue: TaskQueueId, kind: QueueKind) -> OfferedPoll | None:
    """Reserve the poll that came with the present call, if it is for this task queue."""
    current = _CURRENT.get()
    if current is None or current[0] is not asyncio.current_task() or kind is not QueueKind.STICKY:
        return None
    offered = current[1]
    return offered if offered.task_queue == task_queue.name and offered.reserve() else None
