"""Namespaces are the same in all clusters, over real gRPC: each cluster pulls from the others and merges."""

import asyncio
from typing import cast

import pytest
from msgspec.structs import replace

from fairlead.api.errors import ApiError
from fairlead.api.namespaces import DELETED, Namespace
from fairlead.replication import namespaces as module
from fairlead.replication.messages import NamespacesRequest, NamespacesResponse
from fairlead.replication.namespace_merge import replicated
from fairlead.replication.remote import Remote
from fairlead.settings.static.config import RemoteClusterConfig
from fairlead.telemetry import render
from tests.replication.connected_cluster import ConnectedCluster, connected_cluster, shared
from tests.replication.test_clusters import is_connected, until


async def connect(one: ConnectedCluster, two: ConnectedCluster) -> None:
    """Connect two clusters in both directions."""
    await one.registry.add(two.address, is_connected=True, is_replicated=True)
    await two.registry.add(one.address, is_connected=True, is_replicated=True)
    await until(lambda: is_connected(one.registry, two.config.name) and is_connected(two.registry, one.config.name))


def content(cluster: ConnectedCluster) -> dict[str, Namespace]:
    return {one.name: replicated(one) for one in cluster.namespaces.all() if one.is_global}


async def test_a_new_namespace_is_created_with_the_same_id() -> None:
    async with connected_cluster("a", 1) as a, connected_cluster("b", 2) as b:
        await connect(a, b)
        made = await a.namespaces.create(shared(description="x", search_attributes={"Customer": 2}))
        await a.namespaces.create(shared("local", clusters=("a",), version=0))
        await b.sync.pull("a")
        assert content(b) == {"orders": replicated(made)}
        assert b.namespaces.cached("local") is None


async def test_a_configuration_and_a_failover_changed_in_two_clusters_are_both_kept() -> None:
    async with connected_cluster("a", 1) as a, connected_cluster("b", 2) as b:
        await connect(a, b)
        made = await a.namespaces.create(shared())
        await b.sync.pull("a")
        await a.namespaces.change(made.id, lambda now: replace(now, config_version=1, description="of a"))
        await b.namespaces.change(made.id, lambda now: replace(now, failover_version=2, active_cluster="b"))
        await a.sync.pull("b")
        await b.sync.pull("a")
        assert content(a) == content(b)
        (now,) = content(a).values()
        assert (now.description, now.active_cluster, now.failover_version) == ("of a", "b", 2)


async def test_a_version_used_twice_converges() -> None:
    async with connected_cluster("a", 1) as a, connected_cluster("b", 2) as b:
        await connect(a, b)
        made = await a.namespaces.create(shared())
        await b.sync.pull("a")
        await a.namespaces.change(made.id, lambda now: replace(now, config_version=1, description="of a"))
        await b.namespaces.change(made.id, lambda now: replace(now, config_version=1, description="of b"))
        await a.sync.pull("b")
        await b.sync.pull("a")
        await a.sync.pull("b")
        assert content(a) == content(b)


@pytest.mark.parametrize(
    ("version", "active"),
    [(9, "x"), (12, "a"), (3, "c"), (0, "a")],
    ids=["of nobody", "of another", "of one not known here", "of a local one"],
)
async def test_an_impossible_version_is_refused(version: int, active: str) -> None:
    async with connected_cluster("a", 1) as a, connected_cluster("b", 2) as b:
        await connect(a, b)
        made = await a.namespaces.create(shared())
        await b.sync.pull("a")
        await a.namespaces.change(
            made.id,
            lambda now: replace(
                now, failover_version=version, active_cluster=active, config_version=1, description="x"
            ),
        )
        for _ in range(2):
            await b.sync.pull("a")
        (now,) = content(b).values()
        assert now == replicated(made)
        _, page = render(b.metrics.snapshot(), "")
        assert b'namespace_replication_conflicts{source_cluster="a"} 1' in page
        # It is pulled each time until it can be applied.
        await a.namespaces.change(made.id, lambda now: replace(now, failover_version=22, active_cluster="b"))
        await b.sync.pull("a")
        assert content(b) == content(a)


async def test_only_changed_namespaces_are_sent_again() -> None:
    async with connected_cluster("a", 1) as a, connected_cluster("b", 2) as b:
        await connect(a, b)
        made = await a.namespaces.create(shared())
        first = a.sync.answer(NamespacesRequest())
        assert len(first.records) == 1
        assert a.sync.answer(NamespacesRequest(first.digest)).records == ()
        # A handover is local to one cluster, and not sent to others.
        await a.namespaces.change(made.id, lambda now: replace(now, handover_until_ns=9, handover_to="b"))
        assert a.sync.answer(NamespacesRequest(first.digest)).records == ()
        await a.namespaces.change(made.id, lambda now: replace(now, config_version=1, description="x"))
        assert len(a.sync.answer(NamespacesRequest(first.digest)).records) == 1


async def test_an_unreadable_namespace_is_logged_once_and_the_others_are_applied() -> None:
    async with connected_cluster("a", 1) as a, connected_cluster("b", 2) as b:
        await connect(a, b)
        made = [await a.namespaces.create(shared(name, id=f"id-{name}")) for name in ("x", "y", "z")]
        remote = b.registry.remote("a")

        class Damaged:
            async def namespaces(self, request: NamespacesRequest) -> NamespacesResponse:
                answer = await remote.namespaces(request)
                broken = tuple(replace(one, payload=b"\xc1") if one.name == "x" else one for one in answer.records)
                return replace(answer, records=broken)

        b.sync._remotes = lambda _cluster: cast("Remote", Damaged())
        for _ in range(2):
            await b.sync.pull("a")
        assert content(b) == {one.name: replicated(one) for one in made[1:]}
        _, page = render(b.metrics.snapshot(), "")
        assert b'namespace_replication_conflicts{source_cluster="a"} 1' in page
        # It is pulled each time until it can be read.
        b.sync._remotes = lambda _cluster: remote
        await b.sync.pull("a")
        assert content(b) == content(a)


async def test_many_namespaces_are_sent_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_BYTES_MAX", 1000)
    async with connected_cluster("a", 1) as a, connected_cluster("b", 2) as b:
        await connect(a, b)
        for number in range(40):
            await a.namespaces.create(shared(f"n{number}"))
        assert len(a.sync.answer(NamespacesRequest()).records) < 20
        await b.sync.pull("a")
        assert content(b) == content(a)
        assert len(content(b)) == 40


async def test_another_namespace_with_the_same_name_is_not_changed_and_the_conflict_is_counted() -> None:
    async with connected_cluster("a", 1) as a, connected_cluster("b", 2) as b:
        await connect(a, b)
        await a.namespaces.create(shared(description="of a"))
        mine = await b.namespaces.create(Namespace(id="mine", name="orders", retention_ns=1, description="of b"))
        other = await a.namespaces.create(shared("other"))
        for _ in range(2):
            await b.sync.pull("a")
        assert b.namespaces.cached("orders") == mine
        assert content(b) == {"other": replicated(other)}
        _, page = render(b.metrics.snapshot(), "")
        assert b'namespace_replication_conflicts{source_cluster="a"} 1' in page


async def test_a_namespace_deleted_here_is_not_replicated_back() -> None:
    async with connected_cluster("a", 1) as a, connected_cluster("b", 2) as b:
        await connect(a, b)
        made = await a.namespaces.create(shared())
        await b.sync.pull("a")
        await b.namespaces.delete(made.id, purge_after_ns=1)
        await a.namespaces.change(made.id, lambda now: replace(now, config_version=3, description="x"))
        await b.sync.pull("a")
        with pytest.raises(ApiError, match="not found"):
            await b.namespaces.find("orders")
        assert b.namespaces.all()[0].state == DELETED
        # This does not count as a conflict: no operator has to act.
        _, page = render(b.metrics.snapshot(), "")
        assert b"namespace_replication_conflicts{" not in page
        # The deletion is not replicated to the other cluster.
        await a.sync.pull("b")
        assert a.namespaces.cached("orders") is not None


async def test_two_hosts_that_apply_the_same_namespace_concurrently_agree() -> None:
    async with (
        connected_cluster("a", 1) as a,
        connected_cluster("b", 2) as b,
        connected_cluster("b", 2, store=b.store) as other_host,
    ):
        await connect(a, b)
        await until(lambda: is_connected(other_host.registry, "a"))
        made = await a.namespaces.create(shared())
        await asyncio.gather(b.sync.pull("a"), other_host.sync.pull("a"))
        assert content(b) == content(other_host) == {"orders": replicated(made)}


async def test_concurrent_refreshes_share_one_read() -> None:
    async with connected_cluster("a", 1) as a, connected_cluster("b", 2) as b:
        await connect(a, b)
        looks = 0
        remote = b.registry.remote("a")

        class Counted:
            async def namespaces(self, request: NamespacesRequest) -> NamespacesResponse:
                nonlocal looks
                looks += 1
                await asyncio.sleep(0.02)
                return await remote.namespaces(request)

        b.sync._remotes = lambda _cluster: cast("Remote", Counted())
        made = await a.namespaces.create(shared())
        early = asyncio.create_task(b.sync.pull("a"))
        await until(lambda: looks == 1)
        await asyncio.gather(early, *(b.sync.pull("a") for _ in range(100)))
        assert looks == 2
        assert content(b) == {"orders": replicated(made)}


async def test_a_change_is_pulled_at_once_after_a_nudge_and_periodically_without_one() -> None:
    async with connected_cluster("a", 1) as a, connected_cluster("b", 2) as b:
        await connect(a, b)
        made = await a.namespaces.create(shared())
        await a.registry.remote("b").nudge()
        assert "orders" in content(b)
        b.sync.open()
        await a.namespaces.change(made.id, lambda now: replace(now, config_version=1, description="x"))
        await until(lambda: content(b) == content(a))


async def test_pulling_is_retried_after_any_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected_cluster("a", 1) as a, connected_cluster("b", 2) as b:
        await connect(a, b)
        failed = asyncio.Event()

        def fail(_cluster: str) -> Remote:
            failed.set()
            raise RuntimeError("a bug")

        with monkeypatch.context() as broken:
            broken.setattr(b.sync, "_remotes", fail)
            b.sync.open()
            await asyncio.wait_for(failed.wait(), 5)
        await a.namespaces.create(shared())
        await until(lambda: content(b) == content(a))


async def test_an_unknown_cluster_is_refused() -> None:
    async with (
        connected_cluster("a", 1) as a,
        connected_cluster("b", 2, remotes={"a": RemoteClusterConfig(1, a.address)}) as b,
    ):
        await until(lambda: is_connected(b.registry, "a"))
        # a does not know b.
        with pytest.raises(ApiError, match="'a' is not connected to 'b'"):
            await b.registry.remote("a").nudge()
