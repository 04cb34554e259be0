"""Workflow tasks that are started in the step that schedules them, because a poll is waiting.

This takes one commit; otherwise a transfer task adds the task to matching, and a second commit starts it. The poll is
answered when the commit is durable. If the commit fails, the poll continues to wait.
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
        """`respond` makes the response to the poll when the step is durable."""
        self._poll = poll
        self._respond = respond
        self.is_committed = False

    def committed(self) -> None:
        """Record that the step is durable."""
        self.is_committed = True

    def release(self) -> None:
        """Let the poll wait again, because the step was not written."""
        self._poll.release()

    async def give(self) -> None:
        """Answer the poll. If there is an error, the task times out, and another attempt follows."""
        try:
            response = await self._respond()
        except FairleadError as failure:
            _log.warning("started workflow task can't be given to its worker", error=str(failure))
            self._poll.release()
        else:
            self._poll.give(response)


class DirectStarter(Protocol):
    """Starts the task that a step has scheduled, if a poll is waiting for it at this host."""

    def __call__(self, namespace: Namespace, run: LoadedRun, transaction: Transaction) -> DirectStart | None:
        """Start the task within the step; return None if the step has scheduled no task, or no poll is waiting."""
        ...
