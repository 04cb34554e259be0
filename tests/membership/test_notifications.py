import asyncio

from fairlead.core.errors import RetryLater
from fairlead.membership.members import Membership, MembershipTimes
from fairlead.membership.notifications import NUDGE, NudgeRequest, NudgeResponse, Nudges, nudge_all
from fairlead.rpc.hosts.caller import Handlers
from fairlead.rpc.hosts.local import LocalNetwork
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import QueueId

# No heartbeat is due within a test.
SLOW = MembershipTimes(heartbeat_s=1000.0, alive_s=2000.0)


class Store:
    """Records the operations on the store, and delays them until `is_open` is set."""

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


async def run_pending_tasks() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_nudged_host_sees_joins_and_leaves_at_once() -> None:
    """FL-17: a stopping host leaves the ring first."""
    store, network = MemoryStore(), LocalNetwork()
    hosts = [Host(name, store, network) for name in ("a", "b", "c")]
    for host in hosts:
        await host.membership.join()
        await nudge_all(network.caller(), host.membership.ring.hosts, sender=host.membership.host, timeout_s=1.0)
        await run_pending_tasks()
    assert [host.membership.ring.hosts for host in hosts] == [("a", "b", "c")] * 3
    *others, last = hosts
    await last.membership.leave()
    await nudge_all(network.caller(), last.membership.ring.hosts, sender="c", timeout_s=1.0)
    await run_pending_tasks()
    assert [host.membership.ring.hosts for host in others] == [("a", "b")] * 2
    for host in others:
        await host.nudges.close()
        await host.membership.leave()


async def test_a_nudge_does_not_make_a_host_join_again() -> None:
    store, network = MemoryStore(), LocalNetwork()
    host = Host("a", store, network)
    await host.membership.join()
    await host.membership.leave()
    await nudge_all(network.caller(), ["a"], sender="b", timeout_s=1.0)
    await run_pending_tasks()
    assert await store.members(now_s=1000.0) == []


async def test_many_nudges_at_once_cause_one_refresh_and_one_more_after_it() -> None:
    watch = Store()
    network = LocalNetwork()
    host = Host("a", MemoryStore(watch), network)
    watch.is_open.clear()
    for _ in range(10):
        await network.caller().call("a", NUDGE, NudgeRequest("b"), timeout_s=1.0)
    await run_pending_tasks()
    assert watch.asked == ["members"]
    # The running refresh may have read before these nudges were sent.
    for _ in range(10):
        await network.caller().call("a", NUDGE, NudgeRequest("b"), timeout_s=1.0)
    watch.is_open.set()
    await run_pending_tasks()
    assert watch.asked == ["members", "members"]
    await host.nudges.close()


async def test_a_nudge_after_a_refresh_starts_a_new_refresh() -> None:
    watch = Store()
    network = LocalNetwork()
    host = Host("a", MemoryStore(watch), network)
    for _ in range(2):
        await network.caller().call("a", NUDGE, NudgeRequest("b"), timeout_s=1.0)
        await run_pending_tasks()
    assert watch.asked == ["members", "members"]
    await host.nudges.close()


async def test_close_cancels_the_refresh_and_starts_no_other() -> None:
    watch = Store()
    network = LocalNetwork()
    host = Host("a", MemoryStore(watch), network)
    watch.is_open.clear()
    await network.caller().call("a", NUDGE, NudgeRequest("b"), timeout_s=1.0)
    await run_pending_tasks()
    await host.nudges.close()
    await network.caller().call("a", NUDGE, NudgeRequest("b"), timeout_s=1.0)
    await run_pending_tasks()
    assert watch.asked == ["members"]


async def test_a_host_that_cannot_be_nudged_does_not_stop_the_nudges_to_others() -> None:
    network, watch = LocalNetwork(), Store()
    reported: list[str] = []

    async def refuse(request: NudgeRequest) -> NudgeResponse:
        reported.append(request.host)
        raise RetryLater("not now")

    refusing = Handlers()
    refusing.add(NUDGE, refuse)
    for name in ("refuses", "sender"):
        network.register(name, refusing)
    host = Host("a", MemoryStore(watch), network)
    await nudge_all(network.caller(), ["gone", "refuses", "a", "sender"], sender="sender", timeout_s=1.0)
    await run_pending_tasks()
    assert (reported, watch.asked) == (["sender"], ["members"])
    await host.nudges.close()
