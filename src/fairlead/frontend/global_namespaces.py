"""In which clusters a namespace lives and is active: what may be asked for, and what becomes of it."""

from collections.abc import Sequence

from msgspec.structs import replace
from temporalio.api.enums.v1 import ReplicationState
from temporalio.api.replication.v1 import NamespaceReplicationConfig
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest, UpdateNamespaceRequest

from fairlead.core.versions import LOCAL_VERSION
from fairlead.frontend.context import Frontend, Sharing
from fairlead.history.namespaces import DELETED, Namespace
from fairlead.history.refusals import invalid
from fairlead.replication.failover import moved_to

_RETENTION_GLOBAL_S_MIN = 86_400
SECOND_NS = 10**9


def check_registrable(frontend: Frontend, request: RegisterNamespaceRequest, *, retention_ns: int) -> None:
    """Refuse what can't be registered in the clusters that there are, in the words of Temporal's server."""
    if frontend.sharing is None:
        if request.is_global_namespace:
            raise invalid("Cannot register global namespace when not enabled")
        return
    if request.is_global_namespace and retention_ns < _RETENTION_GLOBAL_S_MIN * SECOND_NS:
        raise invalid("A valid retention period is not set on request.")


def placed(frontend: Frontend, namespace: Namespace, request: RegisterNamespaceRequest) -> Namespace:
    """A new namespace in the clusters that it is to live in."""
    active = request.active_cluster_name or frontend.cluster_name
    clusters = _distinct([cluster.cluster_name for cluster in request.clusters]) or (active,)
    wanted = replace(namespace, is_global=request.is_global_namespace, active_cluster=active, clusters=clusters)
    check_place(frontend, wanted)
    if frontend.sharing is None or not wanted.is_global:
        return wanted
    versions = frontend.sharing.registry.clusters.versions
    return replace(wanted, failover_version=versions.next_version(to=active, current=LOCAL_VERSION))


def at_home(frontend: Frontend, namespace: Namespace) -> Namespace:
    """A local namespace is of this cluster, whatever that was called when it was made."""
    if namespace.is_global:
        return namespace
    return replace(namespace, active_cluster=frontend.cluster_name, clusters=(frontend.cluster_name,))


def replaced(namespace: Namespace, wanted: NamespaceReplicationConfig) -> Namespace:
    """The namespace in the clusters that are wanted; what is left empty stays."""
    return replace(
        namespace,
        active_cluster=wanted.active_cluster_name or namespace.active_cluster,
        clusters=_distinct([cluster.cluster_name for cluster in wanted.clusters]) or namespace.clusters,
    )


def check_place(frontend: Frontend, namespace: Namespace) -> None:
    """Refuse clusters that are not known, or not connected, and an active one that is none of them."""
    known = {frontend.cluster_name}
    if frontend.sharing is not None:
        known |= {cluster.name for cluster in frontend.sharing.registry.remotes() if cluster.is_connected}
    for name in (namespace.active_cluster, *namespace.clusters):
        if name not in known:
            raise invalid(f"Invalid cluster name: {name}")
    if namespace.is_global:
        if namespace.active_cluster not in namespace.clusters:
            raise invalid("Active cluster is not contained in all clusters.")
        return
    if namespace.active_cluster != frontend.cluster_name:
        raise invalid("Invalid local namespace active cluster")
    if namespace.clusters != (namespace.active_cluster,):
        raise invalid("Invalid local namespace clusters")


def with_place(
    frontend: Frontend, namespace: Namespace, request: UpdateNamespaceRequest, *, is_configured: bool
) -> Namespace:
    """A namespace after what a request says of its clusters; `is_configured`: it changes other things as well.

    Either the configuration is changed, the list of clusters being a part of it, or the active cluster: the two have
    versions of their own.
    """
    wanted = request.replication_config
    is_global = namespace.is_global or request.promote_namespace
    changed = replace(replaced(namespace, wanted), is_global=is_global)
    check_place(frontend, changed)
    if not changed.is_global or frontend.sharing is None:
        return changed
    if wanted.state == ReplicationState.REPLICATION_STATE_HANDOVER:
        raise invalid("Handover is set by a graceful failover only: use `fairlead admin failover --graceful`.")
    if changed.state == DELETED and len(changed.clusters) > 1:
        raise invalid("Invalid namespace state update.")
    if wanted.active_cluster_name and (is_configured or wanted.clusters):
        raise invalid("Cannot set active cluster to current cluster when other parameters are set.")
    return _versioned(frontend, frontend.sharing, namespace, changed)


def _versioned(frontend: Frontend, sharing: Sharing, before: Namespace, changed: Namespace) -> Namespace:
    if before.is_global and before.active_cluster == changed.active_cluster:
        return changed
    now_ns = int(frontend.clock() * SECOND_NS)
    return moved_to(changed, changed.active_cluster, clusters=sharing.registry.clusters, now_ns=now_ns)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
