"""Parts of a host in a cluster with global namespaces: creates, opens and closes them in order."""

import asyncio
import random
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from fairlead.aio.coalescer import Coalescer
from fairlead.aio.drain import Drain
from fairlead.api.namespaces import Namespaces
from fairlead.frontend.gateway.context import GlobalNamespaces
from fairlead.frontend.gateway.forwarder import Forwarder
from fairlead.frontend.gateway.redirection import POLLS, Redirection
from fairlead.history.client import HistoryClient
from fairlead.history.draining_client import DrainingClient
from fairlead.history.service import HistoryService
from fairlead.membership.ring import RingView
from fairlead.replication.admission import ClusterAdmission
from fairlead.replication.clusters import ClusterRegistry
from fairlead.replication.dead_letters import DeadLetters
from fairlead.replication.endpoint import Endpoint
from fairlead.replication.failover import Failover
from fairlead.replication.grpc_remote import GrpcRemote
from fairlead.replication.namespaces import NamespaceSync
from fairlead.replication.preflight import Preflights
from fairlead.replication.repair import Repairs
from fairlead.replication.service import Replication
from fairlead.rpc import Call
from fairlead.rpc.hosts.caller import Handlers
from fairlead.rpc.hosts.credentials import Credentials, with_api_key
from fairlead.settings import DynamicSettings
from fairlead.settings.static.config import ClusterConfig
from fairlead.storage.history import HistoryStore
from fairlead.telemetry import CLIENT_REDIRECTION_REQUESTS, CLUSTER_EVENTS, Metrics

if TYPE_CHECKING:
    from fairlead.authorization.gate import Gate
    from fairlead.rpc.tls import TlsProvider


class GlobalNamespaceServices:
    """Connections to the remote clusters, replication of global namespaces and histories, and failovers."""

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
        credentials: Callable[[str], Credentials],
        credential_headers: Collection[str] = (),
    ) -> None:
        """A host without the history role has no `history`. `registry` is open already; `close` closes it.

        `credential_headers` are the headers with callers' credentials, which other clusters don't get.
        """
        self.registry = registry
        self._namespaces = namespaces
        self._client = client
        self._shards = shards
        self._settings = settings
        self._metrics = metrics
        self._dead_letters = DeadLetters(store)
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
            # Only one host of the cluster is the leader: the owner of the first shard.
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
        self._preflights = Preflights(
            clusters=registry.clusters,
            remotes=registry.remote,
            namespaces=namespaces,
            failover=self.failover,
            dead_letters=self._dead_letters,
        )
        self.repairs = Repairs(
            clusters=registry.clusters, remotes=registry.remote, history=client, random=random.random
        )
        registry.clusters.on_change(self._expect_events)
        self._expect_events()
        self._forwarder = Forwarder(registry.address, credentials, credential_headers=credential_headers)
        self._settling = Coalescer(self._settle)

    @property
    def of_frontend(self) -> GlobalNamespaces:
        """The parts that the frontend uses."""
        return GlobalNamespaces(self.registry, self.failover)

    def handlers(self) -> Handlers:
        """Handlers of this host for `fairlead admin`."""
        handlers = self.failover.handlers()
        for method, handle in self._preflights.handlers():
            handlers.add(method, handle)
        for method, handle in self.repairs.handlers():
            handlers.add(method, handle)
        if self._replication is not None:
            for method, handle in self._replication.handlers():
                handlers.add(method, handle)
        return handlers

    def endpoint(self, cluster_id: str, drain: Drain) -> Endpoint:
        """Methods of this host's frontend for other clusters; `drain` ends their long polls."""
        return Endpoint(
            clusters=self.registry.clusters,
            history=DrainingClient(self._client, drain),
            cluster_id=cluster_id,
            shards=self._shards,
            namespaces=self.sync.answer,
            fail_over=self.failover.fail_over,
            on_nudge=self.sync.pull,
            repair=self.repairs.repair,
            dead_letters=self._dead_letters,
        )

    def admission(self, gate: "Gate | None") -> ClusterAdmission:
        """Lets calls of other clusters in."""
        return ClusterAdmission(self._namespaces, gate)

    def redirection(self, drain: Drain) -> Redirection:
        """Redirection of this frontend's calls to the active cluster; `drain` ends redirected long polls."""

        async def send(cluster: str, data: bytes, call: Call) -> bytes:
            if call.path.rpartition("/")[2] in POLLS:
                return await drain.wait(lambda: self._forwarder.send(cluster, data, call), _no_task)
            return await self._forwarder.send(cluster, data, call)

        return Redirection(
            clusters=self.registry.clusters,
            namespaces=self._namespaces,
            settings=self._settings,
            send=send,
            settle=self._settling.refresh,
            on_redirect=lambda cluster: self._metrics.count(CLIENT_REDIRECTION_REQUESTS, cluster),
        )

    def open(self) -> None:
        """Start to replicate namespaces and histories from the other clusters."""
        self.sync.open()
        if self._replication is not None:
            self._replication.open()

    async def stop(self) -> None:
        """Stop replicating from the other clusters; they may still pull from this one."""
        if self._replication is not None:
            await self._replication.close()
        await self.sync.close()

    async def close(self) -> None:
        """Close the connections to the other clusters."""
        await self._settling.close()
        await self._forwarder.close()
        await self.registry.close()

    def _expect_events(self) -> None:
        """Create the counters of every other cluster at 0, before their first event."""
        for cluster in self.registry.clusters.remotes:
            for event in CLUSTER_EVENTS:
                self._metrics.expect(event, cluster)

    async def _settle(self, cluster: str) -> None:
        """Synchronize the global namespaces of this cluster and another one."""
        await asyncio.gather(self.registry.remote(cluster).nudge(), self.sync.pull(cluster))


def cluster_credentials(config: ClusterConfig, tls: "TlsProvider | None") -> Callable[[str], Credentials]:
    """Make a function that returns this cluster's proof of identity for an address: an API key, a certificate."""

    def find(address: str) -> Credentials:
        whole = address.lower()
        host = whole.rpartition(":")[0].strip("[]")
        key = config.api_keys.get(whole) or config.api_keys.get(host, "")
        return with_api_key(key, None if tls is None else tls.to_cluster(address))

    return find


async def open_registry(
    store: HistoryStore, config: ClusterConfig, credentials: Callable[[str], Credentials]
) -> ClusterRegistry:
    """Open the registry of known clusters."""
    registry = ClusterRegistry(
        store,
        config,
        connect=lambda address: GrpcRemote(address, here=config.name, credentials=credentials(address)),
    )
    try:
        await registry.open()
    except BaseException:
        await registry.close()
        raise
    return registry


async def _no_task() -> bytes:
    """An empty message: no task came."""
    return b""
