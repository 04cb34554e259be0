"""Decides whether a caller may call a method."""

from collections.abc import Awaitable
from typing import Any, Protocol

from msgspec import Struct

from fairlead.authorization.claims import Claims
from fairlead.authorization.methods import MethodAccess, Scope
from fairlead.authorization.roles import Role


class AuthorizationTarget(Struct, frozen=True):
    """A method that a caller wants to call, in a namespace or in the whole cluster. `request` is the message."""

    method: MethodAccess
    namespace: str
    request: Any = None


class Decision(Struct, frozen=True):
    """Whether a call is allowed; `reason` is for the audit, and not sent to callers by default."""

    is_allowed: bool
    reason: str = ""


ALLOWED = Decision(is_allowed=True)


class Authorizer(Protocol):
    """Decides; `authorize` may be an ordinary function or a coroutine. An exception denies the call."""

    def authorize(self, claims: Claims | None, target: AuthorizationTarget) -> Decision | Awaitable[Decision]:
        """The decision on a call; `claims` is None for a caller without credentials."""
        ...


class DefaultAuthorizer:
    """Temporal's rules, and one more: the role `worker` may call the methods of workers.

    Open methods are allowed for all. A method of the cluster requires a role in the system; a method of a namespace
    requires a role in the system or in that namespace. The role's number must be at least the number of the method's
    access.
    """

    def authorize(self, claims: Claims | None, target: AuthorizationTarget) -> Decision:
        """The decision on a call."""
        method = target.method
        if method.is_open:
            return ALLOWED
        if claims is None:
            return Decision(is_allowed=False, reason="no credentials")
        role = claims.system if method.scope is Scope.CLUSTER else claims.role_in(target.namespace)
        if role >= method.access or (method.is_worker and role & Role.WORKER):
            return ALLOWED
        return Decision(is_allowed=False, reason="the role does not suffice")
