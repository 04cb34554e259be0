"""The clusters that a cluster knows, over real gRPC: from its configuration, and from operators."""

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from fairlead.core.versions import UnknownCluster
from fairlead.replication.clusters import (
    PREFIX,
    ClusterRegistry,
    ClusterRejected,
    ClusterUnreachable,
    NotConnected,
    NotThatCluster,
    UnreadableCluster,
)
from fairlead.replication.grpc_remote import GrpcRemote
from fairlead.replication.remote import RemoteUnavailable
from fairlead.rpc import RpcServer
from fairlead.settings.static.config import RemoteClusterConfig
from fairlead.storage.history import StoredMetadata
from tests.replication.connected_cluster import connected_cluster

NOWHERE = "127.0.0.1:1"


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - it happens in a loop of its own
            await asyncio.sleep(0.01)


def is_connected(registry: ClusterRegistry, name: str) -> bool:
    try:
        registry.remote(name)
    except (UnknownCluster, NotConnected):
        return False
    return True


async def test_a_configured_cluster_is_connected_once_it_has_sent_its_name() -> None:
    async with (
        connected_cluster("b", 2, shards=7) as b,
        connected_cluster("a", 1, remotes={"b": RemoteClusterConfig(2, b.address)}) as a,
    ):
        clusters = a.registry.clusters
        assert (clusters.here, clusters.remotes) == ("a", frozenset({"b"}))
        assert clusters.versions.initial_versions == {"a": 1, "b": 2}
        await until(lambda: is_connected(a.registry, "b"))
        [known] = a.registry.remotes()
        assert (known.name, known.cluster_id, known.shards, known.address) == ("b", "id of b", 7, b.address)
        assert (await a.registry.remote("b").info()).name == "b"


async def test_streams_are_kept_for_a_cluster_that_is_down() -> None:
    async with connected_cluster("a", 1, remotes={"b": RemoteClusterConfig(2, NOWHERE)}) as a:
        assert a.registry.clusters.remotes == {"b"}
        with pytest.raises(NotConnected, match=r"'b' at 127\.0\.0\.1:1 has not responded yet"):
            a.registry.remote("b")
        with pytest.raises(UnknownCluster, match="'c' is not known here; the other clusters are: b"):
            a.registry.remote("c")


@pytest.mark.parametrize(("name", "initial", "increment"), [("c", 2, 10), ("b", 3, 10), ("b", 2, 100)])
async def test_a_cluster_with_another_name_than_the_configured_one_is_not_connected(
    name: str, initial: int, increment: int
) -> None:
    async with (
        connected_cluster(name, initial, increment=increment) as other,
        connected_cluster("a", 1, remotes={"b": RemoteClusterConfig(2, other.address)}) as a,
    ):
        with pytest.raises(NotThatCluster, match="nothing is exchanged until both configurations agree"):
            await until(lambda: is_connected(a.registry, "b"))


async def test_an_added_cluster_is_stored_and_becomes_known_to_other_hosts() -> None:
    async with (
        connected_cluster("b", 2) as b,
        connected_cluster("a", 1) as a,
        connected_cluster("a", 1, store=a.store) as other_host,
    ):
        added = await a.registry.add(b.address, is_connected=True, is_replicated=True)
        assert (added.name, added.cluster_id, added.initial_version) == ("b", "id of b", 2)
        assert a.registry.clusters.remotes == {"b"}
        assert a.registry.clusters.versions.next_version(to="b", current=1) == 2
        await until(lambda: is_connected(other_host.registry, "b"))
        await a.registry.add(b.address, is_connected=False, is_replicated=False)
        assert a.registry.clusters.remotes == frozenset()
        # Its failover versions are valid all the same.
        assert a.registry.clusters.versions.owner(12) == "b"
        with pytest.raises(NotConnected, match="is disabled: enable its connection"):
            a.registry.remote("b")
        await a.registry.remove("b")
        assert a.registry.clusters.versions.initial_versions == {"a": 1}
        assert await a.store.read_metadata(PREFIX + "b") is None
        await until(lambda: not other_host.registry.remotes())


async def test_a_cluster_that_moved_is_found_at_its_new_address() -> None:
    async with connected_cluster("a", 1) as a:
        async with connected_cluster("b", 2) as before:
            await a.registry.add(before.address, is_connected=True, is_replicated=True)
        async with connected_cluster("b", 2) as after:
            await a.registry.add(after.address, is_connected=True, is_replicated=True)
            await until(lambda: is_connected(a.registry, "b"))
            assert (await a.registry.remote("b").info()).name == "b"
            assert a.registry.address("b") == after.address


@pytest.mark.parametrize(
    ("name", "initial", "increment", "message"),
    [
        ("a", 3, 10, "Cannot update current cluster metadata from rpc calls"),
        ("b", 2, 20, "Cannot add remote cluster due to failover version increment mismatch"),
        ("b", 1, 10, "Cannot add remote cluster due to initial failover version conflict"),
        ("b", 5, 10, "Cannot add remote cluster due to initial failover version conflict"),
        ("c", 6, 10, "cluster 'c' is known here with initial version 5, but it reports 6"),
    ],
)
async def test_a_cluster_that_does_not_fit_is_refused_and_nothing_changes(
    name: str, initial: int, increment: int, message: str
) -> None:
    async with (
        connected_cluster(name, initial, increment=increment) as other,
        connected_cluster("a", 1, remotes={"c": RemoteClusterConfig(5, NOWHERE)}) as a,
    ):
        with pytest.raises(ClusterRejected, match=message):
            await a.registry.add(other.address, is_connected=True, is_replicated=True)
        assert a.registry.clusters.remotes == {"c"}
        assert await a.store.list_metadata(prefix=PREFIX, after=None, limit=10) == []


async def test_an_unreachable_address_is_reported() -> None:
    async with connected_cluster("a", 1) as a:
        with pytest.raises(ClusterUnreachable, match=r"no cluster responds at 127\.0\.0\.1:1: check"):
            await a.registry.add(NOWHERE, is_connected=True, is_replicated=True)
        assert a.registry.remotes() == []


async def test_a_configured_cluster_can_not_be_removed_by_an_operator() -> None:
    async with connected_cluster("a", 1, remotes={"b": RemoteClusterConfig(2, NOWHERE)}) as a:
        with pytest.raises(ClusterRejected, match="is in the configuration: remove it"):
            await a.registry.remove("b")
        with pytest.raises(UnknownCluster):
            await a.registry.remove("c")


async def test_an_unreadable_row_changes_nothing_and_blocks_later_rows_until_it_is_deleted() -> None:
    async with (
        connected_cluster("b", 2) as b,
        connected_cluster("a", 1) as a,
        connected_cluster("a", 1, store=a.store) as other_host,
    ):
        version = await a.store.write_metadata(PREFIX + "c", b"\xc1", expected_version=0)
        with pytest.raises(UnreadableCluster, match="clusters/c can't be decoded"):
            await a.registry.refresh()
        # The other host refreshes its list of clusters several times, and must survive the unreadable row.
        await asyncio.sleep(0.1)
        await a.store.delete_metadata(PREFIX + "c", expected_version=version)
        await a.registry.add(b.address, is_connected=True, is_replicated=True)
        await until(lambda: is_connected(other_host.registry, "b"))


async def test_the_list_of_clusters_is_refreshed_again_after_any_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        connected_cluster("b", 2) as b,
        connected_cluster("a", 1) as a,
        connected_cluster("a", 1, store=a.store) as other_host,
    ):
        failed = asyncio.Event()

        async def fail(**_: object) -> list[StoredMetadata]:
            failed.set()
            raise RuntimeError("a bug")

        with monkeypatch.context() as broken:
            broken.setattr(a.store, "list_metadata", fail)
            await asyncio.wait_for(failed.wait(), 5)
        await a.registry.add(b.address, is_connected=True, is_replicated=True)
        await until(lambda: is_connected(other_host.registry, "b"))


async def test_a_call_on_a_closed_connection_fails_as_unreachable() -> None:
    async with connected_cluster("a", 1) as a:
        remote = GrpcRemote(a.address, here="b")
        await remote.close()
        with pytest.raises(RemoteUnavailable, match="the connection is closed"):
            await remote.info()


async def test_the_configuration_overrides_a_contradicting_stored_cluster() -> None:
    async with connected_cluster("b", 2) as b, connected_cluster("a", 1) as a:
        await a.registry.add(b.address, is_connected=True, is_replicated=True)
        store = a.store
    async with connected_cluster("a", 1, remotes={"c": RemoteClusterConfig(2, NOWHERE)}, store=store) as later:
        assert later.registry.clusters.versions.initial_versions == {"a": 1, "c": 2}


# cluster.allowedAddresses


async def test_a_stored_cluster_is_disconnected_when_its_address_is_no_longer_allowed() -> None:
    async with connected_cluster("b", 2) as b, connected_cluster("a", 1) as a:
        await a.registry.add(b.address, is_connected=True, is_replicated=True)
        await until(lambda: is_connected(a.registry, "b"))
        async with connected_cluster("a", 1, store=a.store, allowed_addresses=("10.0.0.0/8",)) as later:
            assert later.registry.clusters.remotes == frozenset()
            with pytest.raises(NotConnected, match=r"not one to which this cluster may connect"):
                later.registry.remote("b")
            # Calls are not forwarded there either.
            with pytest.raises(NotConnected, match=r"add it to cluster\.allowedAddresses"):
                later.registry.address("b")
            # Its failover versions are valid all the same, and operators see it.
            assert later.registry.clusters.versions.owner(12) == "b"
            assert [(one.name, one.is_connected) for one in later.registry.remotes()] == [("b", False)]
        async with connected_cluster("a", 1, store=a.store, allowed_addresses=("127.0.0.1",)) as again:
            await until(lambda: is_connected(again.registry, "b"))


async def test_the_address_of_the_configuration_needs_no_permission_and_replaces_a_forbidden_one() -> None:
    remotes = {"b": RemoteClusterConfig(2, NOWHERE)}
    async with connected_cluster("b", 2) as b, connected_cluster("a", 1, remotes=remotes) as a:
        await a.registry.add(b.address, is_connected=True, is_replicated=True)
        assert a.registry.address("b") == b.address
        allowed = ("10.0.0.0/8",)
        async with connected_cluster("a", 1, remotes=remotes, store=a.store, allowed_addresses=allowed) as later:
            assert later.registry.address("b") == NOWHERE
        remotes = {"b": RemoteClusterConfig(2, b.address)}
        async with connected_cluster("a", 1, remotes=remotes, allowed_addresses=allowed) as another:
            await until(lambda: is_connected(another.registry, "b"))


async def test_an_address_that_is_not_allowed_explicitly_is_not_described() -> None:
    """Otherwise the server would be a port scanner: only its log says why no cluster responds."""
    closed = RpcServer("127.0.0.1:0")
    address = await closed.start()
    web = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    host, port = web.sockets[0].getsockname()[:2]
    targets = (address, f"{host}:{port}", NOWHERE)
    try:
        async with connected_cluster("a", 1) as a, connected_cluster("c", 3, allowed_addresses=("127.0.0.1",)) as c:
            texts, reasons = set(), set()
            for target in targets:
                with pytest.raises(ClusterUnreachable) as refused, capture_logs() as logs:
                    await a.registry.add(target, is_connected=True, is_replicated=True)
                texts.add(str(refused.value).replace(target, "X"))
                [logged] = [each for each in logs if each["event"] == "cluster not added"]
                reasons.add(logged["reason"].replace(target, "X"))
                with pytest.raises(ClusterUnreachable) as described:
                    await c.registry.add(target, is_connected=True, is_replicated=True)
                assert logged["reason"].split(" at ")[0] in str(described.value)
            assert len(texts) == 1
            assert len(reasons) == len(targets)
    finally:
        web.close()
        await closed.stop(0)
