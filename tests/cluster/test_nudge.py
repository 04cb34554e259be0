import asyncio

from fairlead.cluster import (
    NUDGE,
    Handlers,
    LocalNetwork,
    Membership,
    MembershipTimes,
    NudgeAnswer,
    NudgeRequest,
    Nudges,
    nudge_all,
)
from fairlead.core.errors import RetryLater
from fairlead.storage.contract import QueueId
from fairlead.storage.memory import MemoryStore

# Never beats by itself within a test.
SLOW = MembershipTimes(heartbeat_s=1000.0, alive_s=2000.0)


class Store:
    """Notes what is asked of it, and answers when `is_open`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def before(self, operation: str, queue: QueueId | None) -> None:
        self.asked.append(operation)
        await self.is_open.wait()

    async def after(self, operation: str, queue: QueueId | None) -> None:
        return


class Host:
    def __init__(self, name: str, store: MemoryStore, network: LocalNetwork) -> None:
        self.membership = Membership(store, name, clock=lambda: 1000.0, times=SLOW)
        self.nudges = Nudges(self.membership)
        handlers = Handlers()
        self.nudges.add_to(handlers)
        network.register(name, handlers)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_those_who_are_nudged_see_at_once_who_has_joined_and_who_has_left() -> None:
    """Issue 3: a host that stops leaves the ring first."""
    store, network = MemoryStore(), LocalNetwork()
    hosts = [Host(name, store, network) for name in ("a", "b", "c")]
    for host in hosts:
        await host.membership.join()
        await nudge_all(network.caller(), host.membership.ring.hosts, sender=host.membership.host, timeout_s=1.0)
        await turns()
    assert [host.membership.ring.hosts for host in hosts] == [("a", "b", "c")] * 3
    *others, last = hosts
    await last.membership.leave()
    await nudge_all(network.caller(), last.membership.ring.hosts, sender="c", timeout_s=1.0)
    await turns()
    assert [host.membership.ring.hosts for host in others] == [("a", "b")] * 2
    for host in others:
        await host.nudges.close()
        await host.membership.leave()


async def test_a_host_that_has_left_stays_away_when_it_is_nudged() -> None:
    store, network = MemoryStore(), LocalNetwork()
    host = Host("a", store, network)
    await host.membership.join()
    await host.membership.leave()
    await nudge_all(network.caller(), ["a"], sender="b", timeout_s=1.0)
    await turns()
    assert await store.members(now_s=1000.0) == []


async def test_many_nudges_at_once_are_one_look_and_one_more_after_it() -> None:
    watch = Store()
    network = LocalNetwork()
    host = Host("a", MemoryStore(watch), network)
    watch.is_open.clear()
    for _ in range(10):
        await network.caller().call("a", NUDGE, NudgeRequest("b"), timeout_s=1.0)
    await turns()
    assert watch.asked == ["members"]
    # What is being read may be older than these.
    for _ in range(10):
        await network.caller().call("a", NUDGE, NudgeRequest("b"), timeout_s=1.0)
    watch.is_open.set()
    await turns()
    assert watch.asked == ["members", "members"]
    await host.nudges.close()


async def test_a_nudge_after_the_look_has_ended_is_a_new_look() -> None:
    watch = Store()
    network = LocalNetwork()
    host = Host("a", MemoryStore(watch), network)
    for _ in range(2):
        await network.caller().call("a", NUDGE, NudgeRequest("b"), timeout_s=1.0)
        await turns()
    assert watch.asked == ["members", "members"]
    await host.nudges.close()


async def test_closing_ends_the_look_and_starts_no_other() -> None:
    watch = Store()
    network = LocalNetwork()
    host = Host("a", MemoryStore(watch), network)
    watch.is_open.clear()
    await network.caller().call("a", NUDGE, NudgeRequest("b"), timeout_s=1.0)
    await turns()
    await host.nudges.close()
    await network.caller().call("a", NUDGE, NudgeRequest("b"), timeout_s=1.0)
    await turns()
    assert watch.asked == ["members"]


async def test_hosts_that_can_not_be_told_do_not_keep_the_others_from_it() -> None:
    network, watch = LocalNetwork(), Store()
    told: list[str] = []

    async def refuse(request: NudgeRequest) -> NudgeAnswer:
        told.append(request.host)
        raise RetryLater("not now")

    refusing = Handlers()
    refusing.add(NUDGE, refuse)
    for name in ("refuses", "sender"):
        network.register(name, refusing)
    host = Host("a", MemoryStore(watch), network)
    await nudge_all(network.caller(), ["gone", "refuses", "a", "sender"], sender="sender", timeout_s=1.0)
    await turns()
    assert (told, watch.asked) == (["sender"], ["members"])
    await host.nudges.close()
