"""A task that was matched with a poll."""

import asyncio
from dataclasses import dataclass

from fairlead.core.concurrency import Full
from fairlead.matching.messages import TaskOwner
from fairlead.matching.partition.matcher import HeldTask
from fairlead.matching.task_starter import NotStarted

# Result of an offer: the response of the starter, why the task was not started, or None if no poll came in time.
OfferResult = bytes | NotStarted | None

_FULL = {NotStarted.KEY_FULL: Full.KEY, NotStarted.QUEUE_FULL: Full.QUEUE}


def is_done(result: OfferResult) -> bool:
    """Whether a task was started or is obsolete. Other tasks are stored, and may be started later by another poll."""
    return isinstance(result, bytes) or result is NotStarted.GONE


def full_of(result: OfferResult) -> Full | None:
    """The limit on running activities that has put a task off."""
    return _FULL.get(result) if isinstance(result, NotStarted) else None


@dataclass(slots=True, eq=False)
class MatchedTask:
    """A task on its way to a poll. It comes from the backlog (`held`), or is offered by a caller that waits.

    `offered` is that caller's future.
    """

    payload: bytes
    priority: int
    fairness_key: str
    weight: float
    created_s: float
    held: HeldTask[bytes] | None
    offered: "asyncio.Future[OfferResult] | None" = None
    # Whether the rate limits of this partition count the task; a forwarded task was counted by its own partition.
    is_charged: bool = True
    # Whether the task was stored, here or at the partition that offers it.
    is_backlog: bool = False
    # Query tasks are matched before the backlog, and no rate limit counts them.
    is_query: bool = False
    # Owner of a task that is not stored, if its caller names it.
    owner: TaskOwner | None = None
    # The start of a task whose owner reserved the poll before it wrote the task; None for all others.
    starting: "asyncio.Future[bytes | NotStarted] | None" = None
