"""Notifications between hosts about changes of the ring, so that hosts need not wait for their next heartbeat."""

import asyncio
from collections.abc import Iterable

from msgspec import Struct

from fairlead.core.errors import FairleadError
from fairlead.membership.members import Membership
from fairlead.rpc.hosts.caller import Caller, Handlers, Method


class NudgeRequest(Struct, frozen=True, array_like=True):
    """Notifies that `host` has joined or is about to leave."""

    host: str


class NudgeResponse(Struct, frozen=True, array_like=True):
    """Confirms the notification: the host will refresh its ring."""


NUDGE = Method("cluster.Nudge", NudgeRequest, NudgeResponse)


class Nudges:
    """Refreshes this host's ring when it is notified; notifications during a refresh share one further refresh."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._looking: asyncio.Task[None] | None = None
        self._is_nudged = False
        self._is_closed = False

    def add_to(self, handlers: Handlers) -> None:
        """Register the handler of notifications."""
        handlers.add(NUDGE, self._handle)

    async def close(self) -> None:
        """Stop refreshing."""
        self._is_closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _handle(self, _: NudgeRequest) -> NudgeResponse:
        self._is_nudged = True
        if not self._is_closed and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._refresh())
        return NudgeResponse()

    async def _refresh(self) -> None:
        # A notification during a refresh may concern a row that was read already: refresh again.
        while self._is_nudged:
            self._is_nudged = False
            await self._membership.refresh()


async def nudge_all(caller: Caller, hosts: Iterable[str], *, sender: str, timeout_s: float) -> None:
    """Notify the hosts, all at once; an unreachable host learns of the change with its next heartbeat."""

    async def nudge(host: str) -> None:
        try:
            await caller.call(host, NUDGE, NudgeRequest(sender), timeout_s=timeout_s)
        except FairleadError:
            return

    await asyncio.gather(*(nudge(host) for host in hosts if host != sender))
