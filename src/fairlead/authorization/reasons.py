"""The reason that a viewer of the console gave for an action: every change that the action makes is in the audit.

It is kept beside the call, not in a header: callers from outside must not choose what is in the audit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# None outside of an action of the console.
_REASON: ContextVar[str | None] = ContextVar("fairlead_reason", default=None)


def current_reason() -> str | None:
    """The reason of the action for which the present call is made; None if it is made for none."""
    return _REASON.get()


@contextmanager
def acting(reason: str) -> Iterator[None]:
    """Calls that are made inside belong to an action, with this reason; it may be empty."""
    token = _REASON.set(reason)
    try:
        yield
    finally:
        _REASON.reset(token)
