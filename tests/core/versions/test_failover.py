import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import FixRequest, GiveUp, RetryElsewhere
from fairlead.core.versions import (
    LOCAL_VERSION,
    ClusterVersions,
    InvalidClusters,
    NamespaceNotActive,
    NamespaceVersionStale,
    UnknownCluster,
    UnownedVersion,
)

EXAMPLE_CLUSTERS = ClusterVersions(10, {"A": 1, "B": 2})


@st.composite
def cluster_versions(draw: st.DrawFn) -> ClusterVersions:
    increment = draw(st.integers(2, 60))
    initials = draw(st.sets(st.integers(1, increment - 1), min_size=1, max_size=5))
    return ClusterVersions(increment, {f"cluster-{initial}": initial for initial in initials})


def test_a_failover_raises_the_version_of_a_namespace() -> None:
    """NDC-3: the example of the rule."""
    # T = 0: namespace alpha is registered with active data center A.
    alpha = EXAMPLE_CLUSTERS.next_version(to="A", current=LOCAL_VERSION)
    assert alpha == 1
    # T = 1: namespace beta is registered with active data center B.
    beta = EXAMPLE_CLUSTERS.next_version(to="B", current=LOCAL_VERSION)
    assert beta == 2
    # T = 2: namespace alpha is updated, and active in B now.
    alpha = EXAMPLE_CLUSTERS.next_version(to="B", current=alpha)
    assert alpha == 2
    # T = 3: namespace beta is updated, and active in A now.
    beta = EXAMPLE_CLUSTERS.next_version(to="A", current=beta)
    assert beta == 11


@given(cluster_versions(), st.integers(0, 10_000), st.data())
def test_the_next_version_is_the_smallest_one_of_the_target_cluster(
    clusters: ClusterVersions, current: int, data: st.DataObject
) -> None:
    """NDC-2, NDC-3, compared with a search one by one."""
    to = data.draw(st.sampled_from(sorted(clusters.initial_versions)))
    wanted = current
    while wanted % clusters.increment != clusters.initial_versions[to]:
        wanted += 1
    version = clusters.next_version(to=to, current=current)
    assert version == wanted
    assert clusters.owner(version) == to
    # The target is already active: the version stays.
    assert clusters.next_version(to=to, current=version) == version


@given(cluster_versions(), st.integers(-100, 10_000))
def test_a_version_belongs_to_one_cluster_or_to_none(clusters: ClusterVersions, version: int) -> None:
    owners = [
        name
        for name, initial in clusters.initial_versions.items()
        if version > 0 and version % clusters.increment == initial
    ]
    if owners:
        assert [clusters.owner(version)] == owners
    else:
        with pytest.raises(UnownedVersion, match=f"version {version} belongs to no configured cluster"):
            clusters.owner(version)


@pytest.mark.parametrize("version", [-9, -8, LOCAL_VERSION, 3, 10, 13])
def test_negative_and_unknown_versions_have_no_owner(version: int) -> None:
    with pytest.raises(UnownedVersion, match=f"version {version} belongs to no configured cluster"):
        EXAMPLE_CLUSTERS.owner(version)


@pytest.mark.parametrize(
    ("increment", "initial_versions", "message"),
    [
        (10, {}, "no cluster is configured"),
        (10, {"A": 0}, "initial version 0: it must be above 0"),
        (10, {"A": -1}, "initial version -1: it must be above 0"),
        (10, {"A": 10}, "below the shared increment 10"),
        (10, {"A": 1, "B": 1}, "'A' and 'B' both have initial version 1"),
        (10, {"": 1}, "initial version 1 has no name"),
        (0, {"A": 1}, "below the shared increment 0"),
    ],
)
def test_invalid_initial_versions_are_rejected(increment: int, initial_versions: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidClusters, match=message) as raised:
        ClusterVersions(increment, initial_versions)
    assert isinstance(raised.value, FixRequest)


def test_a_later_change_of_the_configured_mapping_has_no_effect() -> None:
    configured = {"A": 1}
    clusters = ClusterVersions(10, configured)
    configured["B"] = 1
    assert dict(clusters.initial_versions) == {"A": 1}


def test_a_failover_to_an_unknown_cluster_or_from_a_negative_version_is_rejected() -> None:
    with pytest.raises(UnknownCluster, match="'C' is not configured: use one of A, B"):
        EXAMPLE_CLUSTERS.next_version(to="C", current=1)
    with pytest.raises(UnownedVersion, match="version -9 is negative"):
        EXAMPLE_CLUSTERS.next_version(to="A", current=-9)


@pytest.mark.parametrize("last_event_version", [LOCAL_VERSION, 1, 2, 11, 12])
def test_the_active_cluster_can_write_if_no_event_is_newer(last_event_version: int) -> None:
    """NDC-5, NDC-6."""
    EXAMPLE_CLUSTERS.check_mutation(cluster="B", namespace_version=12, last_event_version=last_event_version)


def test_a_cluster_that_is_not_active_cannot_write() -> None:
    """NDC-5."""
    with pytest.raises(NamespaceNotActive) as raised:
        EXAMPLE_CLUSTERS.check_mutation(cluster="A", namespace_version=12, last_event_version=1)
    assert isinstance(raised.value, RetryElsewhere)
    assert (raised.value.current_cluster, raised.value.active_cluster) == ("A", "B")
    assert str(raised.value) == (
        "the namespace is active in cluster 'B' (version 12), not in 'A': send the request to 'B'"
    )


@pytest.mark.parametrize("last_event_version", [13, 22])
def test_a_cluster_cannot_write_after_an_event_newer_than_the_namespace_version(last_event_version: int) -> None:
    """NDC-6, even if the newer event is of the same cluster (22)."""
    with pytest.raises(NamespaceVersionStale) as raised:
        EXAMPLE_CLUSTERS.check_mutation(cluster="B", namespace_version=12, last_event_version=last_event_version)
    assert isinstance(raised.value, RetryElsewhere)
    assert f"last event has version {last_event_version}, newer than the namespace's version 12" in str(raised.value)


def test_a_local_namespace_can_be_written_by_its_only_cluster() -> None:
    EXAMPLE_CLUSTERS.check_mutation(cluster="A", namespace_version=LOCAL_VERSION, last_event_version=LOCAL_VERSION)
    with pytest.raises(NamespaceVersionStale):
        EXAMPLE_CLUSTERS.check_mutation(cluster="A", namespace_version=LOCAL_VERSION, last_event_version=1)
    # When it becomes global, its next version is above all that it has written.
    assert EXAMPLE_CLUSTERS.next_version(to="A", current=LOCAL_VERSION) > LOCAL_VERSION


def test_a_namespace_at_a_version_of_no_known_cluster_cannot_be_written() -> None:
    with pytest.raises(UnownedVersion) as raised:
        EXAMPLE_CLUSTERS.check_mutation(cluster="A", namespace_version=3, last_event_version=1)
    assert isinstance(raised.value, GiveUp)


@pytest.mark.parametrize("error", [NamespaceNotActive("A", "B", 12), NamespaceVersionStale("A", 1, 3)])
def test_errors_can_be_pickled(error: RetryElsewhere) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__
