"""By which token, and so for which task of which run, a worker answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fairlead.history.refusals import Refused, invalid
from fairlead.history.tokens import AnyToken, decode_token

if TYPE_CHECKING:
    from fairlead.frontend.context import Frontend
    from fairlead.history.namespaces import Namespace


class WithToken(Protocol):
    """An answer to a task."""

    namespace: str
    task_token: bytes


async def read_token(frontend: Frontend, request: WithToken) -> tuple[AnyToken, Namespace]:
    """The token, and the namespace that it is of; a worker may leave out the namespace, but not name another."""
    name = request.namespace
    named = await frontend.namespaces.find(name) if name else None
    token = _decoded(request.task_token)
    if named is None:
        return token, await frontend.namespaces.find_id(token.namespace_id)
    if token.namespace_id != named.id:
        raise invalid("Operation requested with a token from a different namespace.")
    return token, named


def _decoded(data: bytes) -> AnyToken:
    try:
        return decode_token(data)
    except Refused:
        if data:
            raise invalid("Error deserializing task token.") from None
        raise
