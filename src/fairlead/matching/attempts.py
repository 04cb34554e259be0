"""Whether, and when, a request to the matching service that has failed is made once more."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from fairlead.cluster.backoff import Backoff
from fairlead.cluster.calls import Exhausted
from fairlead.cluster.ring import RingView
from fairlead.core.errors import FairleadError, FixRequest, RetryElsewhere, RetryLater
from fairlead.matching.backlog import AppendQueueFull
from fairlead.matching.messages import StaleConfig, StickyWorkerGone
from fairlead.storage.contract import OutcomeUnknown, StoreUnavailable


class PastDeadline(FixRequest):
    """A request has no time left before it has begun."""


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """How often a request is made before its time is over, and how long one host may take of it."""

    # More than fit into the time that a ring needs to notice a dead host, so that it is the deadline which decides.
    attempts_max: int = 30
    # New tries that a new configuration gets without a wait.
    stale_at_once_max: int = 3
    # One host that is dead, and nobody knows it, takes no more than this of the time; nor more than half of it.
    attempt_s_max: float = 3.0


class Attempts:
    """Decides about the next try of one request, and waits for its moment.

    - A stale configuration was refused before anything was done: again at once, by the new one.
    - Wrong place, or nobody there (`RetryElsewhere`): nothing was done. Look at the ring, wait a little, again.
    - Not now (`RetryLater`): likewise. Where the outcome is unknown (`CallLost`, `OutcomeUnknown`) the request may be
      carried out twice; matching delivers at least once, and whoever starts a task starts it once.
    - A sticky task list whose worker has gone (`StickyWorkerGone`) is told at once: another task list is the place.
    - A bound that is reached (`AppendQueueFull`, `Exhausted`) is told at once: to go on asking is what it is to
      prevent. Whoever asks decides whether to wait.
    - Everything else stays as it is however often it is tried.
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
        """Whether to try again after `failure`; comes back when it is time to.

        If not, `failure` is the reason, with a note of the one before: at the end of its time a request fails for want
        of time, which explains nothing.
        """
        if self._before is not None and str(self._before) != str(failure):
            failure.add_note(f"the attempt before failed as well: {type(self._before).__name__}: {self._before}")
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
        # Where the store has failed, the owner itself has said so: its place is right.
        if not isinstance(failure, StaleConfig | StoreUnavailable | OutcomeUnknown):
            with suppress(TimeoutError):
                async with asyncio.timeout(self.left_s()):
                    await self._ring.refresh()
        await asyncio.sleep(begun_s + wait_s - asyncio.get_running_loop().time())
        return self.left_s() > 0

    def left_s(self) -> float:
        """How much of the request's time is left."""
        return self._deadline_s - asyncio.get_running_loop().time()


def _may_pass(failure: FairleadError) -> bool:
    return isinstance(failure, RetryElsewhere | RetryLater) and not isinstance(
        failure, AppendQueueFull | Exhausted | StickyWorkerGone
    )


def deadline(timeout_s: float) -> float:
    """When `timeout_s` is over, by the event loop's clock; `PastDeadline` if it is."""
    if not timeout_s > 0:
        raise PastDeadline(f"timeout is {timeout_s} s: the deadline is over; give it time above 0")
    return asyncio.get_running_loop().time() + timeout_s
