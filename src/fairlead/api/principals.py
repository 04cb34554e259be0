"""The authenticated caller of the present call, for the events that the call writes.

The principal applies to one asyncio task. Tasks and timers that the call starts have no principal, because the server
writes their events, not the caller.
"""

import asyncio
from contextvars import ContextVar
from typing import Final

# The caller's method of authentication, and its name.
PrincipalPair = tuple[str, str]

_CURRENT: ContextVar[tuple[object, PrincipalPair] | None] = ContextVar("principal", default=None)
NOBODY: Final[PrincipalPair] = ("", "")


def use_principal(principal: PrincipalPair) -> None:
    """Set the caller of the present task; `NOBODY` if it is not known."""
    if principal[1]:
        _CURRENT.set((asyncio.current_task(), principal))
    elif _CURRENT.get() is not None:
        _CURRENT.set(None)


def current_principal() -> PrincipalPair:
    """The caller of the present task; `NOBODY` if it is not known."""
    current = _CURRENT.get()
    if current is None or current[0] is not asyncio.current_task():
        return NOBODY
    return current[1]
