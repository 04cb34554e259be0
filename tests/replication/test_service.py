"""The hosts of a cluster divide the streams of remote clusters among themselves, and follow the list of clusters."""

from collections.abc import Callable

import pytest

from fairlead.api.clusters import Clusters
from fairlead.core.partitions import Partition
from fairlead.core.routing import NoHosts
from fairlead.replication.messages import ClusterInfo, PullRequest, PullResponse
from fairlead.replication.remote import Remote, RemoteUnavailable
from fairlead.replication.service import Replication
from fairlead.settings import DynamicSettings
from fairlead.storage.history import HistoryStore
from fairlead.storage.memory.history import MemoryHistory
from fairlead.telemetry import Metrics
from tests.patience import step
from tests.replication.clusters import VERSIONS
from tests.replication.receivers import Receiver, Source, until
from tests.replication.streams import Owner


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten intervals of a second."""
    monkeypatch.setattr("fairlead.replication.service.WATCH_S", 0.02)


class TestedRing:
    """A ring whose owners the test sets."""

    __test__ = False

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self._listeners: list[Callable[[], None]] = []

    def route(self, partition: Partition) -> str:
        if not self.hosts:
            raise NoHosts("nobody")
        return self.hosts[int(partition.task_queue.name.rpartition("/")[2]) % len(self.hosts)]

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def refresh(self) -> None:
        raise NotImplementedError

    def change(self, *hosts: str) -> None:
        self.hosts = hosts
        for listener in self._listeners:
            listener()


class Shards(Source):
    """A cluster with several shards, each with its own store."""

    def __init__(self, owners: list[Owner]) -> None:
        super().__init__(owners[0])
        self.shards = [Source(owner) for owner in owners]
        # The number of shards that the cluster reports, if it is wrong.
        self.said: int | None = None
        self.asked = 0
        self.failure: Exception | None = None

    async def info(self) -> ClusterInfo:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        self._check()
        return ClusterInfo("a", "id-a", 1, 10, len(self.shards) if self.said is None else self.said)

    async def pull(self, request: PullRequest) -> PullResponse:
        self._check()
        return await self.shards[request.shard_id].pull(request)


async def owners(count: int) -> list[Owner]:
    return [await Owner(MemoryHistory()).open() for _ in range(count)]


def service(
    host: str, *, clusters: Clusters, source: Remote, receiver: Receiver, store: HistoryStore, ring: TestedRing
) -> Replication:
    return Replication(
        host,
        clusters=clusters,
        remotes=lambda _name: source,
        history=receiver,
        store=store,
        ring=ring,
        settings=DynamicSettings(),
        metrics=Metrics(),
        clock_ns=lambda: 0,
    )


def pulled(replication: Replication) -> set[int]:
    return {status.shard_id for status in replication.status()}


async def test_hosts_divide_the_streams_and_take_over_those_of_a_host_that_leaves(store: HistoryStore) -> None:
    sources = await owners(4)
    source, receiver, ring = Shards(sources), Receiver(), TestedRing("h0", "h1")
    clusters = Clusters("b", VERSIONS, ["a"])
    first, second = (
        service(host, clusters=clusters, source=source, receiver=receiver, store=store, ring=ring)
        for host in ("h0", "h1")
    )
    first.open()
    second.open()
    await until(lambda: (pulled(first), pulled(second)) == ({0, 2}, {1, 3}))
    for number, owner in enumerate(sources):
        for _ in range(10):
            await owner.commit(f"w{number}")
    await until(lambda: sum(map(len, receiver.events.values())) == 40)
    ring.change("h1")
    await until(lambda: (pulled(first), pulled(second)) == (set(), {0, 1, 2, 3}))
    for number, owner in enumerate(sources):
        for _ in range(10):
            await owner.commit(f"w{number}")
    await until(lambda: all(events == list(range(1, 21)) for events in receiver.events.values()))
    # No host owns anything.
    ring.change()
    await until(lambda: pulled(second) == set())
    await first.close()
    await second.close()
    for owner in sources:
        await owner.stream.close(is_lost=False)


@pytest.mark.parametrize("shards", [-1, 0, 10**18])
async def test_an_impossible_number_of_shards_is_requested_again(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    monkeypatch.setattr("fairlead.replication.service.SHARDS_S", 0.1)
    sources = await owners(2)
    source, clusters = Shards(sources), Clusters("b", VERSIONS, ["a"])
    source.said = shards
    replication = service("h", clusters=clusters, source=source, receiver=Receiver(), store=store, ring=TestedRing("h"))
    replication.open()
    await until(lambda: source.asked > 1)
    assert pulled(replication) == set()
    source.said = 1
    await until(lambda: pulled(replication) == {0})
    # A cluster that was set up again may have another number of shards. An impossible number is ignored.
    source.said = 2
    await until(lambda: pulled(replication) == {0, 1})
    source.said = shards
    infos = source.asked
    await until(lambda: source.asked > infos + 1)
    assert pulled(replication) == {0, 1}
    await replication.close()
    for owner in sources:
        await owner.stream.close(is_lost=False)


async def test_a_cluster_is_asked_again_after_any_failure(store: HistoryStore) -> None:
    sources = await owners(1)
    source, clusters = Shards(sources), Clusters("b", VERSIONS, ["a"])
    replication = service("h", clusters=clusters, source=source, receiver=Receiver(), store=store, ring=TestedRing("h"))
    source.failure = RuntimeError("a bug")
    replication.open()
    await until(lambda: source.asked > 1)
    assert replication.silent() == {"a": "a bug"}
    source.failure = None
    await until(lambda: pulled(replication) == {0})
    assert replication.silent() == {}
    await replication.close()
    await sources[0].stream.close(is_lost=False)


async def test_an_added_cluster_is_pulled_and_a_removed_one_no_longer(store: HistoryStore) -> None:
    sources = await owners(2)
    source, receiver = Shards(sources), Receiver()
    clusters = Clusters("b", VERSIONS, [])
    replication = service("h", clusters=clusters, source=source, receiver=receiver, store=store, ring=TestedRing("h"))
    replication.open()
    await step()
    assert pulled(replication) == set()
    # The cluster does not respond at first.
    source.is_away = True
    clusters.update(VERSIONS, ["a"])
    infos = source.asked
    await until(lambda: source.asked > infos)
    with pytest.raises(RemoteUnavailable):
        await source.info()
    assert pulled(replication) == set()
    source.is_away = False
    await until(lambda: pulled(replication) == {0, 1})
    await sources[1].commit("w")
    await until(lambda: receiver.events.get("w") == [1])
    (gauges,) = replication.gauges()
    assert (gauges.source_cluster, gauges.lag_tasks, gauges.dead_letters) == ("a", 0, 0)
    clusters.update(VERSIONS, [])
    await until(lambda: pulled(replication) == set())
    assert replication.gauges() == []
    await replication.close()
    for owner in sources:
        await owner.stream.close(is_lost=False)
