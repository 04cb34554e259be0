"""A poll that waits in a physical queue."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from fairlead.matching.partition.matched_task import MatchedTask
from fairlead.matching.partition.matcher import Poll


class Redirect:
    """Makes a waiting poll look for a task at another partition; see `forwarding.idle_polls`.

    The receiver calls `release` when it has looked there.
    """

    __slots__ = ()

    def release(self) -> None:
        """Free the forwarding token that was taken for the poll."""


# Result of waiting: a task, another partition to poll, or None if the poll timed out.
PollOutcome = MatchedTask | Redirect | None


class PollOwner(Protocol):
    """The dispatcher in which a poll waits."""

    def end_wait(self, poll: "WaitingPoll") -> None:
        """End the wait of a poll whose deadline has passed."""
        ...


@dataclass(slots=True, eq=False)
class WaitingPoll(Poll):
    """A poll, and the future of its outcome."""

    poll_id: str = ""
    # The worker's description of itself.
    worker: bytes = b""
    # When the poll began to wait here, by the event loop's clock.
    since_s: float = 0.0
    may_redirect: bool = False
    tick: int = 0
    # Created when it is needed: many polls get a task at once.
    _outcome: "asyncio.Future[PollOutcome] | None" = None
    # None until the poll waits.
    owner: PollOwner | None = None

    @property
    def outcome(self) -> "asyncio.Future[PollOutcome]":
        """The future of the poll's outcome."""
        if self._outcome is None:
            self._outcome = asyncio.get_running_loop().create_future()
        return self._outcome

    def wake(self) -> None:
        """End the wait: the deadline has passed."""
        if self.owner is not None:
            self.owner.end_wait(self)
