"""Who may write for a namespace, and what the others are told."""

import msgspec
import pytest
from google.protobuf.any_pb2 import Any
from temporalio.api.errordetails.v1 import NamespaceNotActiveFailure

from fairlead.core.versions import ClusterVersions
from fairlead.history.clusters import Clusters, is_not_active
from fairlead.history.refusals import Refused, not_found
from fairlead.rpc import Code
from tests.history.shard_world import NAMESPACE

VERSIONS = ClusterVersions(10, {"a": 1, "b": 2})


def _at(version: int) -> object:
    return msgspec.structs.replace(NAMESPACE, failover_version=version, is_global=version > 0)


def test_a_local_namespace_is_active_where_it_is() -> None:
    clusters = Clusters()
    assert clusters.is_active(NAMESPACE)
    clusters.check_writable(NAMESPACE, last_event_version=0)


@pytest.mark.parametrize(("version", "is_active"), [(1, True), (11, True), (2, False), (12, False), (3, False)])
def test_a_shared_namespace_is_active_in_the_cluster_that_its_version_belongs_to(version: int, is_active: bool) -> None:
    clusters = Clusters("a", VERSIONS, ["b"])
    assert clusters.is_active(_at(version)) is is_active  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "last", "active"),
    [(2, 0, "b"), (2, 1, "b"), (1, 2, "b"), (1, 12, "b"), (1, 11, "a"), (3, 0, "")],
)
def test_a_write_that_is_another_clusters_is_refused_with_both_names(version: int, last: int, active: str) -> None:
    clusters = Clusters("a", VERSIONS, ["b"])
    with pytest.raises(Refused) as refused:
        clusters.check_writable(_at(version), last_event_version=last)  # type: ignore[arg-type]
    assert refused.value.code == Code.FAILED_PRECONDITION
    assert is_not_active(refused.value)
    detail, packed = NamespaceNotActiveFailure(), Any.FromString(refused.value.detail)
    packed.Unpack(detail)
    assert (detail.namespace, detail.current_cluster, detail.active_cluster) == (NAMESPACE.name, "a", active)


def test_a_write_at_the_namespaces_version_or_behind_it_is_this_clusters() -> None:
    clusters = Clusters("a", VERSIONS, ["b"])
    for last in (0, 1, 2, 11):
        clusters.check_writable(_at(11), last_event_version=last)  # type: ignore[arg-type]


def test_clusters_are_replaced_as_a_whole() -> None:
    clusters = Clusters("a", VERSIONS, ["b"])
    clusters.update(ClusterVersions(10, {"a": 1, "c": 3}), ["c"])
    assert clusters.remotes == {"c"}
    assert not clusters.is_active(_at(2))  # type: ignore[arg-type]


def test_other_refusals_are_not_taken_for_it() -> None:
    assert not is_not_active(not_found("gone"))
    assert not is_not_active(ValueError())
