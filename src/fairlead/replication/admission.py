"""Admission of other clusters: each cluster gets only its own stream, and only the namespaces that include it."""

from typing import TYPE_CHECKING, Any

from fairlead.api.errors import ApiError, PermissionDenied
from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.authorization.methods import Access, MethodAccess, Scope
from fairlead.replication.messages import (
    DeadLetterCountRequest,
    FailOverRequest,
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

    async def admit(self, call: Call, name: str, request: Any) -> None:
        """Raise unless the caller may call the method `name` with this request."""
        gate = self._gate
        if gate is None:
            if isinstance(request, RemoteReadBranch) and not await self._is_shared(request, ""):
                raise PermissionDenied(DENIED)
            return
        access = MethodAccess(f"/{SERVICE}/{name}", name, Scope.CLUSTER, Access.ADMIN, is_audited=True)
        claims = await gate.identify(call, access)
        if claims is None or not claims.cluster:
            # Operators with the role admin may do what a cluster may.
            await gate.check(call, claims, access, "", request)
        elif not await self._may(claims, request):
            reason = f"cluster {claims.cluster} may only pull its own stream, and use namespaces that include it"
            raise gate.refuse(call, claims, access, "", reason)

    async def _may(self, claims: "Claims", request: Any) -> bool:
        match request:
            case PullRequest(cluster=cluster) | Nudge(cluster=cluster):
                return cluster == claims.cluster
            case DeadLetterCountRequest(source=source):
                return source == claims.cluster and await self._is_shared(request, claims.cluster)
            case RepairRequest(namespace_id=""):
                return True
            case RemoteReadBranch() | FailOverRequest() | RepairRequest():
                return await self._is_shared(request, claims.cluster)
            case _:
                # Info and Namespaces: every cluster may know of them before it shares any namespace.
                return True

    async def _is_shared(
        self, request: RemoteReadBranch | FailOverRequest | DeadLetterCountRequest | RepairRequest, cluster: str
    ) -> bool:
        """Whether the namespace is global and includes `cluster`; if `cluster` is empty, it only has to be global."""
        try:
            if isinstance(request, FailOverRequest):
                found: Namespace = await self._namespaces.find(request.namespace)
            else:
                found = await self._namespaces.find_id(request.namespace_id)
        except ApiError:
            return False
        return found.is_global and (not cluster or cluster in found.clusters)
