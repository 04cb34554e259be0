"""Handlers for operators who list, add and remove clusters."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from temporalio.api.operatorservice.v1 import (
    AddOrUpdateRemoteClusterRequest,
    AddOrUpdateRemoteClusterResponse,
    ClusterMetadata,
    ListClustersRequest,
    ListClustersResponse,
    RemoveRemoteClusterRequest,
    RemoveRemoteClusterResponse,
)

from fairlead.api.errors import FailedPrecondition, InvalidArgument, NotFound
from fairlead.api.namespaces import DELETED
from fairlead.frontend.gateway.context import Frontend, Handler
from fairlead.frontend.handlers.system import failover_versions
from fairlead.rpc import Call
from fairlead.settings import InvalidValue
from fairlead.settings.static.config import parse_remote_address

if TYPE_CHECKING:
    from fairlead.replication.clusters import KnownCluster

# Maximum number of namespaces that an error names.
NAMES_SHOWN_MAX = 5
PAGE_MAX = 100


async def _list_clusters(frontend: Frontend, request: ListClustersRequest, _: Call) -> ListClustersResponse:
    this = ClusterMetadata(
        cluster_name=frontend.cluster_name,
        cluster_id=frontend.cluster_id,
        address=frontend.address,
        http_address=frontend.http_address,
        initial_failover_version=failover_versions(frontend)[0],
        history_shard_count=frontend.shard_count,
        is_connection_enabled=True,
    )
    others: Sequence[KnownCluster] = (
        () if frontend.global_namespaces is None else frontend.global_namespaces.registry.remotes()
    )
    if frontend.global_namespaces is not None:
        this.is_replication_enabled = True
    every = [this, *(_metadata(cluster) for cluster in others)]
    if request.next_page_token:
        last = request.next_page_token.decode(errors="replace")
        names = [cluster.cluster_name for cluster in every]
        if last not in names:
            raise InvalidArgument("Invalid NextPageToken.")
        every = every[names.index(last) + 1 :]
    size = min(request.page_size, PAGE_MAX) if request.page_size > 0 else PAGE_MAX
    page = every[:size]
    is_last = len(page) == len(every)
    return ListClustersResponse(clusters=page, next_page_token=b"" if is_last else page[-1].cluster_name.encode())


async def _add_or_update_remote_cluster(
    frontend: Frontend, request: AddOrUpdateRemoteClusterRequest, _: Call
) -> AddOrUpdateRemoteClusterResponse:
    if frontend.global_namespaces is None:
        raise FailedPrecondition(
            "This cluster has no cluster configuration: set `cluster: {name: ..., initialVersion: ...}`, with values "
            "that differ from those of the other clusters, and restart it."
        )
    try:
        address = parse_remote_address(request.frontend_address)
    except InvalidValue as wrong:
        raise InvalidArgument(f"FrontendAddress {request.frontend_address!r} {wrong}.") from None
    await frontend.global_namespaces.registry.add(
        address,
        is_connected=request.enable_remote_cluster_connection,
        is_replicated=request.enable_replication,
    )
    return AddOrUpdateRemoteClusterResponse()


async def _remove_remote_cluster(
    frontend: Frontend, request: RemoveRemoteClusterRequest, _: Call
) -> RemoveRemoteClusterResponse:
    name = request.cluster_name
    if name == frontend.cluster_name:
        raise InvalidArgument("Unable to delete cluster info with error: Cannot delete current cluster metadata.")
    global_namespaces = frontend.global_namespaces
    if global_namespaces is None or all(cluster.name != name for cluster in global_namespaces.registry.remotes()):
        raise NotFound("The cluster to be deleted cannot be found in clusters cache.")
    using = sorted(one.name for one in frontend.namespaces.all() if name in one.clusters and one.state != DELETED)
    if using:
        more = f" and {len(using) - NAMES_SHOWN_MAX} more" if len(using) > NAMES_SHOWN_MAX else ""
        raise FailedPrecondition(
            f"Cluster {name} is used by namespace {', '.join(using[:NAMES_SHOWN_MAX])}{more}: "
            "remove it there first, with UpdateNamespace."
        )
    await global_namespaces.registry.remove(name)
    return RemoveRemoteClusterResponse()


def _metadata(cluster: "KnownCluster") -> ClusterMetadata:
    return ClusterMetadata(
        cluster_name=cluster.name,
        cluster_id=cluster.cluster_id,
        address=cluster.address,
        initial_failover_version=cluster.initial_version,
        history_shard_count=cluster.shards,
        is_connection_enabled=cluster.is_connected,
        is_replication_enabled=cluster.is_connected and cluster.is_replicated,
    )


OPERATOR_METHODS: dict[str, Handler] = {
    "ListClusters": _list_clusters,
    "AddOrUpdateRemoteCluster": _add_or_update_remote_cluster,
    "RemoveRemoteCluster": _remove_remote_cluster,
}
NOTES = {
    "AddOrUpdateRemoteCluster": "Only if `cluster` is configured, and only for clusters of Fairlead.",
    "RemoveRemoteCluster": "Clusters in the configuration can't be removed.",
}
DIFFERENCES = (
    "Removing the current cluster gets INVALID_ARGUMENT; Temporal's server returns INTERNAL.",
    "A cluster can't be removed while a namespace uses it. Clusters may have different numbers of history shards.",
)
