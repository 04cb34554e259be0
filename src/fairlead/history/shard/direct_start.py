"""Workflow tasks that are started in the step that schedules them, because a poll waits for them.

One commit then has the whole step: without it, a second commit starts the task after a transfer task has added it to
matching. The poll is answered when the commit is durable. If the commit fails, the poll goes on waiting.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from fairlead.api.namespaces import Namespace
from fairlead.core.errors import FairleadError
from fairlead.history.events import Transaction
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.matching.reserved_poll import ReservedPoll
from fairlead.telemetry import get_log

_log = get_log("history.shard")


class DirectStart:
    """A workflow task that a step has started for a reserved poll."""

    __slots__ = ("_poll", "_respond", "is_committed")

    def __init__(self, poll: ReservedPoll, respond: Callable[[], Awaitable[bytes]]) -> None:
        """`respond` makes the response of the poll once the step is durable."""
        self._poll = poll
        self._respond = respond
        self.is_committed = False

    def committed(self) -> None:
        """The step is durable."""
        self.is_committed = True

    def release(self) -> None:
        """The step was not written: let the poll go on waiting."""
        self._poll.release()

    async def give(self) -> None:
        """Answer the poll. If the response can't be made, the task's timeout makes another attempt."""
        try:
            response = await self._respond()
        except FairleadError as failure:
            _log.warning("started workflow task can't be given to its worker", error=str(failure))
            self._poll.release()
        else:
            self._poll.give(response)


class DirectStarter(Protocol):
    """Starts the task that a step has scheduled, if a poll waits for it at this host."""

    def __call__(self, namespace: Namespace, run: LoadedRun, transaction: Transaction) -> DirectStart | None:
        """Start the task within the step; None if the step has scheduled none, or no poll waits."""
        ...
