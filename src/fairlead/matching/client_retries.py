"""Retries of failed requests to the matching service."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from fairlead.aio.backoff import Backoff
from fairlead.core.errors import FairleadError, FixRequest, RetryElsewhere, RetryLater
from fairlead.matching.messages import StaleConfig, StickyWorkerGone
from fairlead.matching.partition.task_writer import AppendQueueFull
from fairlead.membership.ring import RingView
from fairlead.rpc.hosts.caller import Overloaded
from fairlead.storage.tasks import OutcomeUnknown, StoreUnavailable


class PastDeadline(FixRequest):
    """A request has a timeout of 0 or less."""


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Limits of the attempts of one request."""

    # Number of attempts: enough that a request reaches its deadline first while the ring has not yet noticed a dead
    # host.
    attempts_max: int = 30
    # Number of retries after `StaleConfig` that are made without a wait.
    stale_at_once_max: int = 3
    # Seconds for one attempt, and at most half of the request's time: the host may be dead.
    attempt_s_max: float = 3.0


class Attempts:
    """Decides whether to repeat one request, and waits before the next attempt.

    - `StaleConfig`: the partition did nothing. Retry at once with the new configuration.
    - Other `RetryElsewhere` errors (wrong host, or no host): nothing was done. Refresh the ring, back off, retry.
    - `RetryLater`: also refresh the ring, back off, retry. If the outcome is unknown (`CallLost`, `OutcomeUnknown`),
      the request may be carried out twice: matching delivers at least once, and the starter starts a task once.
    - `StickyWorkerGone`: raised at once, because the task belongs on the normal task queue.
    - `AppendQueueFull`, `Overloaded`: raised at once, because retries are what these limits prevent. The caller decides
      whether to wait.
    - All other errors are raised at once: a retry would not change them.
    """

    def __init__(
        self, ring: RingView, *, deadline_s: float, random: Callable[[], float], limits: AttemptLimits
    ) -> None:
        self._ring = ring
        self._deadline_s = deadline_s
        self._limits = limits
        self._backoff = Backoff(random=random)
        self._failed = 0
        self._stale = 0
        self._before: FairleadError | None = None

    async def again(self, failure: FairleadError) -> bool:
        """Wait until the next attempt is due and return True; return False if `failure` is final.

        A final `failure` gets a note with the previous error: the error at the deadline is often a mere timeout.
        """
        if self._before is not None and str(self._before) != str(failure):
            failure.add_note(f"the previous attempt failed as well: {type(self._before).__name__}: {self._before}")
        self._before = failure
        self._failed += 1
        if self._failed >= self._limits.attempts_max or not _may_pass(failure):
            return False
        if isinstance(failure, StaleConfig):
            self._stale += 1
            if self._stale <= self._limits.stale_at_once_max:
                return self.left_s() > 0
        wait_s = self._backoff.next_s()
        if wait_s >= self.left_s():
            return False
        begun_s = asyncio.get_running_loop().time()
        # An error of the store comes from the owner itself, so the ring is right.
        if not isinstance(failure, StaleConfig | StoreUnavailable | OutcomeUnknown):
            with suppress(TimeoutError):
                async with asyncio.timeout(self.left_s()):
                    await self._ring.refresh()
        await asyncio.sleep(begun_s + wait_s - asyncio.get_running_loop().time())
        return self.left_s() > 0

    def left_s(self) -> float:
        """Return the seconds until the request's deadline."""
        return self._deadline_s - asyncio.get_running_loop().time()


def _may_pass(failure: FairleadError) -> bool:
    return isinstance(failure, RetryElsewhere | RetryLater) and not isinstance(
        failure, AppendQueueFull | Overloaded | StickyWorkerGone
    )


def deadline(timeout_s: float) -> float:
    """Return the time at which `timeout_s` ends, by the event loop's clock; raise `PastDeadline` if it is 0 or less."""
    if not timeout_s > 0:
        raise PastDeadline(f"timeout is {timeout_s} s: give more than 0")
    return asyncio.get_running_loop().time() + timeout_s
