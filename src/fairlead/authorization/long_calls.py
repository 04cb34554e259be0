"""Open long calls of authenticated callers: they end when the caller's credential ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from fairlead.api.errors import Unavailable
from fairlead.authorization.claims import Denied
from fairlead.core.errors import FairleadError
from fairlead.rpc.hosts.credentials import SECRET_HEADER

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from fairlead.authorization.claims import Claims
    from fairlead.authorization.gate import Gate, WithCredentials
    from fairlead.authorization.methods import MethodAccess

T = TypeVar("T")

# Seconds between two checks of the credentials of open calls: as often as hosts read the keys.
CHECK_S: Final = 2.0
# Number of credentials that are checked, or calls that are ended, before other tasks get their turn.
TURN_MAX: Final = 100


@dataclass(slots=True, eq=False)
class _OpenCall:
    """An open call and the task that waits for its answer; `has_ended` is set when its credential has ended."""

    call: WithCredentials
    claims: Claims
    access: MethodAccess
    namespace: str
    task: asyncio.Task[object]
    has_ended: bool = False


class LongCalls:
    """The open long calls of one host, bounded by the number of open calls.

    A poll may wait for a minute: it must not get a task after its key was revoked or its token has expired. It ends
    with UNAVAILABLE, since its client may have a new token already: the next call of a client without one is refused.
    """

    def __init__(self, gate: Gate, *, check_s: float = CHECK_S) -> None:
        self._gate = gate
        self._check_s = check_s
        # Open calls by credential: calls of one connection, or of one key, share a check.
        self._open: dict[object, set[_OpenCall]] = {}
        self._check: asyncio.Task[None] | None = None
        # A check is scheduled or running.
        self._is_due = False

    async def wait(
        self, call: WithCredentials, claims: Claims, access: MethodAccess, namespace: str, answer: Awaitable[T]
    ) -> T:
        """Await the answer to an admitted call; raises `Unavailable` if the caller's credential ends first."""
        task = asyncio.current_task()
        if task is None:
            return await answer
        opened = _OpenCall(call, claims, access, namespace, task)
        key = self._key(call)
        self._open.setdefault(key, set()).add(opened)
        self._check_later()
        try:
            return await answer
        except asyncio.CancelledError:
            # If the caller has disconnected too, there is a second cancellation, which must propagate.
            if opened.has_ended and not task.uncancel():
                raise Unavailable("The credential of this call has ended: call again with a valid one.") from None
            raise
        finally:
            left = self._open[key]
            left.discard(opened)
            if not left:
                del self._open[key]

    def _check_later(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(self._check_s, self._begin)

    def _begin(self) -> None:
        self._check = asyncio.get_running_loop().create_task(self._check_all())

    async def _check_all(self) -> None:
        """Check each credential once, even if several calls have it."""
        try:
            for number, (key, calls) in enumerate(tuple(self._open.items()), start=1):
                first = next(iter(calls), None)
                reason = "" if first is None else await self._why_not(first.call)
                if reason:
                    await self._end(key, reason)
                if number % TURN_MAX == 0:
                    await asyncio.sleep(0)
        finally:
            self._is_due = False
            if self._open:
                self._check_later()

    async def _end(self, key: object, reason: str) -> None:
        """End the open calls with this credential, and audit each."""
        for number, opened in enumerate(tuple(self._open.get(key, ())), start=1):
            # The call may have been answered meanwhile.
            if not opened.has_ended and opened in self._open.get(key, ()):
                opened.has_ended = True
                self._gate.refuse(opened.call, opened.claims, opened.access, opened.namespace, reason)
                opened.task.cancel()
            if number % TURN_MAX == 0:
                await asyncio.sleep(0)

    async def _why_not(self, call: WithCredentials) -> str:
        """Why the caller's credential does not count any more; empty if it does, or if that can't be known now."""
        try:
            claims = await self._gate.viewer(call)
        except Denied as ended:
            return f"the credential has ended while the call was open: {ended}"
        except FairleadError:
            # The keys can't be read: a new caller has to wait, too, but has not lost its rights.
            return ""
        return "" if claims is not None else "the credential has ended while the call was open"

    def _key(self, call: WithCredentials) -> object:
        """The credentials of a call."""
        names = (self._gate.header, self._gate.extras_header)
        return (*(call.metadata.get(name) for name in names), call.certificate, call.metadata.get(SECRET_HEADER))
