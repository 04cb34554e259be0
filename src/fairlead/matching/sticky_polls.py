"""Polls of sticky task queues that wait at the host to which their worker is connected.

A worker's polls and the results of its activities usually reach the same host. If another host owns the worker's sticky
task queue, half of its polls wait here. When this host sends a result to history, the response can then have the next
workflow task, without a call to matching. The other half waits at the owner, for all tasks that come another way.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Protocol

from fairlead.aio.deadlines import new_wakes
from fairlead.core.partitions import Partition, PartitionConfig, TaskQueueId
from fairlead.core.routing import NoHosts
from fairlead.matching.client_configs import scope_of
from fairlead.matching.messages import BacklogReport, PollResponse
from fairlead.membership.ring import RingView
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic.matching import LONG_POLL_EXPIRATION_INTERVAL

# Seconds before a poll's deadline. An empty response of the owner after that time means that the poll has timed out; an
# earlier one means that the worker is shutting down or the owner is closing.
TIMED_OUT_S = 1.0
# Minimum seconds that a poll waits at the owner, even if its deadline is nearer.
FORWARDED_S_MIN = 0.1

_CONFIG = PartitionConfig(version=0, read=1, write=1)
_REPORT = BacklogReport(0, tasks=0, age_s=0.0, adds_per_s=0.0, wait_s=0.0)


class Forward(Protocol):
    """Waits at the owner of the sticky task queue."""

    def __call__(self, *, timeout_s: float) -> Awaitable[PollResponse]:
        """Wait for `timeout_s`; see `MatchingClient.poll`."""
        ...


@dataclass(slots=True, eq=False)
class HeldPoll:
    """A poll that waits at this host. Once reserved, it is a `ReservedPoll`."""

    identity: str
    worker: bytes
    queue: "_Queue"
    deadline_s: float
    # The task; None if the wait ends without one, or if the poll continues to wait at the owner (`is_forwarded`).
    outcome: "asyncio.Future[bytes | None]"
    is_forwarded: bool = False

    def give(self, response: bytes) -> None:
        """Answer the poll with a task that was started for it; do nothing if the poll's caller is gone."""
        if not self.outcome.done():
            self.outcome.set_result(response)

    def release(self) -> None:
        """Let the poll wait again: no task was started for it."""
        if self.outcome.done():
            return
        if asyncio.get_running_loop().time() >= self.deadline_s or not self.queue.is_polled:
            self.outcome.set_result(None)
            return
        self.queue.held[self] = None
        self.queue.balance()

    def wake(self) -> None:
        """End the wait: the deadline has passed."""
        if self in self.queue.held:
            self.end()

    def end(self) -> None:
        """End the wait without a task."""
        del self.queue.held[self]
        if not self.outcome.done():
            self.outcome.set_result(None)


@dataclass(slots=True, eq=False)
class _Queue:
    """The polls of one sticky task queue at this host."""

    # The worker to whom all held polls belong.
    identity: str
    worker: bytes
    # Polls that wait at the owner, and the polls that wait here, oldest first, without the reserved ones.
    forwarded: int = 0
    held: dict[HeldPoll, None] = field(default_factory=dict)
    # All polls, including the reserved ones.
    polls: int = 0
    # False after the owner ended a poll early, until the next poll arrives.
    is_polled: bool = True

    def balance(self) -> None:
        """Forward polls until the owner has at least as many as this host: a task that comes there must find a poll."""
        while len(self.held) > self.forwarded:
            poll = next(iter(self.held))
            del self.held[poll]
            if not poll.outcome.done():
                poll.is_forwarded = True
                self.forwarded += 1
                poll.outcome.set_result(None)

    def end_all(self) -> None:
        """End all held polls without a task."""
        self.is_polled = False
        for poll in list(self.held):
            poll.end()


class StickyPolls:
    """The polls of sticky task queues at this host."""

    def __init__(self, host: str, ring: RingView, settings: DynamicSettings) -> None:
        self._host = host
        self._ring = ring
        self._settings = settings
        self._queues: dict[TaskQueueId, _Queue] = {}
        self._wakes = new_wakes()

    def reserve(self, task_queue: TaskQueueId) -> HeldPoll | None:
        """Reserve the oldest poll that waits here; the caller must call `give` or `release`."""
        queue = self._queues.get(task_queue)
        if queue is None:
            return None
        while queue.held:
            poll = next(iter(queue.held))
            del queue.held[poll]
            # Skip a poll whose caller was cancelled in this turn of the event loop.
            if not poll.outcome.done():
                return poll
        return None

    async def wait(
        self, task_queue: TaskQueueId, identity: str, worker: bytes, *, timeout_s: float, forward: Forward
    ) -> PollResponse:
        """Wait for a task, here or at the owner."""
        if not self._is_owned_elsewhere(task_queue):
            return await forward(timeout_s=timeout_s)
        timeout_s = min(timeout_s, self._settings.get(LONG_POLL_EXPIRATION_INTERVAL, scope_of(task_queue)))
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        queue = self._queues.get(task_queue)
        if queue is None:
            queue = self._queues[task_queue] = _Queue(identity, worker)
        queue.polls += 1
        queue.is_polled = True
        try:
            is_of_worker = (queue.identity, queue.worker) == (identity, worker)
            if is_of_worker and len(queue.held) < queue.forwarded:
                poll = HeldPoll(identity, worker, queue, deadline_s, asyncio.get_running_loop().create_future())
                task = await self._hold(poll)
                if not poll.is_forwarded:
                    return PollResponse(task, _CONFIG, _REPORT)
            else:
                queue.forwarded += 1
            return await _forward(queue, forward, deadline_s)
        finally:
            queue.polls -= 1
            if not queue.polls:
                del self._queues[task_queue]

    def _is_owned_elsewhere(self, task_queue: TaskQueueId) -> bool:
        try:
            return self._ring.route(Partition(task_queue, 0)) != self._host
        except NoHosts:
            # `forward` waits for a host.
            return False

    async def _hold(self, poll: HeldPoll) -> bytes | None:
        queue = poll.queue
        queue.held[poll] = None
        tick = self._wakes.add(poll, poll.deadline_s)
        try:
            return await poll.outcome
        except asyncio.CancelledError:
            queue.held.pop(poll, None)
            if poll.is_forwarded:
                # `balance` has counted the poll as forwarded, but the poll does not reach the owner.
                queue.forwarded -= 1
                queue.balance()
            raise
        finally:
            self._wakes.remove(poll, tick)


async def _forward(queue: _Queue, forward: Forward, deadline_s: float) -> PollResponse:
    """Wait at the owner; the caller has counted the poll as forwarded."""
    now_s = asyncio.get_running_loop().time
    try:
        answer = await forward(timeout_s=max(deadline_s - now_s(), FORWARDED_S_MIN))
        if answer.task is None and now_s() < deadline_s - TIMED_OUT_S:
            queue.end_all()
        return answer
    finally:
        queue.forwarded -= 1
        queue.balance()
