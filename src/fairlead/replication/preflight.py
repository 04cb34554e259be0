"""The preflight of a failover: connection, lag and dead letters of each target; and the list of past failovers."""

import asyncio
from collections.abc import Callable

import msgspec

from fairlead.api.clusters import Clusters
from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.core.errors import FairleadError
from fairlead.core.versions import UnknownCluster, UnownedVersion
from fairlead.history.messages.stream import HandOver
from fairlead.replication.dead_letters import DeadLetters
from fairlead.replication.failover import Failover
from fairlead.replication.messages import DeadLetterCountRequest
from fairlead.replication.remote import Remote
from fairlead.rpc.hosts.caller import Handlers, Method

# Seconds after which a target that does not respond counts as unreachable.
ANSWERS_S_MAX = 3.0
# Number of past failovers of one response.
FAILOVERS_MAX = 100


class PreflightRequest(msgspec.Struct, array_like=True, frozen=True):
    """Request the state of each cluster to which a namespace could be failed over."""

    namespace: str


class Target(msgspec.Struct, array_like=True, frozen=True):
    """A possible target. `error`: it can't be reached from here, with the reason; then the other values are unknown.

    `behind` is the number of shards of the active cluster of which the target lacks writes of the namespace, out of
    `shards`; only the active cluster knows it, elsewhere `shards` is 0. `dead_letters` are those of the namespace.
    """

    cluster: str
    error: str = ""
    shards: int = 0
    behind: int = 0
    dead_letters: int = 0


class Preflight(msgspec.Struct, array_like=True, frozen=True):
    """The targets of a failover; `here` is the cluster that responds."""

    here: str
    active_cluster: str
    failover_version: int
    is_handing_over: bool
    targets: tuple[Target, ...]


class FailoversRequest(msgspec.Struct, array_like=True, frozen=True):
    """Request past failovers: of one namespace, or of all if it is empty."""

    namespace: str = ""


class PastFailover(msgspec.Struct, array_like=True, frozen=True):
    """A failover. `came_from` is empty and `is_graceful` None for those that an older release carried out."""

    namespace: str
    at_ns: int
    failover_version: int
    to: str
    came_from: str = ""
    is_graceful: bool | None = None


class FailoversResponse(msgspec.Struct, array_like=True, frozen=True):
    """The latest failovers, the newest first, at most `FAILOVERS_MAX`."""

    failovers: tuple[PastFailover, ...]


PREFLIGHT = Method("replication.Preflight", PreflightRequest, Preflight)
FAILOVERS = Method("replication.Failovers", FailoversRequest, FailoversResponse)


class Preflights:
    """Checks targets without changing anything."""

    def __init__(
        self,
        *,
        clusters: Clusters,
        remotes: Callable[[str], Remote],
        namespaces: Namespaces,
        failover: Failover,
        dead_letters: DeadLetters,
    ) -> None:
        self._clusters = clusters
        self._remotes = remotes
        self._namespaces = namespaces
        self._failover = failover
        self._dead_letters = dead_letters

    def handlers(self) -> Handlers:
        """The operations that this host offers to operators."""
        handlers = Handlers()
        handlers.add(PREFLIGHT, self.preflight)
        handlers.add(FAILOVERS, self.failovers)
        return handlers

    async def preflight(self, request: PreflightRequest) -> Preflight:
        """The state of each target; all targets are asked at the same time."""
        namespace = await self._namespaces.read(request.namespace)
        others = [cluster for cluster in namespace.clusters if cluster != namespace.active_cluster]
        targets = await asyncio.gather(*(self._target(namespace, cluster) for cluster in others))
        return Preflight(
            self._clusters.here,
            namespace.active_cluster,
            namespace.failover_version,
            namespace.handover_until_ns > 0,
            tuple(targets),
        )

    async def failovers(self, request: FailoversRequest) -> FailoversResponse:
        """Past failovers, the newest first."""
        namespaces = [await self._namespaces.read(request.namespace)] if request.namespace else self._namespaces.all()
        found = [past for namespace in namespaces if namespace.is_global for past in self._past(namespace)]
        found.sort(key=lambda past: (past.at_ns, past.failover_version), reverse=True)
        return FailoversResponse(tuple(found[:FAILOVERS_MAX]))

    async def _target(self, namespace: Namespace, cluster: str) -> Target:
        try:
            async with asyncio.timeout(ANSWERS_S_MAX):
                dead_letters = await self._count_dead_letters(namespace, cluster)
        except (FairleadError, TimeoutError) as failure:
            return Target(cluster, error=str(failure) or f"no response in {ANSWERS_S_MAX:g} s")
        if not self._clusters.is_active(namespace):
            return Target(cluster, dead_letters=dead_letters)
        shards = await self._failover.ask_shards(HandOver(namespace.id, 0, cluster))
        behind = sum(one.acks.get(cluster, -1) < one.last_id for one in shards.values())
        return Target(cluster, shards=len(shards), behind=behind, dead_letters=dead_letters)

    async def _count_dead_letters(self, namespace: Namespace, cluster: str) -> int:
        source = namespace.active_cluster
        if cluster == self._clusters.here:
            # As for a failover to this cluster, the active cluster must respond.
            await self._remotes(source).info()
            return await self._dead_letters.count_of(source=source, namespace_id=namespace.id)
        asked = DeadLetterCountRequest(source, namespace.id)
        return (await self._remotes(cluster).count_dead_letters(asked)).count

    def _past(self, namespace: Namespace) -> list[PastFailover]:
        origins = {version: (before, is_graceful) for version, before, is_graceful in namespace.failover_origins}
        return [
            PastFailover(namespace.name, at_ns, version, self._owner(version), *origins.get(version, ("", None)))
            for version, at_ns in namespace.failovers
        ]

    def _owner(self, version: int) -> str:
        try:
            return self._clusters.versions.owner(version)
        except (UnknownCluster, UnownedVersion):
            return f"version {version}"
