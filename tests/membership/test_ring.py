import asyncio
from collections import Counter

import msgspec
import pytest

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import InvalidName, Partition, TaskQueueId, TaskType
from fairlead.core.routing import GradualChange, HashRing, NoHosts, Router
from fairlead.membership.members import Membership, MembershipTimes
from fairlead.membership.ring import (
    REFRESH_INTERVAL_S_MIN,
    REMOTE_ASKED_MAX,
    REMOTE_INTERVAL_S,
    ROUTES_MAX,
    WATCH_INTERVAL_S,
    BatchSize,
    MemberRing,
    NoResponse,
    NoSeeds,
    RemoteRing,
    RingResponse,
)
from fairlead.rpc.hosts.caller import CallLost, Method, Request, Response, UnknownMethod, Unreachable
from fairlead.settings import Plain
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import Member, QueueId, StoreUnavailable
from tests.simulators.matching.settings import ChangingSettings
from tests.virtual_time import on_virtual_time

TASK_QUEUE = TaskQueueId("namespace", "orders", TaskType.ACTIVITY)
PARTITIONS = [Partition(TASK_QUEUE, number) for number in range(200)]
TIMES = MembershipTimes(heartbeat_s=1.0, alive_s=10.0)
# 2001-09-09T01:46:40Z, the wall clock at virtual time 0.
WALL_S = 1_000_000_000.0
SPREAD = "matching.spreadRoutingBatchSize"


def wall_s() -> float:
    return WALL_S + asyncio.get_running_loop().time()


def gradual(old: int, new: int, *, start_s: int, end_s: int) -> Plain:
    """A gradual change of the batch size; `start_s` and `end_s` are virtual times below 100."""
    return {
        "old": old,
        "new": new,
        "start": f"2001-09-09T01:{46 + (40 + start_s) // 60}:{(40 + start_s) % 60:02}Z",
        "end": f"2001-09-09T01:{46 + (40 + end_s) // 60}:{(40 + end_s) % 60:02}Z",
    }


class Reach:
    """Makes the store slow or unavailable, and counts its operations."""

    def __init__(self) -> None:
        self.is_away = False
        self.takes_s = 0.0
        self.operations: Counter[str] = Counter()

    async def before(self, operation: str, queue: QueueId | None) -> None:
        self.operations[operation] += 1
        await asyncio.sleep(self.takes_s)
        if self.is_away:
            raise StoreUnavailable("away")

    async def after(self, operation: str, queue: QueueId | None) -> None:
        return


class Host:
    """One host of a cluster, with its ring."""

    def __init__(self, store: MemoryStore, name: str, overrides: dict[str, Plain] | None = None) -> None:
        self.settings = ChangingSettings(overrides=overrides)
        self.membership = Membership(store, name, clock=wall_s, times=TIMES)
        self.ring = MemberRing(self.membership, self.settings, clock=wall_s)
        self.heard: list[float] = []
        self.ring.on_change(lambda: self.heard.append(asyncio.get_running_loop().time()))

    async def join(self) -> None:
        await self.membership.join()
        self.ring.start()

    def owners(self) -> list[str]:
        return [self.ring.route(partition) for partition in PARTITIONS]


def routed(hosts: list[str], batch_size: BatchSize = 0, now_s: float = WALL_S) -> list[str]:
    router = Router(HashRing(hosts), batch_size)
    return [router.route(partition, now_s) for partition in PARTITIONS]


# --- the ring of a host


@on_virtual_time
async def test_hosts_that_joined_agree_on_every_owner() -> None:
    """MC-5: hosts compute the owners independently."""
    store = MemoryStore()
    hosts = [Host(store, name) for name in "abc"]
    with pytest.raises(NoHosts):
        hosts[0].ring.route(PARTITIONS[0])
    for host in hosts:
        await host.join()
    await asyncio.sleep(TIMES.heartbeat_s + 0.1)
    for host in hosts:
        assert host.ring.hosts == ("a", "b", "c")
        assert host.owners() == routed(["a", "b", "c"])


@on_virtual_time
async def test_owners_change_and_listeners_are_called_when_a_host_joins_or_leaves() -> None:
    store = MemoryStore()
    first, second = Host(store, "a"), Host(store, "b")
    await first.join()
    assert first.heard == [0.0]
    assert set(first.owners()) == {"a"}
    await asyncio.sleep(3.5)
    await second.join()
    await asyncio.sleep(1)
    assert first.owners() == routed(["a", "b"])
    await second.membership.leave()
    assert set(second.owners()) == {"a"}
    await asyncio.sleep(1)
    assert set(first.owners()) == {"a"}
    assert first.heard == [0.0, 4.0, 5.0]


@on_virtual_time
async def test_a_changed_batch_size_of_spread_routing_takes_effect_at_once() -> None:
    """MC-11."""
    host = Host(MemoryStore(), "a")
    for name in "bcdefgh":
        await host.membership._store.heartbeat(Member(name, WALL_S + 1000))
    await host.join()
    names = list("abcdefgh")
    assert host.owners() == routed(names)
    host.settings.change({SPREAD: 8})
    assert host.owners() == routed(names, 8)
    assert len(set(host.owners()[:8])) == 8
    assert len(host.heard) == 2
    await host.ring.close()
    host.settings.change({SPREAD: 4})
    assert host.owners() == routed(names, 8)


@on_virtual_time
async def test_every_partition_moves_at_its_own_time_in_a_gradual_change() -> None:
    """MC-15: partitions move one by one, by the wall clock; cached owners are updated too."""
    change = gradual(0, 8, start_s=20, end_s=80)
    host = Host(MemoryStore(), "a", {SPREAD: change})
    for name in "bcdefgh":
        await host.membership._store.heartbeat(Member(name, WALL_S + 1000))
    await host.join()
    names, value = list("abcdefgh"), GradualChange(0, 8, WALL_S + 20, WALL_S + 80)
    moved = set()
    for second in range(100):
        now = routed(names, value, wall_s())
        assert host.owners() == now
        # The second call uses the cache.
        assert host.owners() == now
        if 20 < second < 80:
            moved.add(tuple(now))
        await asyncio.sleep(1)
    assert host.owners() == routed(names, 8)
    assert len(moved) > 40


@on_virtual_time
async def test_listeners_are_called_every_second_during_a_gradual_change_only() -> None:
    host = Host(MemoryStore(), "a", {SPREAD: gradual(0, 8, start_s=20, end_s=40)})
    await host.join()
    await asyncio.sleep(90)
    assert host.heard[0] == 0.0
    during = host.heard[1:]
    # The last call comes after the end, so that it includes the last partition that moves.
    assert during == [float(second) for second in range(20, 41)]
    assert WATCH_INTERVAL_S == 1.0


@on_virtual_time
async def test_a_host_whose_heartbeat_has_expired_owns_nothing_until_it_can_renew_it() -> None:
    """The other hosts have taken over its partitions: two hosts must not serve one."""
    reach = Reach()
    store = MemoryStore(reach)
    cut_off = Host(store, "a")
    await store.heartbeat(Member("b", WALL_S + 1000))
    await cut_off.join()
    assert "a" in cut_off.owners()
    reach.is_away = True
    await asyncio.sleep(TIMES.alive_s - 1.5)
    assert "a" in cut_off.owners()
    cut_off.heard.clear()
    await asyncio.sleep(2)
    assert set(cut_off.owners()) == {"b"}
    await asyncio.sleep(WATCH_INTERVAL_S)
    assert len(cut_off.heard) == 1
    reach.is_away = False
    await asyncio.sleep(TIMES.heartbeat_s + WATCH_INTERVAL_S)
    assert cut_off.owners() == routed(["a", "b"])
    assert len(cut_off.heard) == 2


@on_virtual_time
async def test_a_lookup_never_calls_listeners_itself() -> None:
    reach = Reach()
    store = MemoryStore(reach)
    host = Host(store, "a")
    await store.heartbeat(Member("b", WALL_S + 1000))
    await host.join()
    await host.ring.close()
    reach.is_away = True
    await asyncio.sleep(20)
    host.heard.clear()
    assert set(host.owners()) == {"b"}
    assert host.heard == []


@on_virtual_time
async def test_a_single_host_keeps_its_partitions_during_a_store_outage() -> None:
    reach = Reach()
    host = Host(MemoryStore(reach), "a")
    await host.join()
    reach.is_away = True
    await asyncio.sleep(100)
    assert not host.membership.is_alive
    assert set(host.owners()) == {"a"}


@on_virtual_time
async def test_a_refresh_finds_changes_since_the_last_heartbeat() -> None:
    store = MemoryStore()
    host = Host(store, "a")
    await host.join()
    await asyncio.sleep(0.2)
    await store.heartbeat(Member("b", WALL_S + 1000))
    await host.ring.refresh()
    assert host.ring.hosts == ("a", "b")


@on_virtual_time
async def test_a_refresh_does_not_make_a_host_join_again() -> None:
    store = MemoryStore()
    stays, leaves = Host(store, "a"), Host(store, "b")
    await stays.join()
    await leaves.join()
    await leaves.membership.leave()
    await asyncio.sleep(1)
    await leaves.ring.refresh()
    assert [member.host for member in await store.members(now_s=wall_s())] == ["a"]
    assert leaves.ring.hosts == ("a",)


@on_virtual_time
async def test_concurrent_refreshes_are_coalesced_and_rate_limited() -> None:
    reach = Reach()
    host = Host(MemoryStore(reach), "a")
    await host.membership.beat()
    reach.takes_s = 0.05
    before = reach.operations["members"]
    await asyncio.gather(*(host.ring.refresh() for _ in range(1000)))
    assert reach.operations["members"] == before + 1
    for _ in range(1000):
        await host.ring.refresh()
        await asyncio.sleep(0.001)
    # The loop takes a little more than one second.
    assert reach.operations["members"] <= before + 2 + 1 / REFRESH_INTERVAL_S_MIN


@on_virtual_time
async def test_a_cancelled_caller_does_not_cancel_the_refresh_for_others() -> None:
    reach = Reach()
    store = MemoryStore(reach)
    host = Host(store, "a")
    await host.membership.beat()
    await store.heartbeat(Member("b", WALL_S + 1000))
    reach.takes_s = 5.0
    gone, stays = asyncio.create_task(host.ring.refresh()), asyncio.create_task(host.ring.refresh())
    await asyncio.sleep(1)
    gone.cancel()
    await stays
    assert host.ring.hosts == ("a", "b")
    assert gone.cancelled()


@on_virtual_time
async def test_close_cancels_a_refresh_and_its_callers_return() -> None:
    reach = Reach()
    host = Host(MemoryStore(reach), "a")
    await host.join()
    reach.takes_s = 1000.0
    waits = asyncio.create_task(host.ring.refresh())
    await asyncio.sleep(1)
    await host.ring.close()
    await waits
    assert asyncio.get_running_loop().time() == 1.0


@on_virtual_time
async def test_the_number_of_cached_owners_is_bounded() -> None:
    host = Host(MemoryStore(), "a")
    await host.join()
    for index in range(ROUTES_MAX + 10):
        host.ring.route(Partition(TaskQueueId("namespace", str(index), TaskType.ACTIVITY), 0))
    assert len(host.ring._owners) == 10


@on_virtual_time
async def test_an_invalid_task_queue_name_is_rejected() -> None:
    host = Host(MemoryStore(), "a")
    await host.join()
    with pytest.raises(InvalidName):
        host.ring.route(Partition(TaskQueueId("namespace", "/_sys/orders/1", TaskType.ACTIVITY), 0))


# --- the ring of a client outside the cluster


class Network:
    """Hosts that each return their own view of the ring."""

    def __init__(self, **views: list[str]) -> None:
        self.views = views
        self.batch_size: BatchSize = 0
        self.failures: dict[str, FairleadError] = {}
        self.asked: list[str] = []

    async def call(
        self, host: str, method: Method[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        self.asked.append(host)
        if host in self.failures:
            if isinstance(self.failures[host], CallLost):
                await asyncio.sleep(timeout_s)
            raise self.failures[host]
        if host not in self.views:
            raise Unreachable(f"{host} is not there")
        answer = RingResponse(host, self.views[host], 3, self.batch_size)
        # Encode and decode the response, as a real network does.
        return msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=method.answer)


@on_virtual_time
async def test_a_remote_client_gets_the_ring_from_any_host_that_responds() -> None:
    network = Network(b=["a", "b", "c"])
    network.failures["a"] = UnknownMethod("another release")
    network.failures["d"] = CallLost("silent")
    network.batch_size = 8
    ring = RemoteRing(network, ["x", "a", "d", "b"], clock=wall_s)
    await ring.open()
    assert network.asked == ["x", "a", "d", "b"]
    assert ring.hosts == ("a", "b", "c")
    assert [ring.route(partition) for partition in PARTITIONS] == routed(["a", "b", "c"], 8)


@on_virtual_time
async def test_a_remote_client_follows_a_gradual_change() -> None:
    names = list("abcdefgh")
    network = Network(**dict.fromkeys(names, names))
    change = GradualChange(0, 8, WALL_S + 20, WALL_S + 40)
    network.batch_size = change
    ring = RemoteRing(network, ["a"], clock=wall_s)
    await ring.open()
    heard: list[float] = []
    ring.on_change(lambda: heard.append(asyncio.get_running_loop().time()))
    for _ in range(60):
        assert [ring.route(partition) for partition in PARTITIONS] == routed(names, change, wall_s())
        await asyncio.sleep(1)
    assert heard == [20.0, 25.0, 30.0, 35.0, 40.0]


@on_virtual_time
async def test_a_remote_client_refreshes_the_ring_on_request_and_at_intervals() -> None:
    network = Network(a=["a", "b"], b=["a", "b"])
    ring = RemoteRing(network, ["a"], clock=wall_s)
    heard: list[tuple[str, ...]] = []
    ring.on_change(lambda: heard.append(ring.hosts))
    await ring.open()
    assert heard == [("a", "b")]
    network.views = {"a": ["a", "c"], "b": ["a", "c"], "c": ["a", "c"]}
    await ring.refresh()
    assert ring.hosts == ("a", "c")
    network.views = {"c": ["c"]}
    await asyncio.sleep(REMOTE_INTERVAL_S + 0.1)
    assert heard == [("a", "b"), ("a", "c"), ("c",)]
    await ring.close()
    asked = len(network.asked)
    await asyncio.sleep(100)
    assert len(network.asked) == asked


@on_virtual_time
async def test_a_remote_client_soon_corrects_the_view_of_an_outdated_host() -> None:
    network = Network(a=["a", "b"], b=["b", "c"], c=["b", "c"])
    ring = RemoteRing(network, ["a", "b"], clock=wall_s)
    await ring.open()
    for _ in range(4):
        await asyncio.sleep(REFRESH_INTERVAL_S_MIN)
        await ring.refresh()
    assert ring.hosts == ("b", "c")


@on_virtual_time
async def test_a_remote_client_asks_its_seeds_when_all_known_hosts_are_gone() -> None:
    gone = [f"gone-{number:02}" for number in range(50)]
    network = Network(seed=gone)
    ring = RemoteRing(network, ["seed"], clock=wall_s)
    await ring.open()
    assert ring.hosts == tuple(gone)
    network.views = {"seed": ["new"], "new": ["new"]}
    network.asked.clear()
    await ring.refresh()
    assert ring.hosts == ("new",)
    assert len(network.asked) <= REMOTE_ASKED_MAX


@on_virtual_time
async def test_a_remote_client_keeps_the_last_ring_if_no_host_responds_and_cannot_open_without_one() -> None:
    network = Network(a=["a", "b"])
    ring = RemoteRing(network, ["a"], clock=wall_s)
    await ring.open()
    network.views = {}
    await ring.refresh()
    assert ring.hosts == ("a", "b")
    network.views = {"a": []}
    await asyncio.sleep(1)
    await ring.refresh()
    assert ring.hosts == ("a", "b")
    with pytest.raises(NoResponse, match="x: x is not there; y: y is not there"):
        await RemoteRing(network, ["x", "y"], clock=wall_s).open()
    with pytest.raises(NoResponse, match="a: knows of no host that is alive"):
        await RemoteRing(network, ["a"], clock=wall_s).open()


@on_virtual_time
async def test_an_invalid_ring_is_ignored() -> None:
    network = Network(a=["a", ""], b=["b"])
    ring = RemoteRing(network, ["a", "b"], clock=wall_s)
    await ring.open()
    assert ring.hosts == ("b",)


def test_a_remote_client_needs_at_least_one_seed() -> None:
    with pytest.raises(NoSeeds, match="at least one"):
        RemoteRing(Network(), [], clock=lambda: 0.0)
