"""Messages of the lookup of namespaces by name or id."""

from msgspec import Struct

from fairlead.core.errors import FixRequest
from fairlead.rpc.hosts.caller import Method

# Maximum number of names and ids in a request.
GIVEN_MAX = 1_000


class TooManyNamespaces(FixRequest):
    """A request has more than `GIVEN_MAX` names and ids."""


class FindNamespacesRequest(Struct, frozen=True, array_like=True):
    """Find the namespaces whose name or id is one of these."""

    given: list[str]


class FoundNamespace(Struct, frozen=True, array_like=True):
    """A registered namespace."""

    id: str
    name: str


class FindNamespacesResponse(Struct, frozen=True, array_like=True):
    """The namespaces of the request that are registered, and whether any namespace is registered at all."""

    found: list[FoundNamespace]
    is_any_registered: bool


FIND_NAMESPACES = Method("namespaces.find", FindNamespacesRequest, FindNamespacesResponse)
