"""Several hosts of the matching service in one process, over one store."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count

from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.matching.client import MatchingClient
from fairlead.matching.engine import EngineTimes
from fairlead.matching.messages import ADD, POLL, AddRequest, NewTask, PollRequest, PollResponse
from fairlead.matching.service import MatchingService
from fairlead.matching.task_starter import Starter, start_plainly
from fairlead.membership.members import Membership, MembershipTimes
from fairlead.membership.ring import MemberRing
from fairlead.rpc.hosts.local import LocalNetwork
from fairlead.settings import DynamicSettings, Plain
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import TaskStore
from fairlead.telemetry import Metrics

ORDERS = TaskQueueId("namespace", "orders", TaskType.ACTIVITY)
_POLL_IDS = count()
FAST = MembershipTimes(heartbeat_s=0.05, alive_s=2.0)


def new(payload: str, *, key: str = "", weight: float = 1.0, priority: int = 3) -> NewTask:
    return NewTask(priority, key, weight, payload.encode())


class Host:
    """One host; its `client` calls the service through this host's ring."""

    def __init__(
        self,
        name: str,
        network: LocalNetwork,
        store: TaskStore,
        settings: DynamicSettings,
        start: Starter,
        times: EngineTimes | None,
    ) -> None:
        self.name = name
        self._network = network
        loop = asyncio.get_running_loop()
        began_s = time.time() - loop.time()

        def clock() -> float:
            """Wall clock derived from the event loop's time, so that both are virtual under virtual time."""
            return began_s + loop.time()

        self.membership = Membership(store, name, clock=clock, times=FAST)
        self.ring = MemberRing(self.membership, settings, clock=clock)
        self.metrics = Metrics()
        self.service = MatchingService(
            name,
            store=store,
            caller=network.caller(),
            ring=self.ring,
            settings=settings,
            clock=clock,
            metrics=self.metrics,
            start=start,
            times=times,
        )
        self.client = MatchingClient(
            network.caller(), self.ring, settings=settings, clock=clock, random=random.Random(name).random
        )

    async def join(self) -> None:
        self._network.register(self.name, self.service.handlers())
        self.service.start()
        self.ring.start()
        await self.membership.join()

    async def leave(self) -> None:
        await self.membership.leave()
        await self.service.close()
        self._network.unregister(self.name)
        await self.ring.close()


class Hosts(dict[str, Host]):
    """The running hosts, by name."""

    def __init__(self, store: TaskStore, settings: DynamicSettings, start: Starter, times: EngineTimes | None) -> None:
        super().__init__()
        self.network = LocalNetwork()
        self.store = store
        self.settings = settings
        self._start = start
        self._times = times

    async def add(self, name: str) -> Host:
        host = self[name] = Host(name, self.network, self.store, self.settings, self._start, self._times)
        await host.join()
        for other in self.values():
            await other.membership.beat()
        return host

    async def remove(self, name: str) -> None:
        await self.pop(name).leave()

    @property
    def client(self) -> MatchingClient:
        return next(iter(self.values())).client

    async def loaded(self, *, partitions: int, task_queue: TaskQueueId = ORDERS) -> None:
        """Wait until this number of partitions of the task queue is loaded."""

        def count() -> int:
            return sum(one.task_queue == task_queue for host in self.values() for one in host.service.engine.loaded)

        async with asyncio.timeout(5):
            while count() < partitions:  # noqa: ASYNC110 - the engine has no event to wait for
                await asyncio.sleep(0.005)


@asynccontextmanager
async def hosts(
    *names: str,
    overrides: Mapping[str, Plain] | None = None,
    store: TaskStore | None = None,
    start: Starter = start_plainly,
    times: EngineTimes | None = None,
    settings: DynamicSettings | None = None,
) -> AsyncIterator[Hosts]:
    """Start these hosts, and close them at the end."""
    there = Hosts(store or MemoryStore(), settings or DynamicSettings(overrides=overrides), start, times)
    try:
        for name in names or ("one",):
            await there.add(name)
        yield there
    finally:
        for name in list(there):
            await there.remove(name)
        await there.store.close()


def at(number: int) -> Partition:
    """A partition of the task queue `ORDERS`."""
    return Partition(ORDERS, number)


async def add_to(there: Hosts, number: int, payload: str) -> bool:
    """Add a task to this partition. Returns whether a poll has started it."""
    caller, host = there.network.caller(), there.client.route(at(number))
    return (await caller.call(host, ADD, AddRequest(at(number), new(payload)), timeout_s=5)).is_started


async def poll_at(
    there: Hosts, number: int, *, timeout_s: float = 5.0, rate_per_s: float | None = None, identity: str = "worker"
) -> PollResponse:
    """Poll this partition."""
    caller, host = there.network.caller(), there.client.route(at(number))
    request = PollRequest(at(number), identity, f"poll-{next(_POLL_IDS)}", timeout_s, rate_per_s=rate_per_s)
    return await caller.call(host, POLL, request, timeout_s=timeout_s + 1)


def partitions(read: int, write: int | None = None) -> dict[str, Plain]:
    """Settings for a task queue with these numbers of partitions."""
    return {
        "matching.numTasklistReadPartitions": read,
        "matching.numTasklistWritePartitions": read if write is None else write,
    }
