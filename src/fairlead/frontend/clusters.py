"""The clusters that operators list, add and remove."""

from collections.abc import Sequence

from temporalio.api.operatorservice.v1 import (
    AddOrUpdateRemoteClusterRequest,
    AddOrUpdateRemoteClusterResponse,
    ClusterMetadata,
    ListClustersRequest,
    ListClustersResponse,
    RemoveRemoteClusterRequest,
    RemoveRemoteClusterResponse,
)

from fairlead.frontend.context import Frontend, Handler
from fairlead.frontend.system import failover_versions
from fairlead.history.namespaces import DELETED
from fairlead.history.refusals import failed_precondition, invalid, not_found
from fairlead.replication.clusters import KnownCluster
from fairlead.rpc import Call
from fairlead.settings import InvalidValue
from fairlead.settings.static import parse_remote_address

# Namespaces that are named in a refusal.
NAMES_TOLD_MAX = 5
PAGE_MAX = 100


async def _list_clusters(frontend: Frontend, request: ListClustersRequest, _: Call) -> ListClustersResponse:
    this = ClusterMetadata(
        cluster_name=frontend.cluster_name,
        cluster_id=frontend.cluster_id,
        address=frontend.address,
        initial_failover_version=failover_versions(frontend)[0],
        history_shard_count=frontend.shard_count,
        is_connection_enabled=True,
    )
    others: Sequence[KnownCluster] = () if frontend.sharing is None else frontend.sharing.registry.remotes()
    if frontend.sharing is not None:
        this.is_replication_enabled = True
    every = [this, *(_metadata(cluster) for cluster in others)]
    if request.next_page_token:
        last = request.next_page_token.decode(errors="replace")
        names = [cluster.cluster_name for cluster in every]
        if last not in names:
            raise invalid("Invalid NextPageToken.")
        every = every[names.index(last) + 1 :]
    size = min(request.page_size, PAGE_MAX) if request.page_size > 0 else PAGE_MAX
    page = every[:size]
    is_last = len(page) == len(every)
    return ListClustersResponse(clusters=page, next_page_token=b"" if is_last else page[-1].cluster_name.encode())


async def _add_or_update_remote_cluster(
    frontend: Frontend, request: AddOrUpdateRemoteClusterRequest, _: Call
) -> AddOrUpdateRemoteClusterResponse:
    if frontend.sharing is None:
        raise failed_precondition(
            "This cluster is configured to be alone: give it `cluster: {name: ..., initialVersion: ...}` in its "
            "configuration, different from that of the others, and restart it."
        )
    try:
        address = parse_remote_address(request.frontend_address)
    except InvalidValue as wrong:
        raise invalid(f"FrontendAddress {request.frontend_address!r} {wrong}.") from None
    await frontend.sharing.registry.add(
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
        raise invalid("Unable to delete cluster info with error: Cannot delete current cluster metadata.")
    sharing = frontend.sharing
    if sharing is None or all(cluster.name != name for cluster in sharing.registry.remotes()):
        raise not_found("The cluster to be deleted cannot be found in clusters cache.")
    using = sorted(one.name for one in frontend.namespaces.all() if name in one.clusters and one.state != DELETED)
    if using:
        more = f" and {len(using) - NAMES_TOLD_MAX} more" if len(using) > NAMES_TOLD_MAX else ""
        raise failed_precondition(
            f"Cluster {name} is one of those of namespace {', '.join(using[:NAMES_TOLD_MAX])}{more}: "
            "take it out there first, by UpdateNamespace."
        )
    await sharing.registry.remove(name)
    return RemoveRemoteClusterResponse()


def _metadata(cluster: KnownCluster) -> ClusterMetadata:
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
    "AddOrUpdateRemoteCluster": "In a cluster that has `cluster` in its configuration; clusters of Fairlead only.",
    "RemoveRemoteCluster": "Not those that are in the configuration.",
}
DIFFERENCES = (
    "To remove the current cluster is INVALID_ARGUMENT, where Temporal's server answers INTERNAL.",
    "A cluster can't be removed while a namespace lives in it; clusters may have any numbers of history shards.",
)
