"""Handlers that register, describe, list, update and deprecate namespaces."""

import uuid

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec.structs import replace
from temporalio.api.enums.v1 import ArchivalState, NamespaceState, ReplicationState
from temporalio.api.namespace.v1 import BadBinaries, NamespaceConfig, NamespaceInfo, UpdateNamespaceInfo
from temporalio.api.replication.v1 import ClusterReplicationConfig, FailoverStatus, NamespaceReplicationConfig
from temporalio.api.workflowservice.v1 import (
    DeprecateNamespaceRequest,
    DeprecateNamespaceResponse,
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    GetSearchAttributesRequest,
    GetSearchAttributesResponse,
    ListNamespacesRequest,
    ListNamespacesResponse,
    RegisterNamespaceRequest,
    RegisterNamespaceResponse,
    UpdateNamespaceRequest,
    UpdateNamespaceResponse,
)

from fairlead.api.error_details import namespace_not_found
from fairlead.api.errors import InvalidArgument
from fairlead.api.namespaces import DELETED, DEPRECATED, REGISTERED, Namespace, already_exists, check_name, configured
from fairlead.api.system_attributes import SYSTEM_SEARCH_ATTRIBUTES
from fairlead.api.times import SECOND_NS
from fairlead.frontend.gateway.context import Frontend, Handler
from fairlead.frontend.handlers.global_namespaces import (
    at_home,
    check_clusters,
    check_registrable,
    replaced,
    with_changed_clusters,
    with_clusters,
)
from fairlead.rpc import Call
from fairlead.settings import Scope
from fairlead.settings.dynamic.nexus import STANDALONE_ENABLED, UPDATE_CALLBACKS_ENABLED

RETENTION_S_MIN = 3_600
# Maximum retention in nanoseconds, as a signed 64-bit integer; longer ones mean the same: forever.
RETENTION_NS_MAX = 2**63 - 1
# Maximum seconds of a protobuf Duration.
DURATION_S_MAX = 315_576_000_000
PAGE_DEFAULT = 100
PAGE_MAX = 1_000
# Name of Temporal's own namespace; it can't be registered.
RESERVED_NAME = "temporal-system"
# Maximum bytes of a workflow task completion: it must fit into one message.
WORKFLOW_TASK_COMPLETION_BYTES_MAX = 4 * 1024 * 1024

# Capabilities of every namespace, which its settings don't change; True only for features that this server has.
NAMESPACE_CAPABILITIES = {
    "eager_workflow_start": True,
    "sync_update": True,
    "async_update": True,
    "worker_heartbeats": True,
    "reported_problems_search_attribute": True,
    "workflow_pause": False,
    "standalone_activities": True,
    "worker_poll_complete_on_shutdown": False,
    "poller_autoscaling": True,
    "worker_commands": False,
    "standalone_nexus_operation": False,
    "workflow_update_callbacks": False,
    "poller_autoscaling_auto_enroll": False,
    "workflow_task_completion_pagination": False,
    "standalone_activity_start_delay": True,
    "standalone_activity_batch_operations": True,
    "standalone_activity_operator_commands": True,
}
SUPPORTS_SCHEDULES = True

_NEXT_STATES: dict[int, tuple[int, ...]] = {REGISTERED: (DEPRECATED, DELETED), DEPRECATED: (DELETED,), DELETED: ()}


async def _register_namespace(
    frontend: Frontend, request: RegisterNamespaceRequest, _: Call
) -> RegisterNamespaceResponse:
    check_name(request.namespace)
    if not request.namespace:
        raise InvalidArgument("Namespace not set on request.")
    if not request.namespace.isprintable():
        raise InvalidArgument(f"Namespace {request.namespace!a} has control characters: use printable ones only.")
    retention_ns = _checked_retention(request.workflow_execution_retention_period)
    check_registrable(frontend, request, retention_ns=retention_ns)
    if request.namespace == RESERVED_NAME:
        raise already_exists(request.namespace)
    wanted = Namespace(
        id=frontend.new_id(),
        name=request.namespace,
        retention_ns=retention_ns,
        description=request.description,
        owner_email=request.owner_email,
        data=dict(request.data),
        created_ns=int(frontend.clock() * SECOND_NS),
    )
    await _propagate(frontend, await frontend.namespaces.create(with_clusters(frontend, wanted, request)))
    return RegisterNamespaceResponse()


async def _describe_namespace(
    frontend: Frontend, request: DescribeNamespaceRequest, _: Call
) -> DescribeNamespaceResponse:
    check_name(request.namespace)
    if request.namespace and request.id:
        raise InvalidArgument("GetNamespace operation failed.  Both ID and Name specified in request.")
    if request.id:
        if len(request.id) > len(str(uuid.UUID(int=0))):
            raise namespace_not_found(request.id)
        return _described(frontend, await frontend.namespaces.read_id(request.id))
    if not request.namespace:
        raise InvalidArgument("Namespace not set on request.")
    return _described(frontend, await frontend.namespaces.read(request.namespace))


async def _list_namespaces(frontend: Frontend, request: ListNamespacesRequest, _: Call) -> ListNamespacesResponse:
    if request.page_size < 0:
        raise InvalidArgument(f"PageSize is {request.page_size}: it can't be negative.")
    page_size = min(request.page_size or PAGE_DEFAULT, PAGE_MAX)
    try:
        after = request.next_page_token.decode("ascii") or None
    except UnicodeDecodeError:
        raise InvalidArgument("Invalid NextPageToken.") from None
    if after is not None and "\0" in after:
        raise InvalidArgument("Invalid NextPageToken.")
    found = await frontend.namespaces.list(after=after, limit=page_size + 1)
    page = found[:page_size]
    return ListNamespacesResponse(
        namespaces=[
            _described(frontend, namespace)
            for namespace in page
            if namespace.state != DELETED or request.namespace_filter.include_deleted
        ],
        next_page_token=page[-1].id.encode() if len(found) > page_size else b"",
    )


async def _update_namespace(frontend: Frontend, request: UpdateNamespaceRequest, _: Call) -> UpdateNamespaceResponse:
    check_name(request.namespace)
    if not request.namespace:
        raise InvalidArgument("Namespace not set on request.")

    def change(stored: Namespace) -> Namespace:
        namespace = at_home(frontend, stored)
        _check_replication(frontend, namespace, request)
        changed = _with_config(_with_info(namespace, request.update_info), request)
        is_configured = changed != namespace or _gives_config(request)
        changed = with_changed_clusters(frontend, changed, request, is_configured=is_configured)
        # A failover alone does not change the config version.
        return changed if request.replication_config.active_cluster_name else configured(namespace, changed)

    changed = await frontend.namespaces.update(request.namespace, change)
    await _propagate(frontend, changed)
    updated = _described(frontend, changed)
    return UpdateNamespaceResponse(
        namespace_info=updated.namespace_info,
        config=updated.config,
        replication_config=updated.replication_config,
        failover_version=updated.failover_version,
        is_global_namespace=updated.is_global_namespace,
    )


async def _deprecate_namespace(
    frontend: Frontend, request: DeprecateNamespaceRequest, _: Call
) -> DeprecateNamespaceResponse:
    check_name(request.namespace)
    if not request.namespace:
        raise InvalidArgument("Namespace not set on request.")

    def change(namespace: Namespace) -> Namespace:
        if namespace.purge_after_ns:
            raise InvalidArgument("Invalid namespace state update.")
        return configured(namespace, replace(namespace, state=int(DEPRECATED)))

    await _propagate(frontend, await frontend.namespaces.update(request.namespace, change))
    return DeprecateNamespaceResponse()


async def _get_search_attributes(
    frontend: Frontend, _: GetSearchAttributesRequest, __: Call
) -> GetSearchAttributesResponse:
    """Return the search attributes of all namespaces: the request names no namespace."""
    keys: dict[str, int] = {}
    for namespace in frontend.namespaces.all():
        keys.update(namespace.search_attributes)
    keys.update(SYSTEM_SEARCH_ATTRIBUTES)
    answer = GetSearchAttributesResponse()
    for name, kind in keys.items():
        answer.keys[name] = kind  # type: ignore[assignment]
    return answer


def _capabilities(frontend: Frontend, namespace: Namespace) -> NamespaceInfo.Capabilities:
    """The capabilities of every namespace, and those that this namespace's settings enable."""
    settings, scope = frontend.settings, Scope(namespace.id)
    enabled = {
        "standalone_nexus_operation": settings.get(STANDALONE_ENABLED, scope),
        "workflow_update_callbacks": settings.get(UPDATE_CALLBACKS_ENABLED, scope),
    }
    return NamespaceInfo.Capabilities(**{**NAMESPACE_CAPABILITIES, **enabled})


METHODS: dict[str, Handler] = {
    "RegisterNamespace": _register_namespace,
    "DescribeNamespace": _describe_namespace,
    "ListNamespaces": _list_namespaces,
    "UpdateNamespace": _update_namespace,
    "DeprecateNamespace": _deprecate_namespace,
    "GetSearchAttributes": _get_search_attributes,
}
NOTES = {
    "RegisterNamespace": "Archival settings are accepted, but archival stays disabled.",
    "UpdateNamespace": "Bad binaries and aliases of search attributes are not supported.",
}
DIFFERENCES = (
    "A namespace whose name has control characters, or others that can't be printed, can't be registered.",
    "The namespace temporal-system does not exist, and its name can't be registered.",
    (
        "DescribeNamespace returns 4 MiB as the maximum size of a workflow task completion, which is the maximum "
        "size of a message; Temporal's server returns 40 MiB, but also accepts messages of at most 4 MiB."
    ),
    (
        "Search attributes are stored under their own names: a namespace has no aliases for them, and "
        "custom_search_attribute_aliases is always empty."
    ),
    (
        "A namespace holds at most 64 KiB of description, data, search attributes and workflow rules, and a cluster "
        "at most 10,000 namespaces."
    ),
    (
        "Pages of ListNamespaces may be shorter than the page size, because deleted namespaces are left out. A "
        "negative page size gets INVALID_ARGUMENT; Temporal's server returns UNAVAILABLE."
    ),
    "DescribeNamespace with an id that is not a UUID gets NOT_FOUND; Temporal's server returns UNKNOWN.",
)


def _described(frontend: Frontend, namespace: Namespace) -> DescribeNamespaceResponse:
    namespace = at_home(frontend, namespace)
    limits = frontend.limits.of(namespace.id)
    retention = Duration()
    retention.FromNanoseconds(namespace.retention_ns)
    disabled = ArchivalState.ARCHIVAL_STATE_DISABLED
    return DescribeNamespaceResponse(
        namespace_info=NamespaceInfo(
            name=namespace.name,
            state=NamespaceState.ValueType(namespace.state),
            description=namespace.description,
            owner_email=namespace.owner_email,
            data=namespace.data,
            id=namespace.id,
            capabilities=_capabilities(frontend, namespace),
            limits=NamespaceInfo.Limits(
                blob_size_limit_error=limits.blob_size_max,
                memo_size_limit_error=limits.memo_size_max,
                workflow_task_completion_size_limit_error=WORKFLOW_TASK_COMPLETION_BYTES_MAX,
            ),
            supports_schedules=SUPPORTS_SCHEDULES,
        ),
        config=NamespaceConfig(
            workflow_execution_retention_ttl=retention,
            bad_binaries=BadBinaries(),
            history_archival_state=disabled,
            visibility_archival_state=disabled,
        ),
        replication_config=NamespaceReplicationConfig(
            active_cluster_name=namespace.active_cluster,
            clusters=[ClusterReplicationConfig(cluster_name=name) for name in namespace.clusters],
            state=ReplicationState.REPLICATION_STATE_HANDOVER
            if namespace.handover_until_ns > frontend.clock() * SECOND_NS
            else ReplicationState.REPLICATION_STATE_NORMAL,
        ),
        failover_version=namespace.failover_version,
        is_global_namespace=namespace.is_global,
        failover_history=[
            FailoverStatus(failover_version=version, failover_time=_timestamp(time_ns))
            for version, time_ns in namespace.failovers
        ],
    )


def _timestamp(time_ns: int) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromNanoseconds(time_ns)
    return timestamp


def _checked_retention(period: Duration) -> int:
    """The retention in nanoseconds."""
    seconds, nanos = period.seconds, period.nanos
    if not (RETENTION_S_MIN <= seconds <= DURATION_S_MAX and 0 <= nanos < SECOND_NS):
        raise InvalidArgument("A valid retention period is not set on request.")
    return min(seconds * SECOND_NS + nanos, RETENTION_NS_MAX)


def _check_replication(frontend: Frontend, namespace: Namespace, request: UpdateNamespaceRequest) -> None:
    """Reject changes of a local namespace that only global namespaces allow."""
    if frontend.global_namespaces is not None and (namespace.is_global or request.promote_namespace):
        return
    check_clusters(frontend, replaced(namespace, request.replication_config))
    if request.replication_config.state == ReplicationState.REPLICATION_STATE_HANDOVER and not namespace.is_global:
        raise InvalidArgument("Handover can only be set for global namespace")
    if request.promote_namespace:
        raise InvalidArgument(
            "global namespace is not enabled on this cluster, cannot update global namespace or promote local "
            f"namespace: {namespace.name}"
        )


def _gives_config(request: UpdateNamespaceRequest) -> bool:
    """Whether a request has configuration fields, even with unchanged values."""
    info = request.update_info
    return bool(
        info.description or info.owner_email or info.data or request.config.HasField("workflow_execution_retention_ttl")
    )


async def _propagate(frontend: Frontend, namespace: Namespace) -> None:
    """Send the namespace to the other clusters before the response; unreachable ones get it later."""
    if namespace.is_global and frontend.global_namespaces is not None:
        await frontend.global_namespaces.failover.propagate(namespace)


def _with_info(namespace: Namespace, info: UpdateNamespaceInfo) -> Namespace:
    """The namespace with the changes of the request; empty fields change nothing."""
    state = int(info.state) or namespace.state
    if state != namespace.state and state not in _NEXT_STATES.get(namespace.state, ()):
        raise InvalidArgument("Invalid namespace state update.")
    return replace(
        namespace,
        state=state,
        description=info.description or namespace.description,
        owner_email=info.owner_email or namespace.owner_email,
        data={**namespace.data, **info.data} if info.data else namespace.data,
    )


def _with_config(namespace: Namespace, request: UpdateNamespaceRequest) -> Namespace:
    config = request.config
    if request.delete_bad_binary:
        raise InvalidArgument(f"Bad binary checksum {request.delete_bad_binary} doesn't exists.")
    if config.bad_binaries.binaries:
        raise InvalidArgument("Bad binaries are not supported.")
    if config.custom_search_attribute_aliases:
        raise InvalidArgument("Aliases of search attributes are not supported: use AddSearchAttributes.")
    if not config.HasField("workflow_execution_retention_ttl"):
        return namespace
    return replace(namespace, retention_ns=_checked_retention(config.workflow_execution_retention_ttl))
