"""A task that was matched with a poll."""

import asyncio
from dataclasses import dataclass

from fairlead.core.concurrency import Full
from fairlead.matching.messages import TaskOwner
from fairlead.matching.partition.matcher import HeldTask
from fairlead.matching.task_starter import NotStarted

# Result of an offer: the starter's response, the reason why the task was not started, or None if no poll came in time.
OfferResult = bytes | NotStarted | None

_FULL = {NotStarted.KEY_FULL: Full.KEY, NotStarted.QUEUE_FULL: Full.QUEUE}


def is_done(result: OfferResult) -> bool:
    """Whether a task was started or is obsolete.

    Otherwise the caller stores the task, and a later poll may start it.
    """
    return isinstance(result, bytes) or result is NotStarted.GONE


def full_of(result: OfferResult) -> Full | None:
    """The limit on running activities that refused the task, if one did."""
    return _FULL.get(result) if isinstance(result, NotStarted) else None


@dataclass(slots=True, eq=False)
class MatchedTask:
    """A task on its way to a poll. It comes from the backlog (`held`), or from a caller that waits for the result.

    `offered` is the future of such a caller.
    """

    payload: bytes
    priority: int
    fairness_key: str
    weight: float
    created_s: float
    held: HeldTask[bytes] | None
    offered: "asyncio.Future[OfferResult] | None" = None
    # Whether the rate limits of this partition count the task; its own partition has counted a forwarded task.
    is_charged: bool = True
    # Whether the task was stored, here or at the partition that offers it.
    is_backlog: bool = False
    # Query tasks are matched before the backlog, and no rate limit counts them.
    is_query: bool = False
    # Owner of an offered task, if its caller names it.
    owner: TaskOwner | None = None
    # Result of the start, if the task's owner reserved the poll before it wrote the task; None for all other tasks.
    starting: "asyncio.Future[bytes | NotStarted] | None" = None
