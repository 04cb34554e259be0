"""Information about the server: version, capabilities and cluster."""

import uuid

from temporalio.api.version.v1 import ReleaseInfo, VersionInfo
from temporalio.api.workflowservice.v1 import (
    GetClusterInfoRequest,
    GetClusterInfoResponse,
    GetSystemInfoRequest,
    GetSystemInfoResponse,
)

import fairlead
from fairlead.frontend.gateway.context import Frontend, Handler
from fairlead.rpc import Call
from fairlead.storage.history import HistoryStore
from fairlead.storage.history_conflicts import MetadataConflict

# Release of Temporal's server whose API and behaviour this server has; SDKs, CLI and web UI depend on it.
SERVER_VERSION = "1.32.0"
INITIAL_FAILOVER_VERSION = 1
FAILOVER_VERSION_INCREMENT = 10
CLUSTER_ID_KEY = "cluster/id"

# Capabilities that clients may rely on; true only for features that this server has.
SYSTEM_CAPABILITIES = {
    "signal_and_query_header": True,
    "internal_error_differentiation": True,
    "activity_failure_include_heartbeat": True,
    "supports_schedules": True,
    "encoded_failure_attributes": True,
    "build_id_based_versioning": True,
    "upsert_memo": True,
    "eager_workflow_start": True,
    "sdk_metadata": True,
    "count_group_by_execution_status": True,
    "nexus": True,
    "server_scaled_deployments": False,
    "server_scaled_provider_cloud_run": False,
}

# Releases of clients that this server is for, as Temporal's server states them.
SUPPORTED_CLIENTS = {
    "Nexus-go-sdk": "<2.0.0",
    "temporal-cli": "<2.0.0",
    "temporal-go": "<2.0.0",
    "temporal-java": "<2.0.0",
    "temporal-php": "<2.0.0",
    "temporal-server": "<2.0.0",
    "temporal-typescript": "<2.0.0",
    "temporal-ui": "<3.0.0",
}

# Serialized once: the response is constant, and every client requests it first.
_SYSTEM_INFO = GetSystemInfoResponse(
    server_version=SERVER_VERSION, capabilities=GetSystemInfoResponse.Capabilities(**SYSTEM_CAPABILITIES)
).SerializeToString()
_VERSION_INFO = VersionInfo(
    current=ReleaseInfo(version=SERVER_VERSION, notes=f"Fairlead {fairlead.__version__}"),
    instructions=f"This is Fairlead {fairlead.__version__}, which speaks the API of Temporal {SERVER_VERSION}.",
)


async def read_cluster_id(store: HistoryStore) -> str:
    """The id of the store's cluster; created at the first call, and constant from then on."""
    stored = await store.read_metadata(CLUSTER_ID_KEY)
    if stored is not None:
        return stored.payload.decode()
    cluster_id = str(uuid.uuid4())
    try:
        await store.write_metadata(CLUSTER_ID_KEY, cluster_id.encode(), expected_version=0)
    except MetadataConflict as conflict:
        return cluster_id if conflict.present is None else conflict.present.payload.decode()
    return cluster_id


async def _get_system_info(_: Frontend, __: GetSystemInfoRequest, ___: Call) -> bytes:
    return _SYSTEM_INFO


def failover_versions(frontend: Frontend) -> tuple[int, int]:
    """The initial version of this cluster, and the increment that all clusters share."""
    if frontend.global_namespaces is None:
        return INITIAL_FAILOVER_VERSION, FAILOVER_VERSION_INCREMENT
    versions = frontend.global_namespaces.registry.clusters.versions
    return versions.initial_versions[frontend.cluster_name], versions.increment


async def _get_cluster_info(frontend: Frontend, _: GetClusterInfoRequest, __: Call) -> GetClusterInfoResponse:
    initial_version, increment = failover_versions(frontend)
    return GetClusterInfoResponse(
        supported_clients=SUPPORTED_CLIENTS,
        server_version=SERVER_VERSION,
        cluster_id=frontend.cluster_id,
        version_info=_VERSION_INFO,
        cluster_name=frontend.cluster_name,
        history_shard_count=frontend.shard_count,
        persistence_store=frontend.store_name,
        visibility_store=frontend.store_name,
        initial_failover_version=initial_version,
        failover_version_increment=increment,
    )


METHODS: dict[str, Handler] = {"GetSystemInfo": _get_system_info, "GetClusterInfo": _get_cluster_info}

DIFFERENCES = (
    (
        f"GetSystemInfo and GetClusterInfo give {SERVER_VERSION} as the server's version, the release of "
        "Temporal's server that Fairlead is compared with; version_info has Fairlead's own version."
    ),
    "GetSystemInfo does not have the capability server_scaled_deployments: there are no compute providers.",
)
