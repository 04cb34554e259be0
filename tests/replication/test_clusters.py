"""Which clusters a cluster knows, over real gRPC: from its configuration, and from operators."""

import asyncio
from collections.abc import Callable

import pytest

from fairlead.core.versions import UnknownCluster
from fairlead.replication.clusters import (
    PREFIX,
    ClusterRefused,
    ClusterRegistry,
    ClusterUnreachable,
    NotConnected,
    NotThatCluster,
    UnreadableCluster,
)
from fairlead.replication.grpc_remote import GrpcRemote
from fairlead.replication.remote import RemoteUnavailable
from fairlead.settings.static import RemoteClusterConfig
from fairlead.storage.history_contract import StoredMetadata
from tests.replication.sharing import sharing

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


async def test_a_configured_cluster_is_connected_with_once_it_has_said_who_it_is() -> None:
    async with (
        sharing("b", 2, shards=7) as b,
        sharing("a", 1, remotes={"b": RemoteClusterConfig(2, b.address)}) as a,
    ):
        clusters = a.registry.clusters
        assert (clusters.here, clusters.remotes) == ("a", frozenset({"b"}))
        assert clusters.versions.initial_versions == {"a": 1, "b": 2}
        await until(lambda: is_connected(a.registry, "b"))
        [known] = a.registry.remotes()
        assert (known.name, known.cluster_id, known.shards, known.address) == ("b", "id of b", 7, b.address)
        assert (await a.registry.remote("b").info()).name == "b"


async def test_a_cluster_that_is_down_is_one_that_streams_are_kept_for() -> None:
    async with sharing("a", 1, remotes={"b": RemoteClusterConfig(2, NOWHERE)}) as a:
        assert a.registry.clusters.remotes == {"b"}
        with pytest.raises(NotConnected, match=r"'b' at 127\.0\.0\.1:1 has not answered yet"):
            a.registry.remote("b")
        with pytest.raises(UnknownCluster, match="'c' is not known here; the other clusters are: b"):
            a.registry.remote("c")


@pytest.mark.parametrize(("name", "initial", "increment"), [("c", 2, 10), ("b", 3, 10), ("b", 2, 100)])
async def test_nothing_is_exchanged_with_a_cluster_that_is_not_the_one_that_is_configured(
    name: str, initial: int, increment: int
) -> None:
    async with (
        sharing(name, initial, increment=increment) as other,
        sharing("a", 1, remotes={"b": RemoteClusterConfig(2, other.address)}) as a,
    ):
        with pytest.raises(NotThatCluster, match="nothing is exchanged with it until they agree"):
            await until(lambda: is_connected(a.registry, "b"))


async def test_a_cluster_that_is_added_is_stored_and_known_at_other_hosts() -> None:
    async with sharing("b", 2) as b, sharing("a", 1) as a, sharing("a", 1, store=a.store) as other_host:
        added = await a.registry.add(b.address, is_connected=True, is_replicated=True)
        assert (added.name, added.cluster_id, added.initial_version) == ("b", "id of b", 2)
        assert a.registry.clusters.remotes == {"b"}
        assert a.registry.clusters.versions.next_version(to="b", current=1) == 2
        await until(lambda: is_connected(other_host.registry, "b"))
        await a.registry.add(b.address, is_connected=False, is_replicated=False)
        assert a.registry.clusters.remotes == frozenset()
        # Its versions are its own all the same.
        assert a.registry.clusters.versions.owner(12) == "b"
        with pytest.raises(NotConnected, match="not to be connected to"):
            a.registry.remote("b")
        await a.registry.remove("b")
        assert a.registry.clusters.versions.initial_versions == {"a": 1}
        assert await a.store.read_metadata(PREFIX + "b") is None
        await until(lambda: not other_host.registry.remotes())


async def test_a_cluster_that_moved_is_found_at_its_new_address() -> None:
    async with sharing("a", 1) as a:
        async with sharing("b", 2) as before:
            await a.registry.add(before.address, is_connected=True, is_replicated=True)
        async with sharing("b", 2) as after:
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
        ("c", 6, 10, "cluster 'c' has initial version 5 here, and says itself 6"),
    ],
)
async def test_a_cluster_that_does_not_fit_is_refused_and_nothing_changes(
    name: str, initial: int, increment: int, message: str
) -> None:
    async with (
        sharing(name, initial, increment=increment) as other,
        sharing("a", 1, remotes={"c": RemoteClusterConfig(5, NOWHERE)}) as a,
    ):
        with pytest.raises(ClusterRefused, match=message):
            await a.registry.add(other.address, is_connected=True, is_replicated=True)
        assert a.registry.clusters.remotes == {"c"}
        assert await a.store.list_metadata(prefix=PREFIX, after=None, limit=10) == []


async def test_an_address_where_nobody_answers_is_told() -> None:
    async with sharing("a", 1) as a:
        with pytest.raises(ClusterUnreachable, match=r"no cluster answers at 127\.0\.0\.1:1 "):
            await a.registry.add(NOWHERE, is_connected=True, is_replicated=True)
        assert a.registry.remotes() == []


async def test_what_is_configured_can_not_be_removed_while_it_runs() -> None:
    async with sharing("a", 1, remotes={"b": RemoteClusterConfig(2, NOWHERE)}) as a:
        with pytest.raises(ClusterRefused, match="is in the configuration: take it out"):
            await a.registry.remove("b")
        with pytest.raises(UnknownCluster):
            await a.registry.remove("c")


async def test_a_row_that_can_not_be_read_changes_nothing_and_those_after_it_are_seen_once_it_is_gone() -> None:
    async with sharing("b", 2) as b, sharing("a", 1) as a, sharing("a", 1, store=a.store) as other_host:
        version = await a.store.write_metadata(PREFIX + "c", b"\xc1", expected_version=0)
        with pytest.raises(UnreadableCluster, match="clusters/c can't be read"):
            await a.registry.refresh()
        await asyncio.sleep(0.1)
        await a.store.delete_metadata(PREFIX + "c", expected_version=version)
        await a.registry.add(b.address, is_connected=True, is_replicated=True)
        await until(lambda: is_connected(other_host.registry, "b"))


async def test_whatever_fails_clusters_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sharing("b", 2) as b, sharing("a", 1) as a, sharing("a", 1, store=a.store) as other_host:
        failed = asyncio.Event()

        async def fail(**_: object) -> list[StoredMetadata]:
            failed.set()
            raise RuntimeError("a bug")

        with monkeypatch.context() as broken:
            broken.setattr(a.store, "list_metadata", fail)
            await asyncio.wait_for(failed.wait(), 5)
        await a.registry.add(b.address, is_connected=True, is_replicated=True)
        await until(lambda: is_connected(other_host.registry, "b"))


async def test_a_connection_that_is_closed_is_one_to_a_cluster_that_does_not_answer() -> None:
    async with sharing("a", 1) as a:
        remote = GrpcRemote(a.address, here="b")
        await remote.close()
        with pytest.raises(RemoteUnavailable, match="it was closed"):
            await remote.info()


async def test_what_was_stored_yields_to_a_configuration_that_contradicts_it() -> None:
    async with sharing("b", 2) as b, sharing("a", 1) as a:
        await a.registry.add(b.address, is_connected=True, is_replicated=True)
        store = a.store
    async with sharing("a", 1, remotes={"c": RemoteClusterConfig(2, NOWHERE)}, store=store) as later:
        assert later.registry.clusters.versions.initial_versions == {"a": 1, "c": 2}
