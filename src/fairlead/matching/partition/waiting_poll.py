"""A poll that waits in a physical queue."""

import asyncio
from dataclasses import dataclass, field

from fairlead.matching.partition.matched_task import MatchedTask
from fairlead.matching.partition.matcher import Poll


class Redirect:
    """Tells a waiting poll to look for a task at another partition; see `forwarding.idle_polls`.

    The receiver calls `release` when it has looked there.
    """

    __slots__ = ()

    def release(self) -> None:
        """Free the forwarding token that was taken for the poll."""


# Result of waiting: a task, another partition to look at, or None if the poll timed out.
PollOutcome = MatchedTask | Redirect | None


def _new_future() -> "asyncio.Future[PollOutcome]":
    return asyncio.get_running_loop().create_future()


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
    outcome: "asyncio.Future[PollOutcome]" = field(default_factory=_new_future)
