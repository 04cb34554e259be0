import asyncio
import sqlite3
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from fairlead.core.routing import HashRing
from fairlead.membership.members import InvalidMembership, Membership, MembershipTimes, RingChange
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import Member, QueueId, StoreUnavailable
from tests.virtual_time import on_virtual_time


@pytest.fixture(autouse=True)
def _all_levels() -> Iterator[None]:
    """Enable all log levels, and restore the configuration afterwards."""
    config = structlog.get_config()
    structlog.reset_defaults()
    # Configure structlog: otherwise the first import of a module with a logger, during a test, would hide info lines.
    structlog.configure()
    yield
    structlog.configure(**config)


class WallClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Reach:
    """Makes the store unavailable while `is_away` is set."""

    is_away = False

    async def before(self, operation: str, queue: QueueId | None) -> None:
        if self.is_away:
            raise StoreUnavailable("away")

    async def after(self, operation: str, queue: QueueId | None) -> None:
        return


# No heartbeat is due within a test.
SLOW = MembershipTimes(heartbeat_s=1000.0, alive_s=2000.0)
TIMES = MembershipTimes(heartbeat_s=100.0, alive_s=300.0)


async def test_hosts_that_join_see_the_same_ring() -> None:
    store, clock = MemoryStore(), WallClock()
    hosts = [Membership(store, f"host-{number}", clock=clock, times=SLOW) for number in range(3)]
    for host in hosts:
        await host.join()
        assert host.host in host.ring.hosts
    for host in hosts:
        await host.beat()
        assert host.ring == HashRing(["host-0", "host-1", "host-2"])
    for host in hosts:
        await host.leave()


class Stall:
    """Lets time pass while the store carries out an operation, as if the store or the process had stalled."""

    def __init__(self, clock: WallClock) -> None:
        self.stalls_s: dict[str, float] = {}
        self._clock = clock

    async def before(self, operation: str, queue: QueueId | None) -> None:
        self._clock.now_s += self.stalls_s.get(operation, 0.0)

    async def after(self, operation: str, queue: QueueId | None) -> None:
        return


async def test_a_lone_host_stays_in_its_ring_when_the_store_stalls() -> None:
    clock = WallClock()
    stall = Stall(clock)
    host = Membership(MemoryStore(stall), "lone", clock=clock, times=TIMES)
    rings: list[tuple[str, ...]] = []
    await host.join()
    host.on_change(lambda ring: rings.append(ring.hosts))
    stall.stalls_s["heartbeat"] = 2 * TIMES.alive_s
    await host.beat()
    alive = [host.is_alive]
    stall.stalls_s.clear()
    await host.beat()
    alive.append(host.is_alive)
    # Other hosts can't know that it is alive, but no request may fail because no host is known.
    assert alive == [False, True]
    assert rings == [("lone",)]
    await host.leave()


async def test_a_host_that_leaves_is_removed_from_the_ring_at_once() -> None:
    store, clock = MemoryStore(), WallClock()
    stays = Membership(store, "stays", clock=clock, times=SLOW)
    leaves = Membership(store, "leaves", clock=clock, times=SLOW)
    await stays.join()
    await leaves.join()
    await leaves.leave()
    assert not leaves.is_alive
    assert leaves.ring.hosts == ("stays",)
    await stays.beat()
    assert stays.ring.hosts == ("stays",)
    await stays.leave()


async def test_a_silent_host_is_removed_when_its_heartbeat_expires() -> None:
    store, clock = MemoryStore(), WallClock()
    lives, crashed = (Membership(store, name, clock=clock, times=TIMES) for name in ("lives", "crashed"))
    await lives.join()
    await crashed.join()
    clock.now_s += TIMES.alive_s - 1
    await lives.beat()
    assert list(lives.ring.hosts) == ["crashed", "lives"]
    clock.now_s += 1
    await lives.beat()
    assert list(lives.ring.hosts) == ["lives"]
    assert not crashed.is_alive
    for host in (lives, crashed):
        await host.leave()


async def test_the_last_ring_stays_during_a_store_outage_and_the_host_is_not_alive_after_its_expiry() -> None:
    reach, clock = Reach(), WallClock()
    store = MemoryStore(reach)
    host = Membership(store, "host", clock=clock, times=TIMES)
    await host.join()
    reach.is_away = True
    await host.beat()
    assert (host.is_alive, host.ring.hosts) == (True, ("host",))
    clock.now_s += TIMES.alive_s
    await host.beat()
    assert (host.is_alive, host.ring.hosts) == (False, ("host",))
    reach.is_away = False
    await host.beat()
    assert host.is_alive
    await host.leave()


async def test_listeners_get_each_change_once() -> None:
    store, clock = MemoryStore(), WallClock()
    host = Membership(store, "host", clock=clock, times=SLOW)
    other = Membership(store, "other", clock=clock, times=SLOW)
    heard: list[tuple[str, ...]] = []
    await host.join()
    host.on_change(lambda ring: heard.append(ring.hosts))
    await host.beat()
    await other.join()
    await host.beat()
    await host.beat()
    await other.leave()
    await host.beat()
    assert heard == [("host",), ("host", "other"), ("host",)]
    await host.leave()


@on_virtual_time
async def test_a_host_sends_heartbeats_until_it_leaves() -> None:
    store = MemoryStore()
    clock = asyncio.get_running_loop().time
    host = Membership(store, "host", clock=clock, times=MembershipTimes(heartbeat_s=0.01, alive_s=0.1))
    await host.join()
    await asyncio.sleep(0.3)
    assert host.is_alive
    await host.leave()
    await asyncio.sleep(0.05)
    assert await store.members(now_s=clock()) == []


async def test_a_host_cannot_join_while_the_store_is_unavailable() -> None:
    reach = Reach()
    reach.is_away = True
    host = Membership(MemoryStore(reach), "host", clock=WallClock())
    with pytest.raises(StoreUnavailable):
        await host.join()
    assert not host.is_alive


@pytest.mark.parametrize(("heartbeat_s", "alive_s"), [(0.0, 10.0), (6.0, 10.0), (1.0, float("nan"))])
def test_an_expiry_below_two_heartbeat_intervals_is_rejected(heartbeat_s: float, alive_s: float) -> None:
    with pytest.raises(InvalidMembership, match="at least two"):
        MembershipTimes(heartbeat_s=heartbeat_s, alive_s=alive_s)


async def test_a_change_lists_the_hosts_that_joined_left_and_timed_out() -> None:
    store, clock = MemoryStore(), WallClock()
    stays, leaves, dies = (Membership(store, name, clock=clock, times=TIMES) for name in ("stays", "leaves", "dies"))
    for host in (stays, leaves, dies):
        await host.join()
    assert stays.latest_change == RingChange(joined=("stays",))
    await stays.beat()
    assert stays.latest_change == RingChange(joined=("dies", "leaves"))
    await leaves.leave()
    assert leaves.latest_change == RingChange(left=("leaves",))
    await stays.beat()
    assert stays.latest_change == RingChange(left=("leaves",))
    clock.now_s += TIMES.alive_s
    await stays.beat()
    assert stays.latest_change == RingChange(timed_out=("dies",))
    for host in (stays, dies):
        await host.leave()


@pytest.mark.parametrize(
    ("names", "consequence"), [(["host"], "could not renew its heartbeat"), (["host", "other"], "owns nothing until")]
)
async def test_a_store_outage_and_its_end_are_logged_once(names: list[str], consequence: str) -> None:
    reach, clock = Reach(), WallClock()
    store = MemoryStore(reach)
    host, *others = (Membership(store, name, clock=clock, times=TIMES) for name in names)
    for one in (*others, host):
        await one.join()
    with capture_logs() as lines:
        reach.is_away = True
        await host.beat()
        # The last heartbeat has not expired yet.
        assert lines == []
        clock.now_s += TIMES.alive_s
        await host.beat()
        await host.beat()
        (line,) = lines
        assert line["event"].startswith("the store can't be reached: ")
        assert consequence in line["event"]
        assert (line["log_level"], line["since"], line["error"]) == ("warning", "1970-01-01T00:16:40Z", "away")
        reach.is_away = False
        await host.beat()
        await host.beat()
    assert [one["event"] for one in lines[1:]] == ["the store can be reached again: this host is back"]
    assert lines[1]["out_s"] == TIMES.alive_s
    for one in (host, *others):
        await one.leave()


async def test_a_host_that_has_left_does_not_log_missed_heartbeats() -> None:
    reach = Reach()
    host = Membership(MemoryStore(reach), "host", clock=WallClock(), times=SLOW)
    await host.join()
    await host.leave()
    reach.is_away = True
    with capture_logs() as lines:
        await host.beat()
    assert lines == []


@on_virtual_time
async def test_an_unexpected_exception_does_not_stop_the_heartbeats() -> None:
    class Damaged(MemoryStore):
        beats = 0

        async def heartbeat(self, member: Member, *, now_s: float = 0.0) -> list[Member]:
            self.beats += 1
            if self.beats == 2:
                raise sqlite3.DatabaseError("malformed")
            return await super().heartbeat(member, now_s=now_s)

    store, clock = Damaged(), asyncio.get_running_loop().time
    host = Membership(store, "host", clock=clock, times=MembershipTimes(heartbeat_s=0.01, alive_s=0.1))
    with capture_logs() as lines:
        await host.join()
        await asyncio.sleep(0.3)
        assert store.beats > 2
        assert host.is_alive
        await host.leave()
    assert [line["event"] for line in lines if "exc_info" in line] == ["heartbeat failed"]
