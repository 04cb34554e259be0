"""The cluster that may write to a namespace, and the errors in the other clusters."""

import msgspec
import pytest
from google.protobuf.any_pb2 import Any
from temporalio.api.errordetails.v1 import NamespaceNotActiveFailure

from fairlead.api.clusters import Clusters
from fairlead.api.errors import NotActive
from fairlead.core.versions import ClusterVersions
from tests.history.shard_world import NAMESPACE

VERSIONS = ClusterVersions(10, {"a": 1, "b": 2})


def _at(version: int) -> object:
    return msgspec.structs.replace(NAMESPACE, failover_version=version, is_global=version > 0)


def test_a_local_namespace_is_active_in_its_cluster() -> None:
    clusters = Clusters()
    assert clusters.is_active(NAMESPACE)
    clusters.check_writable(NAMESPACE, last_event_version=0)


@pytest.mark.parametrize(("version", "is_active"), [(1, True), (11, True), (2, False), (12, False), (3, False)])
def test_a_global_namespace_is_active_in_the_cluster_of_its_version(version: int, is_active: bool) -> None:
    clusters = Clusters("a", VERSIONS, ["b"])
    assert clusters.is_active(_at(version)) is is_active  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "last", "active"),
    [(2, 0, "b"), (2, 1, "b"), (1, 2, "b"), (1, 12, "b"), (1, 11, "a"), (3, 0, "")],
)
def test_a_write_in_a_cluster_that_is_not_active_is_rejected_with_both_names(
    version: int, last: int, active: str
) -> None:
    clusters = Clusters("a", VERSIONS, ["b"])
    with pytest.raises(NotActive) as raised:
        clusters.check_writable(_at(version), last_event_version=last)  # type: ignore[arg-type]
    detail, packed = NamespaceNotActiveFailure(), Any.FromString(raised.value.detail)
    packed.Unpack(detail)
    assert (detail.namespace, detail.current_cluster, detail.active_cluster) == (NAMESPACE.name, "a", active)


def test_the_active_cluster_can_write_after_events_up_to_the_namespace_version() -> None:
    clusters = Clusters("a", VERSIONS, ["b"])
    for last in (0, 1, 2, 11):
        clusters.check_writable(_at(11), last_event_version=last)  # type: ignore[arg-type]


def test_an_update_replaces_all_clusters() -> None:
    clusters = Clusters("a", VERSIONS, ["b"])
    clusters.update(ClusterVersions(10, {"a": 1, "c": 3}), ["c"])
    assert clusters.remotes == {"c"}
    assert not clusters.is_active(_at(2))  # type: ignore[arg-type]
