"""Claims: the proven name and roles of a caller, and the name of the remote cluster if one calls."""

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, Protocol

from fairlead.authorization.roles import SYSTEM_NAMESPACE, Role, role_of
from fairlead.core.errors import FixRequest
from fairlead.rpc.certificate import PeerCertificate

# Maximum number of namespaces in the claims of one caller.
PERMISSIONS_MAX = 10_000
# Characters of a caller's name: it goes into each event that the caller causes.
SUBJECT_CHARACTERS_MAX = 256


class Denied(FixRequest):
    """A credential is not valid, or its holder may not do this. The message is the reason; callers don't get it."""


class Principal(NamedTuple):
    """The authenticated caller: its means of authentication, and its name."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class AuthInfo:
    """The credentials of a call: the values of two headers, and the verified client certificate."""

    token: str = ""
    extras: str = ""
    certificate: PeerCertificate | None = None
    audience: str = ""


@dataclass(frozen=True, slots=True)
class Claims:
    """A caller's name and roles.

    `cluster` is the name of the remote cluster that calls; empty for all others. `expires_s` is the time in seconds
    since 1970 from which the claims are no longer valid. `extensions` belongs to claim mappers and authorizers.
    """

    subject: str
    system: Role = Role.UNDEFINED
    namespaces: Mapping[str, Role] = field(default_factory=dict)
    kind: str = "custom"
    cluster: str = ""
    expires_s: float = inf
    extensions: Any = None

    @property
    def principal(self) -> Principal:
        """The caller, for events and the audit."""
        return Principal(self.kind, self.subject)

    def role_in(self, namespace: str) -> Role:
        """The roles in a namespace, including those for the whole system."""
        return self.system | self.namespaces.get(namespace, Role.UNDEFINED)


class ClaimMapper(Protocol):
    """Turns credentials into claims.

    `claims` returns None if the call has no credentials, and raises `Denied` if they are not valid. It may be an
    ordinary function or a coroutine.
    """

    def claims(self, info: AuthInfo) -> "Claims | Awaitable[Claims | None] | None":
        """The claims of a caller."""
        ...


def with_permissions(subject: str, permissions: Iterable[tuple[str, str]], *, kind: str, **more: Any) -> Claims:
    """Claims from pairs of namespace and role; unknown roles grant nothing."""
    system = Role.UNDEFINED
    namespaces: dict[str, Role] = {}
    for namespace, word in permissions:
        role = role_of(word)
        if namespace == SYSTEM_NAMESPACE:
            system |= role
        elif namespace and role:
            namespaces[namespace] = namespaces.get(namespace, Role.UNDEFINED) | role
    return Claims(subject, system, namespaces, kind=kind, **more)
