"""Admission of other clusters: each cluster gets only its own stream, and only the namespaces that include it."""

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fairlead.api.errors import PermissionDenied
from fairlead.api.namespace_sharing import is_shared, is_shared_id
from fairlead.api.namespaces import Namespaces
from fairlead.authorization.methods import Access, MethodAccess, Scope
from fairlead.replication.messages import (
    DeadLetterCountRequest,
    FailOverRequest,
    NamespacesRequest,
    Nudge,
    PullRequest,
    RemoteReadBranch,
    RepairRequest,
)
from fairlead.replication.wire import SERVICE
from fairlead.rpc.call import Call

if TYPE_CHECKING:
    # Not imported at run time, since only servers with authorization load it.
    from fairlead.authorization.claims import Claims
    from fairlead.authorization.gate import Gate

DENIED = "Request unauthorized."


class ClusterAdmission:
    """Lets calls of other clusters in, or raises PERMISSION_DENIED.

    A cluster that has proved its name may pull its own stream, and read, fail over and repair the namespaces that it
    shares. Without authorization, callers are not identified; even then, only global namespaces can be read.
    """

    def __init__(self, namespaces: Namespaces, gate: "Gate | None" = None) -> None:
        self._namespaces = namespaces
        self._gate = gate

    async def identify(self, call: Call, name: str) -> "Claims | None":
        """Identify the caller, or refuse it, before the request is decoded, so that strangers cost little."""
        return None if self._gate is None else await self._gate.identify(call, _access(name))

    async def check(self, call: Call, claims: "Claims | None", name: str, request: Any) -> Any:
        """Raise unless the caller may call the method `name` with this request; return the request to answer."""
        gate = self._gate
        if gate is None:
            if isinstance(request, RemoteReadBranch) and not await self._is_shared(request, ""):
                raise PermissionDenied(DENIED)
            return request
        access = _access(name)
        if claims is None or not claims.cluster:
            # Operators with the role admin may do what a cluster may.
            await gate.check(call, claims, access, "", request)
        elif not await self._may(claims, request):
            reason = f"cluster {claims.cluster} may only pull its own stream, and use namespaces that include it"
            raise gate.refuse(call, claims, access, "", reason)
        elif isinstance(request, NamespacesRequest):
            # An older release does not say which cluster asks.
            return replace(request, cluster=claims.cluster)
        return request

    async def _may(self, claims: "Claims", request: Any) -> bool:
        match request:
            case PullRequest(cluster=cluster) | Nudge(cluster=cluster):
                return cluster == claims.cluster
            case NamespacesRequest(cluster=cluster):
                return cluster in ("", claims.cluster)
            case DeadLetterCountRequest(source=source):
                return source == claims.cluster and await self._is_shared(request, claims.cluster)
            case RepairRequest(namespace_id=""):
                return True
            case RemoteReadBranch() | FailOverRequest() | RepairRequest():
                return await self._is_shared(request, claims.cluster)
            case _:
                # Info: clusters ask for it before they share any namespace.
                return True

    async def _is_shared(
        self, request: RemoteReadBranch | FailOverRequest | DeadLetterCountRequest | RepairRequest, cluster: str
    ) -> bool:
        """Whether the namespace is global and includes `cluster`; if `cluster` is empty, it only has to be global."""
        if isinstance(request, FailOverRequest):
            return await is_shared(self._namespaces, request.namespace, cluster)
        return await is_shared_id(self._namespaces, request.namespace_id, cluster)


def _access(name: str) -> MethodAccess:
    return MethodAccess(f"/{SERVICE}/{name}", name, Scope.CLUSTER, Access.ADMIN, is_audited=True)
