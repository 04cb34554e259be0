"""Global namespaces as clients register and change them, with the error messages of Temporal's server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import NamespaceState, ReplicationState
from temporalio.api.namespace.v1 import NamespaceConfig, UpdateNamespaceInfo
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.replication.v1 import ClusterReplicationConfig, NamespaceReplicationConfig
from temporalio.api.workflowservice.v1 import (
    DeprecateNamespaceRequest,
    DescribeNamespaceRequest,
    GetClusterInfoRequest,
    RegisterNamespaceRequest,
    UpdateNamespaceRequest,
)

from fairlead.frontend.gateway.context import GlobalNamespaces
from fairlead.replication.clusters import ClusterRegistry
from fairlead.replication.failover import Failover
from fairlead.replication.grpc_remote import GrpcRemote
from fairlead.settings.static.config import ClusterConfig, RemoteClusterConfig
from tests.frontend.served import Serving, code_and_message, serving

DAY_S = 86_400


class _NoShards:
    """A frontend without a history service: changes of namespaces are not published."""

    async def call_shard(self, *_: Any, **__: Any) -> bytes:
        return b""


@pytest.fixture
async def served() -> AsyncIterator[Serving]:
    """Cluster a, connected to b and c, which do not respond."""
    remotes = {name: RemoteClusterConfig(number, f"127.0.0.1:{number}") for name, number in (("b", 2), ("c", 3))}
    async with serving() as served:
        registry = ClusterRegistry(
            served.frontend.store,
            ClusterConfig("a", 1, 10, remotes),
            connect=lambda address: GrpcRemote(address, here="a"),
            refresh_s=60.0,
        )
        await registry.open()
        nobody: Any = _NoShards()
        failover = Failover(
            clusters=registry.clusters,
            remotes=registry.remote,
            namespaces=served.frontend.namespaces,
            history=nobody,
            shards=1,
            clock_ns=lambda: 1,
        )
        served.frontend.cluster_name = "a"
        served.frontend.global_namespaces = GlobalNamespaces(registry, failover)
        yield served
        await registry.close()


def place(active: str = "", *clusters: str, **fields: Any) -> NamespaceReplicationConfig:
    return NamespaceReplicationConfig(
        active_cluster_name=active,
        clusters=[ClusterReplicationConfig(cluster_name=name) for name in clusters],
        **fields,
    )


def register(active: str = "a", *clusters: str, **fields: Any) -> RegisterNamespaceRequest:
    asked = {
        "namespace": "orders",
        "workflow_execution_retention_period": Duration(seconds=DAY_S),
        "is_global_namespace": True,
        **fields,
    }
    return RegisterNamespaceRequest(
        active_cluster_name=active, clusters=[ClusterReplicationConfig(cluster_name=name) for name in clusters], **asked
    )


def update(**fields: Any) -> UpdateNamespaceRequest:
    return UpdateNamespaceRequest(**{"namespace": "orders", **fields})


async def described(served: Serving, name: str = "orders") -> Any:
    return await served.workflow.DescribeNamespace(DescribeNamespaceRequest(namespace=name))


def stored_version(served: Serving) -> int:
    namespace = served.frontend.namespaces.cached("orders")
    assert namespace is not None
    return namespace.config_version


async def test_a_global_namespace_begins_at_the_first_version_of_its_active_cluster(served: Serving) -> None:
    await served.workflow.RegisterNamespace(register("b", "a", "b", "b"))
    now = await described(served)
    assert (now.is_global_namespace, now.failover_version) == (True, 2)
    assert now.replication_config == place("b", "a", "b", state=ReplicationState.REPLICATION_STATE_NORMAL)
    assert not now.failover_history


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (register("x", "a"), "Invalid cluster name: x"),
        (register("a", "a", "x"), "Invalid cluster name: x"),
        (register("c", "a", "b"), "Active cluster is not contained in all clusters."),
        (
            register(workflow_execution_retention_period=Duration(seconds=DAY_S - 1)),
            "A valid retention period is not set on request.",
        ),
        (register("b", "b", is_global_namespace=False), "Invalid local namespace active cluster"),
        (register("a", "a", "b", is_global_namespace=False), "Invalid local namespace clusters"),
    ],
)
async def test_an_invalid_registration_is_refused(
    served: Serving, request_: RegisterNamespaceRequest, message: str
) -> None:
    assert await code_and_message(served.workflow.RegisterNamespace(request_)) == ("INVALID_ARGUMENT", message)
    assert served.frontend.namespaces.cached("orders") is None


async def test_a_namespaces_configuration_and_failover_have_separate_versions(served: Serving) -> None:
    await served.workflow.RegisterNamespace(register("a", "a", "b"))
    await served.workflow.UpdateNamespace(update(update_info=UpdateNamespaceInfo(description="x")))
    assert stored_version(served) == 1
    moved = await served.workflow.UpdateNamespace(update(replication_config=place("b")))
    assert (moved.failover_version, moved.replication_config.active_cluster_name) == (2, "b")
    assert stored_version(served) == 1
    await served.workflow.UpdateNamespace(update(replication_config=place("", "a", "b", "c")))
    attributes = AddSearchAttributesRequest(namespace="orders")
    attributes.search_attributes["Customer"] = 2  # type: ignore[assignment]
    await served.operator.AddSearchAttributes(attributes)
    await served.workflow.DeprecateNamespace(DeprecateNamespaceRequest(namespace="orders"))
    assert stored_version(served) == 4
    # A failover to the cluster that is already active changes nothing.
    again = await served.workflow.UpdateNamespace(update(replication_config=place("b")))
    assert again.failover_version == 2
    back = await served.workflow.UpdateNamespace(update(replication_config=place("a")))
    assert back.failover_version == 11
    now = await described(served)
    assert [status.failover_version for status in now.failover_history] == [2, 11]
    assert [cluster.cluster_name for cluster in now.replication_config.clusters] == ["a", "b", "c"]


BOTH = "Cannot set active cluster to current cluster when other parameters are set."


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (update(replication_config=place("b"), update_info=UpdateNamespaceInfo(description="x")), BOTH),
        (update(replication_config=place("b", "a", "b", "c")), BOTH),
        (
            update(
                replication_config=place("b"),
                config=NamespaceConfig(workflow_execution_retention_ttl=Duration(seconds=DAY_S)),
            ),
            BOTH,
        ),
        (update(replication_config=place("x")), "Invalid cluster name: x"),
        (update(replication_config=place("c")), "Active cluster is not contained in all clusters."),
        (update(replication_config=place("", "b")), "Active cluster is not contained in all clusters."),
        (
            update(replication_config=place(state=ReplicationState.REPLICATION_STATE_HANDOVER)),
            "Handover is set by a graceful failover only: use `fairlead admin failover --graceful`.",
        ),
        (
            update(update_info=UpdateNamespaceInfo(state=NamespaceState.NAMESPACE_STATE_DELETED)),
            "Invalid namespace state update.",
        ),
    ],
)
async def test_an_invalid_change_is_refused_and_changes_nothing(
    served: Serving, request_: UpdateNamespaceRequest, message: str
) -> None:
    await served.workflow.RegisterNamespace(register("a", "a", "b"))
    before = await described(served)
    assert await code_and_message(served.workflow.UpdateNamespace(request_)) == ("INVALID_ARGUMENT", message)
    assert await described(served) == before


async def test_a_local_namespace_belongs_to_this_cluster_and_can_be_promoted(served: Serving) -> None:
    # Registered before the cluster had a name.
    before = await described(served, "default")
    assert before.replication_config == place("a", "a", state=ReplicationState.REPLICATION_STATE_NORMAL)
    local = served.workflow.UpdateNamespace(update(namespace="default", replication_config=place("", "a", "b")))
    assert await code_and_message(local) == ("INVALID_ARGUMENT", "Invalid local namespace clusters")
    await served.workflow.UpdateNamespace(update(namespace="default", promote_namespace=True))
    promoted = await described(served, "default")
    assert (promoted.is_global_namespace, promoted.failover_version) == (True, 1)
    wider = await served.workflow.UpdateNamespace(update(namespace="default", replication_config=place("", "a", "b")))
    assert [cluster.cluster_name for cluster in wider.replication_config.clusters] == ["a", "b"]


async def test_the_cluster_info_has_the_failover_versions(served: Serving) -> None:
    info = await served.workflow.GetClusterInfo(GetClusterInfoRequest())
    assert (info.cluster_name, info.initial_failover_version, info.failover_version_increment) == ("a", 1, 10)
