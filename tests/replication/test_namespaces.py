"""Namespaces are the same in all clusters, over real gRPC: each pulls what the others have, and merges."""

import asyncio
from typing import cast

import pytest
from msgspec.structs import replace

from fairlead.history.namespaces import DELETED, Namespace
from fairlead.history.refusals import Refused
from fairlead.replication import namespaces as module
from fairlead.replication.merging import replicated
from fairlead.replication.messages import NamespacesAnswer, NamespacesRequest
from fairlead.replication.remote import Remote
from fairlead.settings.static import RemoteClusterConfig
from fairlead.telemetry import render
from tests.replication.sharing import SharingCluster, shared, sharing
from tests.replication.test_clusters import is_connected, until


async def connect(one: SharingCluster, two: SharingCluster) -> None:
    """Both ways."""
    await one.registry.add(two.address, is_connected=True, is_replicated=True)
    await two.registry.add(one.address, is_connected=True, is_replicated=True)
    await until(lambda: is_connected(one.registry, two.config.name) and is_connected(two.registry, one.config.name))


def content(cluster: SharingCluster) -> dict[str, Namespace]:
    return {one.name: replicated(one) for one in cluster.namespaces.all() if one.is_global}


async def test_a_new_namespace_is_created_with_the_same_id() -> None:
    async with sharing("a", 1) as a, sharing("b", 2) as b:
        await connect(a, b)
        made = await a.namespaces.create(shared(description="x", search_attributes={"Customer": 2}))
        await a.namespaces.create(shared("local", clusters=("a",), version=0))
        await b.sync.pull("a")
        assert content(b) == {"orders": replicated(made)}
        assert b.namespaces.cached("local") is None


async def test_configuration_and_failover_of_two_clusters_are_both_kept() -> None:
    async with sharing("a", 1) as a, sharing("b", 2) as b:
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


async def test_the_same_version_given_twice_converges() -> None:
    async with sharing("a", 1) as a, sharing("b", 2) as b:
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
async def test_a_version_that_can_not_be_is_not_taken(version: int, active: str) -> None:
    async with sharing("a", 1) as a, sharing("b", 2) as b:
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
        # It is looked at each time until it can be.
        await a.namespaces.change(made.id, lambda now: replace(now, failover_version=22, active_cluster="b"))
        await b.sync.pull("a")
        assert content(b) == content(a)


async def test_only_what_is_new_is_sent_again() -> None:
    async with sharing("a", 1) as a, sharing("b", 2) as b:
        await connect(a, b)
        made = await a.namespaces.create(shared())
        first = a.sync.answer(NamespacesRequest())
        assert len(first.records) == 1
        assert a.sync.answer(NamespacesRequest(first.digest)).records == ()
        # A hand-over is of one cluster, and no news to another.
        await a.namespaces.change(made.id, lambda now: replace(now, handover_until_ns=9, handover_to="b"))
        assert a.sync.answer(NamespacesRequest(first.digest)).records == ()
        await a.namespaces.change(made.id, lambda now: replace(now, config_version=1, description="x"))
        assert len(a.sync.answer(NamespacesRequest(first.digest)).records) == 1


async def test_one_that_can_not_be_read_is_told_once_and_the_others_are_taken() -> None:
    async with sharing("a", 1) as a, sharing("b", 2) as b:
        await connect(a, b)
        made = [await a.namespaces.create(shared(name, id=f"id-{name}")) for name in ("x", "y", "z")]
        remote = b.registry.remote("a")

        class Damaged:
            async def namespaces(self, request: NamespacesRequest) -> NamespacesAnswer:
                answer = await remote.namespaces(request)
                broken = tuple(replace(one, payload=b"\xc1") if one.name == "x" else one for one in answer.records)
                return replace(answer, records=broken)

        b.sync._remotes = lambda _cluster: cast("Remote", Damaged())
        for _ in range(2):
            await b.sync.pull("a")
        assert content(b) == {one.name: replicated(one) for one in made[1:]}
        _, page = render(b.metrics.snapshot(), "")
        assert b'namespace_replication_conflicts{source_cluster="a"} 1' in page
        # It is looked at each time until it can be read.
        b.sync._remotes = lambda _cluster: remote
        await b.sync.pull("a")
        assert content(b) == content(a)


async def test_many_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_BYTES_MAX", 1000)
    async with sharing("a", 1) as a, sharing("b", 2) as b:
        await connect(a, b)
        for number in range(40):
            await a.namespaces.create(shared(f"n{number}"))
        assert len(a.sync.answer(NamespacesRequest()).records) < 20
        await b.sync.pull("a")
        assert content(b) == content(a)
        assert len(content(b)) == 40


async def test_another_namespace_of_the_same_name_is_left_alone_and_counted() -> None:
    async with sharing("a", 1) as a, sharing("b", 2) as b:
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


async def test_a_namespace_that_is_deleted_here_does_not_come_back() -> None:
    async with sharing("a", 1) as a, sharing("b", 2) as b:
        await connect(a, b)
        made = await a.namespaces.create(shared())
        await b.sync.pull("a")
        await b.namespaces.delete(made.id, purge_after_ns=1)
        await a.namespaces.change(made.id, lambda now: replace(now, config_version=3, description="x"))
        await b.sync.pull("a")
        with pytest.raises(Refused, match="not found"):
            await b.namespaces.find("orders")
        assert b.namespaces.all()[0].state == DELETED
        # That is no conflict: nobody has to do anything about it.
        _, page = render(b.metrics.snapshot(), "")
        assert b"namespace_replication_conflicts{" not in page
        # Nor does the other cluster hear of the deletion.
        await a.sync.pull("b")
        assert a.namespaces.cached("orders") is not None


async def test_two_hosts_that_take_the_same_namespace_at_once_agree() -> None:
    async with sharing("a", 1) as a, sharing("b", 2) as b, sharing("b", 2, store=b.store) as other_host:
        await connect(a, b)
        await until(lambda: is_connected(other_host.registry, "a"))
        made = await a.namespaces.create(shared())
        await asyncio.gather(b.sync.pull("a"), other_host.sync.pull("a"))
        assert content(b) == content(other_host) == {"orders": replicated(made)}


async def test_many_who_want_to_know_at_once_share_one_look() -> None:
    async with sharing("a", 1) as a, sharing("b", 2) as b:
        await connect(a, b)
        looks = 0
        remote = b.registry.remote("a")

        class Counted:
            async def namespaces(self, request: NamespacesRequest) -> NamespacesAnswer:
                nonlocal looks
                looks += 1
                await asyncio.sleep(0.02)
                return await remote.namespaces(request)

        b.sync._remotes = lambda _cluster: cast("Remote", Counted())
        made = await a.namespaces.create(shared())
        early = asyncio.create_task(b.sync.pull("a"))
        await asyncio.sleep(0.01)
        await asyncio.gather(early, *(b.sync.pull("a") for _ in range(100)))
        assert looks == 2
        assert content(b) == {"orders": replicated(made)}


async def test_a_nudge_brings_a_change_at_once_and_a_look_without_one() -> None:
    async with sharing("a", 1) as a, sharing("b", 2) as b:
        await connect(a, b)
        made = await a.namespaces.create(shared())
        await a.registry.remote("b").nudge()
        assert "orders" in content(b)
        b.sync.open()
        await a.namespaces.change(made.id, lambda now: replace(now, config_version=1, description="x"))
        await until(lambda: content(b) == content(a))


async def test_whatever_fails_it_is_looked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sharing("a", 1) as a, sharing("b", 2) as b:
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


async def test_a_stranger_is_not_listened_to() -> None:
    async with sharing("a", 1) as a, sharing("b", 2, remotes={"a": RemoteClusterConfig(1, a.address)}) as b:
        await until(lambda: is_connected(b.registry, "a"))
        # a does not know b.
        with pytest.raises(Refused, match="'b' is none that 'a' is connected with"):
            await b.registry.remote("a").nudge()
