"""The clusters of a namespace: validation, and changes."""

from collections.abc import Sequence

from msgspec.structs import replace
from temporalio.api.enums.v1 import ReplicationState
from temporalio.api.replication.v1 import NamespaceReplicationConfig
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest, UpdateNamespaceRequest

from fairlead.api.errors import InvalidArgument
from fairlead.api.namespaces import DELETED, Namespace
from fairlead.api.times import SECOND_NS
from fairlead.core.versions import LOCAL_VERSION
from fairlead.frontend.gateway.context import Frontend, GlobalNamespaces

_RETENTION_GLOBAL_S_MIN = 86_400


def check_registrable(frontend: Frontend, request: RegisterNamespaceRequest, *, retention_ns: int) -> None:
    """Reject a global namespace that can't be registered, in the words of Temporal's server."""
    if frontend.global_namespaces is None:
        if request.is_global_namespace:
            raise InvalidArgument("Cannot register global namespace when not enabled")
        return
    if request.is_global_namespace and retention_ns < _RETENTION_GLOBAL_S_MIN * SECOND_NS:
        raise InvalidArgument("A valid retention period is not set on request.")


def with_clusters(frontend: Frontend, namespace: Namespace, request: RegisterNamespaceRequest) -> Namespace:
    """A new namespace with its clusters."""
    active = request.active_cluster_name or frontend.cluster_name
    clusters = _distinct([cluster.cluster_name for cluster in request.clusters]) or (active,)
    wanted = replace(namespace, is_global=request.is_global_namespace, active_cluster=active, clusters=clusters)
    check_clusters(frontend, wanted)
    if frontend.global_namespaces is None or not wanted.is_global:
        return wanted
    versions = frontend.global_namespaces.registry.clusters.versions
    return replace(wanted, failover_version=versions.next_version(to=active, current=LOCAL_VERSION))


def at_home(frontend: Frontend, namespace: Namespace) -> Namespace:
    """A local namespace with the current name of this cluster: it may have been registered under an earlier name."""
    if namespace.is_global:
        return namespace
    return replace(namespace, active_cluster=frontend.cluster_name, clusters=(frontend.cluster_name,))


def replaced(namespace: Namespace, wanted: NamespaceReplicationConfig) -> Namespace:
    """The namespace with the clusters of the request; empty fields change nothing."""
    return replace(
        namespace,
        active_cluster=wanted.active_cluster_name or namespace.active_cluster,
        clusters=_distinct([cluster.cluster_name for cluster in wanted.clusters]) or namespace.clusters,
    )


def check_clusters(frontend: Frontend, namespace: Namespace) -> None:
    """Reject unknown or unconnected clusters, and an active cluster that is not in the list of clusters."""
    known = {frontend.cluster_name}
    if frontend.global_namespaces is not None:
        known |= {cluster.name for cluster in frontend.global_namespaces.registry.remotes() if cluster.is_connected}
    for name in (namespace.active_cluster, *namespace.clusters):
        if name not in known:
            raise InvalidArgument(f"Invalid cluster name: {name}")
    if namespace.is_global:
        if namespace.active_cluster not in namespace.clusters:
            raise InvalidArgument("Active cluster is not contained in all clusters.")
        return
    if namespace.active_cluster != frontend.cluster_name:
        raise InvalidArgument("Invalid local namespace active cluster")
    if namespace.clusters != (namespace.active_cluster,):
        raise InvalidArgument("Invalid local namespace clusters")


def with_changed_clusters(
    frontend: Frontend, namespace: Namespace, request: UpdateNamespaceRequest, *, is_configured: bool
) -> Namespace:
    """The namespace with the changes of its clusters; `is_configured`: the request changes other fields too.

    A request changes either the configuration, which includes the list of clusters, or the active cluster: each has its
    own version.
    """
    wanted = request.replication_config
    is_global = namespace.is_global or request.promote_namespace
    changed = replace(replaced(namespace, wanted), is_global=is_global)
    check_clusters(frontend, changed)
    if not changed.is_global or frontend.global_namespaces is None:
        return changed
    if wanted.state == ReplicationState.REPLICATION_STATE_HANDOVER:
        raise InvalidArgument("Handover is set by a graceful failover only: use `fairlead admin failover --graceful`.")
    if changed.state == DELETED and len(changed.clusters) > 1:
        raise InvalidArgument("Invalid namespace state update.")
    if wanted.active_cluster_name and (is_configured or wanted.clusters):
        raise InvalidArgument("Cannot set active cluster to current cluster when other parameters are set.")
    return _versioned(frontend, frontend.global_namespaces, namespace, changed)


def _versioned(
    frontend: Frontend, global_namespaces: GlobalNamespaces, before: Namespace, changed: Namespace
) -> Namespace:
    if before.is_global and before.active_cluster == changed.active_cluster:
        return changed
    # Imported here: with global namespaces the module is loaded already, and other servers don't need it.
    from fairlead.replication.failover import moved_to  # noqa: PLC0415

    now_ns = int(frontend.clock() * SECOND_NS)
    return moved_to(
        changed,
        changed.active_cluster,
        clusters=global_namespaces.registry.clusters,
        now_ns=now_ns,
        came_from=before.active_cluster,
    )


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
