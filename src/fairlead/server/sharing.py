"""What a host has where its cluster shares namespaces with others: made, opened and closed in order."""

import asyncio
import time

from fairlead.cluster.calls import Handlers
from fairlead.cluster.ring import RingView
from fairlead.cluster.turns import Turns
from fairlead.frontend.context import Sharing
from fairlead.frontend.forwarding import Forwarder
from fairlead.frontend.redirection import POLLS, Redirection
from fairlead.history.client import HistoryClient
from fairlead.history.namespaces import Namespaces
from fairlead.history.service import HistoryService
from fairlead.replication.clusters import ClusterRegistry
from fairlead.replication.dead_letters import DeadLetters
from fairlead.replication.endpoint import Endpoint
from fairlead.replication.failover import Failover
from fairlead.replication.grpc_remote import GrpcRemote
from fairlead.replication.namespaces import NamespaceSync
from fairlead.replication.repairing import Repairs
from fairlead.replication.service import Replication
from fairlead.rpc import Call
from fairlead.server.frontend_server import Drain, DrainingHistory
from fairlead.settings import DynamicSettings
from fairlead.settings.static import ClusterConfig
from fairlead.storage.history_contract import HistoryStore
from fairlead.telemetry import CLIENT_REDIRECTION_REQUESTS, Metrics

# So soon all hosts of a cluster know where a namespace is active.
SHARED_NAMESPACES_REFRESH_S = 1.0


class SharedNamespaces:
    """The other clusters, the namespaces that are shared with them, and failovers."""

    def __init__(
        self,
        registry: ClusterRegistry,
        *,
        host: str,
        store: HistoryStore,
        ring: RingView,
        namespaces: Namespaces,
        history: HistoryService | None,
        client: HistoryClient,
        shards: int,
        settings: DynamicSettings,
        metrics: Metrics,
    ) -> None:
        """`history` is None in a host without that role. The registry is open, and closed here."""
        self.registry = registry
        self._namespaces = namespaces
        self._client = client
        self._shards = shards
        self._settings = settings
        self._metrics = metrics
        self._letters = DeadLetters(store)
        self._replication: Replication | None = None
        if history is not None:
            self._replication = Replication(
                host,
                clusters=registry.clusters,
                remotes=registry.remote,
                history=client,
                store=store,
                ring=ring,
                settings=settings,
                metrics=metrics,
                clock_ns=time.time_ns,
            )
        self.sync = NamespaceSync(
            clusters=registry.clusters,
            remotes=registry.remote,
            namespaces=namespaces,
            # One host of the cluster looks: whoever has the first shard.
            is_leader=lambda: history is not None and history.owns(0),
            metrics=metrics,
        )
        self.failover = Failover(
            clusters=registry.clusters,
            remotes=registry.remote,
            namespaces=namespaces,
            history=client,
            shards=shards,
            clock_ns=time.time_ns,
        )
        self.repairs = Repairs(clusters=registry.clusters, remotes=registry.remote, history=client)
        self._forwarder = Forwarder(registry.address)
        self._settling = Turns(self._settle)

    @property
    def of_frontend(self) -> Sharing:
        """What the frontend needs of it."""
        return Sharing(self.registry, self.failover)

    def handlers(self) -> Handlers:
        """What this host answers to `fairlead admin`."""
        handlers = self.failover.handlers()
        for method, handle in self.repairs.handlers():
            handlers.add(method, handle)
        if self._replication is not None:
            for method, handle in self._replication.handlers():
                handlers.add(method, handle)
        return handlers

    def endpoint(self, cluster_id: str, drain: Drain) -> Endpoint:
        """What the frontend of this host answers to other clusters; those that wait for news are let go by `drain`."""
        return Endpoint(
            clusters=self.registry.clusters,
            history=DrainingHistory(self._client, drain),
            cluster_id=cluster_id,
            shards=self._shards,
            namespaces=self.sync.answer,
            fail_over=self.failover.fail_over,
            on_nudge=self.sync.pull,
            repair=self.repairs.repair,
            letters=self._letters,
        )

    def redirection(self, drain: Drain) -> Redirection:
        """Where the calls of this host's frontend are answered; polls that wait elsewhere are let go by `drain`."""

        async def send(cluster: str, data: bytes, call: Call) -> bytes:
            if call.path.rpartition("/")[2] in POLLS:
                return await drain.wait(lambda: self._forwarder.send(cluster, data, call), _no_task)
            return await self._forwarder.send(cluster, data, call)

        return Redirection(
            clusters=self.registry.clusters,
            namespaces=self._namespaces,
            settings=self._settings,
            send=send,
            settle=self._settling.take,
            on_redirect=lambda cluster: self._metrics.count(CLIENT_REDIRECTION_REQUESTS, cluster),
        )

    def open(self) -> None:
        """Follow the other clusters: their namespaces, and their histories."""
        self.sync.open()
        if self._replication is not None:
            self._replication.open()

    async def stop(self) -> None:
        """Follow them no more; they may still ask this one."""
        if self._replication is not None:
            await self._replication.close()
        await self.sync.close()

    async def close(self) -> None:
        """Let go of the other clusters."""
        await self._settling.close()
        await self._forwarder.close()
        await self.registry.close()

    async def _settle(self, cluster: str) -> None:
        """Have this cluster and another one know the same of their namespaces."""
        await asyncio.gather(self.registry.remote(cluster).nudge(), self.sync.pull(cluster))


async def open_registry(store: HistoryStore, config: ClusterConfig) -> ClusterRegistry:
    """All clusters that this one knows."""
    registry = ClusterRegistry(store, config, connect=lambda address: GrpcRemote(address, here=config.name))
    try:
        await registry.open()
    except BaseException:
        await registry.close()
        raise
    return registry


async def _no_task() -> bytes:
    """An empty message: no task came."""
    return b""
