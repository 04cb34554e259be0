"""A word to the other hosts that the ring has changed, so that they need not wait for their next heartbeat."""

import asyncio
from collections.abc import Iterable

from msgspec import Struct

from fairlead.cluster.calls import Caller, Handlers, Method
from fairlead.cluster.membership import Membership
from fairlead.core.errors import FairleadError


class NudgeRequest(Struct, frozen=True, array_like=True):
    """`host` has joined, or is about to leave: look."""

    host: str


class NudgeAnswer(Struct, frozen=True, array_like=True):
    """The host will look."""


NUDGE = Method("cluster.Nudge", NudgeRequest, NudgeAnswer)


class Nudges:
    """Has this host look who is alive soon after it was nudged: once for all who nudged it meanwhile."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._looking: asyncio.Task[None] | None = None
        self._is_nudged = False
        self._is_closed = False

    def add_to(self, handlers: Handlers) -> None:
        """Answer nudges among the rest of what the host answers."""
        handlers.add(NUDGE, self._handle)

    async def close(self) -> None:
        """Look no more."""
        self._is_closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _handle(self, _: NudgeRequest) -> NudgeAnswer:
        self._is_nudged = True
        if not self._is_closed and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look())
        return NudgeAnswer()

    async def _look(self) -> None:
        # One who nudges while the store is being read may have changed what was read already.
        while self._is_nudged:
            self._is_nudged = False
            await self._membership.look()


async def nudge_all(caller: Caller, hosts: Iterable[str], *, sender: str, timeout_s: float) -> None:
    """Nudge the hosts, all at once; one that can't be told finds out by itself."""

    async def nudge(host: str) -> None:
        try:
            await caller.call(host, NUDGE, NudgeRequest(sender), timeout_s=timeout_s)
        except FairleadError:
            return

    await asyncio.gather(*(nudge(host) for host in hosts if host != sender))
