"""A cluster without workflows: its namespaces and its list of clusters, which others reach over real gRPC."""

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.replication.clusters import ClusterRegistry
from fairlead.replication.dead_letters import DeadLetters
from fairlead.replication.endpoint import Endpoint
from fairlead.replication.grpc_remote import GrpcRemote
from fairlead.replication.namespaces import NamespaceSync
from fairlead.rpc import RpcServer
from fairlead.settings.static.config import ClusterConfig, RemoteClusterConfig
from fairlead.storage.history import HistoryStore
from fairlead.storage.memory.history import MemoryHistory
from fairlead.telemetry import Metrics

DAY_NS = 86_400 * 10**9


@dataclass
class ConnectedCluster:
    """The parts of such a cluster."""

    config: ClusterConfig
    address: str
    store: HistoryStore
    namespaces: Namespaces
    registry: ClusterRegistry
    sync: NamespaceSync
    metrics: Metrics


def shared(name: str = "orders", *, active: str = "a", version: int = 1, **fields: Any) -> Namespace:
    """A namespace of clusters a and b, unless other clusters are given."""
    made = {"clusters": ("a", "b"), "retention_ns": DAY_NS, "id": str(uuid.uuid4()), **fields}
    return Namespace(name=name, is_global=True, active_cluster=active, failover_version=version, **made)


@asynccontextmanager
async def connected_cluster(
    name: str,
    initial_version: int,
    *,
    increment: int = 10,
    remotes: Mapping[str, RemoteClusterConfig] | None = None,
    store: HistoryStore | None = None,
    shards: int = 4,
    allowed_addresses: tuple[str, ...] = (),
) -> AsyncIterator[ConnectedCluster]:
    """Run the cluster. It pulls from other clusters only on request, but refreshes its list of clusters quickly."""
    store = store or MemoryHistory()
    config = ClusterConfig(name, initial_version, increment, remotes or {}, allowed_addresses=allowed_addresses)
    namespaces = Namespaces(store, clock=lambda: 0.0, refresh_s=3600.0)
    await namespaces.open()
    registry = ClusterRegistry(store, config, connect=lambda address: GrpcRemote(address, here=name), refresh_s=0.02)
    await registry.open()
    metrics = Metrics()
    sync = NamespaceSync(
        clusters=registry.clusters, remotes=registry.remote, namespaces=namespaces, metrics=metrics, interval_s=0.05
    )
    nobody: Any = None
    server = RpcServer("127.0.0.1:0")
    Endpoint(
        clusters=registry.clusters,
        history=nobody,
        cluster_id=f"id of {name}",
        shards=shards,
        namespaces=sync.answer,
        fail_over=nobody,
        on_nudge=sync.pull,
        repair=nobody,
        dead_letters=DeadLetters(store),
    ).add_to(server)
    address = await server.start()
    try:
        yield ConnectedCluster(config, address, store, namespaces, registry, sync, metrics)
    finally:
        await sync.close()
        await registry.close()
        await server.stop(0)
        await namespaces.close()
