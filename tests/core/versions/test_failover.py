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

SEED_CLUSTERS = ClusterVersions(10, {"A": 1, "B": 2})


@st.composite
def cluster_versions(draw: st.DrawFn) -> ClusterVersions:
    increment = draw(st.integers(2, 60))
    initials = draw(st.sets(st.integers(1, increment - 1), min_size=1, max_size=5))
    return ClusterVersions(increment, {f"cluster-{initial}": initial for initial in initials})


def test_the_versions_of_domains_change_as_in_the_document() -> None:
    """Seed 004, 'Version', domain version change example, T = 0 to T = 3."""
    # T = 0: domain alpha is registered with active data center A.
    alpha = SEED_CLUSTERS.next_version(to="A", current=LOCAL_VERSION)
    assert alpha == 1
    # T = 1: domain beta is registered with active data center B.
    beta = SEED_CLUSTERS.next_version(to="B", current=LOCAL_VERSION)
    assert beta == 2
    # T = 2: domain alpha is updated, active in B now.
    alpha = SEED_CLUSTERS.next_version(to="B", current=alpha)
    assert alpha == 2
    # T = 3: domain beta is updated, active in A now.
    beta = SEED_CLUSTERS.next_version(to="A", current=beta)
    assert beta == 11


@given(cluster_versions(), st.integers(0, 10_000), st.data())
def test_the_next_version_is_the_smallest_that_belongs_to_the_target(
    clusters: ClusterVersions, current: int, data: st.DataObject
) -> None:
    """Seed 004, 'Version'; invariant 3, against a search one by one."""
    to = data.draw(st.sampled_from(sorted(clusters.initial_versions)))
    wanted = current
    while wanted % clusters.increment != clusters.initial_versions[to]:
        wanted += 1
    version = clusters.next_version(to=to, current=current)
    assert version == wanted
    assert clusters.owner(version) == to
    # To the cluster that is active already: nothing changes.
    assert clusters.next_version(to=to, current=version) == version


@given(cluster_versions(), st.integers(-100, 10_000))
def test_a_version_belongs_to_one_cluster_or_to_nobody(clusters: ClusterVersions, version: int) -> None:
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
def test_a_version_of_no_cluster_has_no_owner_though_a_negative_one_has_a_remainder(version: int) -> None:
    with pytest.raises(UnownedVersion, match=f"version {version} belongs to no configured cluster"):
        SEED_CLUSTERS.owner(version)


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
def test_clusters_that_versions_cannot_tell_apart_are_refused(
    increment: int, initial_versions: dict[str, int], message: str
) -> None:
    with pytest.raises(InvalidClusters, match=message) as refused:
        ClusterVersions(increment, initial_versions)
    assert isinstance(refused.value, FixRequest)


def test_the_configuration_does_not_change_behind_its_back() -> None:
    configured = {"A": 1}
    clusters = ClusterVersions(10, configured)
    configured["B"] = 1
    assert dict(clusters.initial_versions) == {"A": 1}


def test_a_failover_to_an_unknown_cluster_or_from_a_negative_version_is_refused() -> None:
    with pytest.raises(UnknownCluster, match="'C' is not configured: use one of A, B"):
        SEED_CLUSTERS.next_version(to="C", current=1)
    with pytest.raises(UnownedVersion, match="version -9 is negative"):
        SEED_CLUSTERS.next_version(to="A", current=-9)


@pytest.mark.parametrize("last_event_version", [LOCAL_VERSION, 1, 2, 11, 12])
def test_a_cluster_writes_where_the_version_is_its_own_and_no_event_is_newer(last_event_version: int) -> None:
    """Seed 004, 'Version', 'A data center can mutate a workflow if and only if'."""
    SEED_CLUSTERS.check_mutation(cluster="B", namespace_version=12, last_event_version=last_event_version)


def test_a_cluster_does_not_write_where_the_version_is_another_clusters() -> None:
    """Seed 004, 'Version', first condition of the mutation rule; invariant 4."""
    with pytest.raises(NamespaceNotActive) as refused:
        SEED_CLUSTERS.check_mutation(cluster="A", namespace_version=12, last_event_version=1)
    assert isinstance(refused.value, RetryElsewhere)
    assert (refused.value.current_cluster, refused.value.active_cluster) == ("A", "B")
    assert str(refused.value) == (
        "the namespace is active in cluster 'B' (version 12), not in 'A': send the request to 'B'"
    )


@pytest.mark.parametrize("last_event_version", [13, 22])
def test_a_cluster_does_not_write_after_an_event_newer_than_its_version(last_event_version: int) -> None:
    """Seed 004, 'Version', second condition; also where the newer event is of the same cluster (22)."""
    with pytest.raises(NamespaceVersionStale) as refused:
        SEED_CLUSTERS.check_mutation(cluster="B", namespace_version=12, last_event_version=last_event_version)
    assert isinstance(refused.value, RetryElsewhere)
    assert f"last event has version {last_event_version}, newer than the namespace's version 12" in str(refused.value)


def test_a_local_namespace_is_written_to_by_the_one_cluster_that_has_it() -> None:
    SEED_CLUSTERS.check_mutation(cluster="A", namespace_version=LOCAL_VERSION, last_event_version=LOCAL_VERSION)
    with pytest.raises(NamespaceVersionStale):
        SEED_CLUSTERS.check_mutation(cluster="A", namespace_version=LOCAL_VERSION, last_event_version=1)
    # Replicated from now on: its next version is above all that it has written.
    assert SEED_CLUSTERS.next_version(to="A", current=LOCAL_VERSION) > LOCAL_VERSION


def test_a_namespace_at_a_version_of_no_known_cluster_is_not_written_to() -> None:
    with pytest.raises(UnownedVersion) as refused:
        SEED_CLUSTERS.check_mutation(cluster="A", namespace_version=3, last_event_version=1)
    assert isinstance(refused.value, GiveUp)


@pytest.mark.parametrize("error", [NamespaceNotActive("A", "B", 12), NamespaceVersionStale("A", 1, 3)])
def test_a_refusal_survives_being_sent_to_another_process(error: RetryElsewhere) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__
