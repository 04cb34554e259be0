"""A cluster changes and learns only the namespaces that are shared with it: three clusters, over real gRPC."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from msgspec.structs import replace

from fairlead.api.namespaces import DELETED, Namespace, configured
from fairlead.replication.messages import NamespacesRequest
from fairlead.replication.namespace_merge import replicated
from fairlead.replication.namespaces import REFUSALS_LOGGED
from fairlead.telemetry import render
from tests.replication.connected_cluster import DAY_NS, ConnectedCluster, connected_cluster, shared
from tests.replication.test_namespaces import connect

LOCAL = Namespace(id="local-id", name="payroll", retention_ns=DAY_NS, active_cluster="b", clusters=("b",))


@asynccontextmanager
async def three_clusters() -> AsyncIterator[dict[str, ConnectedCluster]]:
    """Clusters a, b and c, each connected to the two others."""
    async with connected_cluster("a", 1) as a, connected_cluster("b", 2) as b, connected_cluster("c", 3) as c:
        for one, two in ((a, b), (b, c), (a, c)):
            await connect(one, two)
        yield {"a": a, "b": b, "c": c}


async def pull_all(clusters: dict[str, ConnectedCluster], *names: str) -> None:
    """Let clusters (all, if none are named) pull from all others, twice: a change may come by another cluster."""
    for _ in range(2):
        for here in names or tuple(clusters):
            for there in clusters.keys() - {here}:
                await clusters[here].sync.pull(there)


async def set_clusters(cluster: ConnectedCluster, namespace: Namespace, *clusters: str) -> None:
    """Change the list of clusters as the frontend does."""
    await cluster.namespaces.change(namespace.id, lambda now: configured(now, replace(now, clusters=clusters)))


def clusters_of(cluster: ConnectedCluster, name: str) -> tuple[str, ...] | None:
    found = cluster.namespaces.cached(name)
    return None if found is None else found.clusters


def conflicts(cluster: ConnectedCluster, source: str) -> bool:
    _, page = render(cluster.metrics.snapshot(), "")
    return f'namespace_replication_conflicts{{source_cluster="{source}"}}'.encode() in page


# A cluster that lies


async def test_a_local_namespace_is_not_taken_over_by_a_record_with_its_id() -> None:
    async with three_clusters() as clusters:
        mine = await clusters["b"].namespaces.create(LOCAL)
        forged = shared("payroll", id=mine.id, config_version=99, version=11, description="taken over")
        await clusters["a"].namespaces.create(forged)
        for _ in range(REFUSALS_LOGGED):
            await clusters["b"].sync.pull("a")
        assert clusters["b"].namespaces.cached_id(mine.id) == mine
        assert conflicts(clusters["b"], "a")


@pytest.mark.parametrize("claimed", [("a", "b", "c"), ("b", "c"), ("c",)])
async def test_a_cluster_does_not_join_a_namespace_of_two_others_by_a_high_version(claimed: tuple[str, ...]) -> None:
    async with three_clusters() as clusters:
        made = await clusters["a"].namespaces.create(shared())
        await pull_all(clusters, "a", "b")
        forged = replace(
            made, clusters=claimed, config_version=99, failover_version=13, active_cluster="c", description="taken over"
        )
        await clusters["c"].namespaces.create(replace(forged, version=0))
        for _ in range(REFUSALS_LOGGED):
            await pull_all(clusters, "a", "b")
        for name in "ab":
            (found,) = clusters[name].namespaces.all()
            assert replicated(found) == replicated(made)


async def test_a_cluster_does_not_create_a_namespace_in_which_it_is_not() -> None:
    async with three_clusters() as clusters:
        # Cluster c creates a namespace whose list of clusters has only a and b.
        await clusters["c"].namespaces.create(shared(active="a"))
        for _ in range(REFUSALS_LOGGED):
            await pull_all(clusters, "a", "b")
        assert clusters_of(clusters["a"], "orders") is None
        assert clusters_of(clusters["b"], "orders") is None


async def test_a_cluster_does_not_delete_a_shared_namespace_by_its_state() -> None:
    async with three_clusters() as clusters:
        made = await clusters["a"].namespaces.create(shared())
        await pull_all(clusters)
        remote = clusters["b"].registry.remote("a")
        answer = await remote.namespaces(NamespacesRequest())
        payload = msgspec.msgpack.encode(replace(made, state=int(DELETED), config_version=9))
        record = replace(answer.records[0], payload=payload)
        assert not await clusters["b"].sync._take("a", record)
        assert clusters["b"].namespaces.cached("orders") is not None


@pytest.mark.parametrize("versions", [{"config_version": 1 << 60}, {"failover_version": (1 << 60) // 10 * 10 + 1}])
async def test_versions_that_leave_no_room_for_later_changes_are_refused(versions: dict[str, int]) -> None:
    async with three_clusters() as clusters:
        made = await clusters["a"].namespaces.create(shared())
        await pull_all(clusters)
        await clusters["a"].namespaces.change(made.id, lambda now: replace(now, **versions))
        await pull_all(clusters, "b")
        found = clusters["b"].namespaces.cached("orders")
        assert found is not None
        assert (found.config_version, found.failover_version) == (0, 1)


# Records that a cluster gets


async def test_a_cluster_gets_only_the_namespaces_that_are_shared_with_it() -> None:
    async with three_clusters() as clusters:
        made = await clusters["a"].namespaces.create(shared())
        answer = clusters["a"].sync.answer(NamespacesRequest(cluster="c"))
        assert answer.records == ()
        assert [one.namespace_id for one in clusters["a"].sync.answer(NamespacesRequest(cluster="b")).records] == [
            made.id
        ]
        # Its digest does not change with them either.
        await clusters["a"].namespaces.change(made.id, lambda now: replace(now, config_version=1, description="x"))
        assert clusters["a"].sync.answer(NamespacesRequest(cluster="c")).digest == answer.digest


async def test_a_cluster_that_was_removed_learns_of_that_but_of_no_later_change() -> None:
    async with three_clusters() as clusters:
        made = await clusters["a"].namespaces.create(shared(clusters=("a", "b", "c"), description="before"))
        await pull_all(clusters)
        await set_clusters(clusters["a"], made, "a", "b")
        await clusters["a"].namespaces.change(
            made.id, lambda now: configured(now, replace(now, description="secret", search_attributes={"Price": 3}))
        )
        await pull_all(clusters)
        left = clusters["c"].namespaces.cached("orders")
        assert left is not None
        assert (left.clusters, left.description, left.retention_ns) == (("a", "b"), "before", DAY_NS)
        assert left.search_attributes == {}
        for name in "ab":
            for record in clusters[name].sync.answer(NamespacesRequest(cluster="c")).records:
                assert b"secret" not in record.payload
                assert b"Price" not in record.payload


# Changes that operators make


async def test_a_cluster_that_is_added_in_the_active_one_learns_of_the_namespace() -> None:
    async with three_clusters() as clusters:
        made = await clusters["a"].namespaces.create(shared())
        await pull_all(clusters)
        await set_clusters(clusters["a"], made, "a", "b", "c")
        # The new cluster learns it first; then the third cluster pulls from the new one before it knows.
        await clusters["c"].sync.pull("a")
        await clusters["b"].sync.pull("c")
        assert clusters_of(clusters["b"], "orders") == ("a", "b")
        assert not conflicts(clusters["b"], "c")
        await pull_all(clusters)
        assert {clusters_of(one, "orders") for one in clusters.values()} == {("a", "b", "c")}
        # From now on, changes of the new cluster count in all others.
        await clusters["c"].namespaces.change(made.id, lambda now: configured(now, replace(now, description="of c")))
        await clusters["c"].namespaces.change(made.id, lambda now: replace(now, failover_version=3, active_cluster="c"))
        await pull_all(clusters)
        found = [replicated(one.namespaces.all()[0]) for one in clusters.values()]
        assert [(one.description, one.active_cluster) for one in found] == [("of c", "c")] * 3
        assert not any(conflicts(one, source) for one in clusters.values() for source in "abc")


async def test_a_cluster_that_is_added_in_a_passive_one_learns_of_the_namespace() -> None:
    async with three_clusters() as clusters:
        made = await clusters["a"].namespaces.create(shared())
        await pull_all(clusters)
        await set_clusters(clusters["b"], made, "a", "b", "c")
        await pull_all(clusters)
        assert {clusters_of(one, "orders") for one in clusters.values()} == {("a", "b", "c")}


async def test_a_removed_cluster_can_be_added_again() -> None:
    async with three_clusters() as clusters:
        made = await clusters["a"].namespaces.create(shared(clusters=("a", "b", "c")))
        await pull_all(clusters)
        await set_clusters(clusters["a"], made, "a")
        await pull_all(clusters)
        assert {clusters_of(one, "orders") for one in clusters.values()} == {("a",)}
        # A removed cluster can't add itself.
        await set_clusters(clusters["b"], made, "a", "b")
        for _ in range(REFUSALS_LOGGED):
            await pull_all(clusters, "a")
        assert clusters_of(clusters["a"], "orders") == ("a",)
        assert conflicts(clusters["a"], "b")
        for _ in range(2):
            await set_clusters(clusters["a"], made, "a", "c")
            await set_clusters(clusters["a"], made, "a", "b", "c")
        await pull_all(clusters)
        assert {clusters_of(one, "orders") for one in clusters.values()} == {("a", "b", "c")}


@pytest.mark.parametrize("description", ["", "x", "y", "z"])
async def test_a_removal_wins_against_a_change_of_the_removed_cluster_at_the_same_time(description: str) -> None:
    async with three_clusters() as clusters:
        made = await clusters["a"].namespaces.create(shared())
        await pull_all(clusters)
        await set_clusters(clusters["a"], made, "a")
        await clusters["b"].namespaces.change(
            made.id, lambda now: replace(now, config_version=1, description=description)
        )
        await pull_all(clusters)
        assert clusters_of(clusters["a"], "orders") == clusters_of(clusters["b"], "orders") == ("a",)


async def test_a_local_namespace_that_is_promoted_is_created_in_the_cluster_that_is_added() -> None:
    async with three_clusters() as clusters:
        b = clusters["b"]
        mine = await b.namespaces.create(LOCAL)
        await b.namespaces.change(mine.id, lambda now: replace(now, is_global=True, failover_version=2))
        await set_clusters(b, mine, "b", "c")
        await pull_all(clusters)
        assert clusters_of(clusters["c"], "payroll") == ("b", "c")
        assert clusters_of(clusters["a"], "payroll") is None


async def test_a_failover_is_learned_from_a_cluster_that_did_not_make_it() -> None:
    async with three_clusters() as clusters:
        made = await clusters["a"].namespaces.create(shared(clusters=("a", "b", "c")))
        await pull_all(clusters)
        await clusters["a"].namespaces.change(made.id, lambda now: replace(now, failover_version=2, active_cluster="b"))
        # a has moved it to b; c learns it from b, which has not made it.
        await clusters["b"].sync.pull("a")
        await clusters["c"].sync.pull("b")
        found = clusters["c"].namespaces.cached("orders")
        assert found is not None
        assert found.active_cluster == "b"
