"""Open long calls of authenticated callers: they end when the caller's credential ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from fairlead.authorization.methods import access_of
from fairlead.core.errors import FairleadError
from fairlead.rpc.hosts.credentials import SECRET_HEADER

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from fairlead.api.errors import ApiError
    from fairlead.authorization.claims import Claims
    from fairlead.authorization.gate import Gate
    from fairlead.rpc import Call

T = TypeVar("T")

# Seconds between two checks of the credentials of open calls: as often as hosts read the keys.
CHECK_S: Final = 2.0
# Different credentials that are checked before other tasks get their turn.
CHECKS_A_TURN_MAX: Final = 100


@dataclass(slots=True, eq=False)
class _OpenCall:
    """An open call; `refusal` is its outcome once its credential has ended."""

    call: Call
    claims: Claims
    namespace: str
    refusal: ApiError | None = None


class LongCalls:
    """The open long calls of one host, bounded by the number of open calls.

    A poll may wait for a minute: it must not get a task after its key was revoked or its token has expired.
    """

    def __init__(self, gate: Gate, *, check_s: float = CHECK_S) -> None:
        self._gate = gate
        self._check_s = check_s
        self._open: dict[asyncio.Task[object], _OpenCall] = {}
        self._check: asyncio.Task[None] | None = None
        self._is_due = False

    async def wait(self, call: Call, claims: Claims, namespace: str, answer: Awaitable[T]) -> T:
        """Await the answer to an admitted call; raises PERMISSION_DENIED if the caller's credential ends first."""
        task = asyncio.current_task()
        if task is None:
            return await answer
        opened = self._open[task] = _OpenCall(call, claims, namespace)
        self._check_later()
        try:
            return await answer
        except asyncio.CancelledError:
            # If the caller has gone too, there is a second cancellation, which must propagate.
            if opened.refusal is not None and not task.uncancel():
                raise opened.refusal from None
            raise
        finally:
            del self._open[task]

    def _check_later(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(self._check_s, self._begin)

    def _begin(self) -> None:
        self._is_due = False
        if self._open:
            self._check = asyncio.get_running_loop().create_task(self._check_all())

    async def _check_all(self) -> None:
        """Check each credential once, however many calls have it."""
        verdicts: dict[object, str] = {}
        for task, opened in tuple(self._open.items()):
            key = self._key(opened.call)
            if key not in verdicts:
                if len(verdicts) % CHECKS_A_TURN_MAX == CHECKS_A_TURN_MAX - 1:
                    await asyncio.sleep(0)
                verdicts[key] = await self._why_not(opened.call)
            # The call may have ended meanwhile, and its task may have begun another one.
            if verdicts[key] and self._open.get(task) is opened and opened.refusal is None:
                opened.refusal = self._refused(opened, verdicts[key])
                task.cancel()
        if self._open:
            self._check_later()

    def _refused(self, opened: _OpenCall, reason: str) -> ApiError:
        service, _, name = opened.call.path.lstrip("/").partition("/")
        return self._gate.refuse(opened.call, opened.claims, access_of(service, name), opened.namespace, reason)

    async def _why_not(self, call: Call) -> str:
        """Why the caller's credential does not count any more; empty if it does."""
        try:
            claims = await self._gate.viewer(call)
        except FairleadError as failure:
            return f"the credential has ended while the call was open: {failure}"
        return "" if claims is not None else "the credential has ended while the call was open"

    def _key(self, call: Call) -> object:
        """The credentials of a call: calls of one connection, or of one key, share a check."""
        names = (self._gate.header, self._gate.extras_header)
        return (*(call.metadata.get(name) for name in names), call.certificate, call.metadata.get(SECRET_HEADER))
