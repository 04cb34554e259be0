import asyncio
import sqlite3
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from fairlead.cluster import InvalidMembership, Membership, MembershipTimes
from fairlead.cluster.membership import RingChange
from fairlead.core.routing import HashRing
from fairlead.storage.contract import Member, QueueId, StoreUnavailable
from fairlead.storage.memory import MemoryStore


@pytest.fixture(autouse=True)
def _all_levels() -> Iterator[None]:
    """Have the log of every level, whatever was configured."""
    config = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**config)


class WallClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Reach:
    """Whether the store can be reached."""

    is_away = False

    async def before(self, operation: str, queue: QueueId | None) -> None:
        if self.is_away:
            raise StoreUnavailable("away")

    async def after(self, operation: str, queue: QueueId | None) -> None:
        return


# Never beats by itself within a test.
SLOW = MembershipTimes(heartbeat_s=1000.0, alive_s=2000.0)
TIMES = MembershipTimes(heartbeat_s=100.0, alive_s=300.0)


async def test_hosts_that_join_come_to_see_the_same_ring() -> None:
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


async def test_a_host_that_leaves_is_out_of_the_ring_at_once() -> None:
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


async def test_a_host_that_is_silent_is_out_when_its_heartbeat_has_run_out() -> None:
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


async def test_without_the_store_the_last_ring_stays_and_a_host_knows_when_it_counts_as_dead() -> None:
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


async def test_those_who_listen_hear_of_each_change_once() -> None:
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


async def test_a_host_beats_by_itself_and_stops_when_it_leaves() -> None:
    store = MemoryStore()
    clock = asyncio.get_running_loop().time
    host = Membership(store, "host", clock=clock, times=MembershipTimes(heartbeat_s=0.01, alive_s=0.1))
    await host.join()
    await asyncio.sleep(0.3)
    assert host.is_alive
    await host.leave()
    await asyncio.sleep(0.05)
    assert await store.members(now_s=clock()) == []


async def test_a_host_that_can_not_reach_the_store_does_not_join() -> None:
    reach = Reach()
    reach.is_away = True
    host = Membership(MemoryStore(reach), "host", clock=WallClock())
    with pytest.raises(StoreUnavailable):
        await host.join()
    assert not host.is_alive


@pytest.mark.parametrize(("heartbeat_s", "alive_s"), [(0.0, 10.0), (6.0, 10.0), (1.0, float("nan"))])
def test_a_heartbeat_that_would_run_out_before_the_next_is_refused(heartbeat_s: float, alive_s: float) -> None:
    with pytest.raises(InvalidMembership, match="at least two"):
        MembershipTimes(heartbeat_s=heartbeat_s, alive_s=alive_s)


async def test_a_change_says_who_came_who_left_and_who_timed_out() -> None:
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
async def test_an_outage_of_the_store_is_told_once_and_so_is_its_end(names: list[str], consequence: str) -> None:
    reach, clock = Reach(), WallClock()
    store = MemoryStore(reach)
    host, *others = (Membership(store, name, clock=clock, times=TIMES) for name in names)
    for one in (*others, host):
        await one.join()
    with capture_logs() as lines:
        reach.is_away = True
        await host.beat()
        # The last heartbeat still holds.
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


async def test_a_host_that_has_left_misses_no_heartbeat() -> None:
    reach = Reach()
    host = Membership(MemoryStore(reach), "host", clock=WallClock(), times=SLOW)
    await host.join()
    await host.leave()
    reach.is_away = True
    with capture_logs() as lines:
        await host.beat()
    assert lines == []


async def test_a_failure_that_nobody_expected_does_not_end_the_heartbeats() -> None:
    class Damaged(MemoryStore):
        beats = 0

        async def heartbeat(self, member: Member) -> None:
            self.beats += 1
            if self.beats == 2:
                raise sqlite3.DatabaseError("malformed")
            await super().heartbeat(member)

    store, clock = Damaged(), asyncio.get_running_loop().time
    host = Membership(store, "host", clock=clock, times=MembershipTimes(heartbeat_s=0.01, alive_s=0.1))
    with capture_logs() as lines:
        await host.join()
        await asyncio.sleep(0.3)
        assert store.beats > 2
        assert host.is_alive
        await host.leave()
    assert [line["event"] for line in lines if "exc_info" in line] == ["heartbeat failed"]
