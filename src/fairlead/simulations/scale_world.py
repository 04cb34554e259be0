"""A cluster of many hosts and task queues for `fairlead simulate scale`: the server's classes, with counted calls."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Self, cast

import structlog

from fairlead.core.partitions import DrainReport, Partition, PartitionConfig, TaskQueueId, TaskType
from fairlead.core.routing import HashRing, Router
from fairlead.matching.messages import BacklogReport, DescribeResponse, DispatchRules, Versions
from fairlead.matching.root.coordinator import RootCoordinator
from fairlead.matching.root.state import RootState
from fairlead.membership.members import Membership, MembershipTimes
from fairlead.membership.notifications import Nudges, nudge_all
from fairlead.membership.ring import MemberRing
from fairlead.rpc.hosts.caller import Caller, Handlers, Method, Request, Response
from fairlead.rpc.hosts.local import LocalNetwork
from fairlead.settings import DynamicSettings, Plain, Scope
from fairlead.settings.dynamic import membership as membership_settings
from fairlead.settings.dynamic.matching import SPREAD_ROUTING_BATCH_SIZE
from fairlead.simulations.virtual_loop import Process, VirtualLoop
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import Member
from fairlead.telemetry import Metrics

NUDGE_S_MAX = 1.0
# Seconds of virtual time between two checks whether all hosts have the same ring, and until that must be so.
AGREED_CHECK_S, AGREED_S_MAX = 0.05, 60.0
# Tasks added per second to each partition: below and above the scaler's threshold.
CALM_ADDS_PER_S, BUSY_ADDS_PER_S = 100.0, 2_000.0

# The scaler decides at its first tick, so that a short run shows it.
_SETTINGS: dict[str, Plain] = {
    "matching.enableAdaptiveScaler": True,
    "matching.partitionUpscaleSustainedDuration": "0s",
}

Act = Callable[[], Awaitable[None]]

_SILENT = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(50))


class _SharedRing(HashRing):
    """Computes each ring once for all hosts of this process; every host of a real cluster computes it itself."""

    __slots__ = ()
    known: "dict[tuple[str, ...], _SharedRing]" = {}  # noqa: RUF012 - shared on purpose

    def with_hosts(self, hosts: Iterable[str]) -> Self:
        members = tuple(sorted(set(hosts)))
        found = self.known.get(members)
        if found is None:
            found = self.known[members] = super().with_hosts(members)
        return cast("Self", found)


class _CountedStore(MemoryStore):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    async def heartbeat(self, member: Member, *, now_s: float = 0.0) -> list[Member]:
        found = await super().heartbeat(member, now_s=now_s)
        self._counts["heartbeats"] += 1
        self._counts["member_rows"] += len(found)
        return found

    async def members(self, *, now_s: float) -> list[Member]:
        found = await super().members(now_s=now_s)
        self._counts["refreshed_rows"] += len(found)
        return found


class _CountedCaller:
    def __init__(self, caller: Caller, counts: Counter[str]) -> None:
        self._caller = caller
        self._counts = counts

    async def call(
        self, host: str, method: Method[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        self._counts["nudges"] += 1
        return await self._caller.call(host, method, request, timeout_s=timeout_s)


class _RootStore:
    """Keeps the configuration of one task queue, and counts the saves."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._state: RootState | None = None

    async def save(self, state: RootState, *, before: RootState) -> None:  # noqa: ARG002 - the store's contract
        self._counts["saves"] += 1
        self._state = state

    async def load(self) -> RootState | None:
        return self._state


class _Host:
    """One host: its membership, its view of the ring, and the partitions that it has loaded."""

    def __init__(self, name: str, world: "World") -> None:
        self.process = Process(name)
        self._counts = world.counts
        self.membership = Membership(world.store, name, clock=world.clock, times=world.times, ring=_SharedRing([]))
        self.view = MemberRing(self.membership, world.settings, clock=world.clock)
        self.loaded: set[Partition] = set()
        self.membership.on_change(self._ring_changed)
        self.view.on_change(self._reconsider)
        handlers = Handlers()
        Nudges(self.membership).add_to(handlers)
        world.network.register(name, handlers)

    async def join(self) -> None:
        """Enter the ring, and begin to follow it."""
        self.view.start()
        await self.membership.join()

    def _ring_changed(self, _: HashRing) -> None:
        self._counts["rings"] += 1

    def _reconsider(self) -> None:
        """Unload the partitions that another host owns now, as matching's engine does."""
        self._counts["checks"] += len(self.loaded)
        name = self.membership.host
        self.loaded = {partition for partition in self.loaded if self.view.route(partition) == name}


class World:
    """The cluster. All counts are sums over the hosts."""

    def __init__(self, *, seed: int, hosts: int, queues: int, per_queue: int, growing: int) -> None:
        self._random = Random(seed)  # noqa: S311 - must be repeatable, not secret
        self.counts: Counter[str] = Counter()
        # Whether the load of the task queues that should grow is high.
        self.is_growing = False
        self.settings = DynamicSettings(overrides=_SETTINGS)
        self.times = MembershipTimes(
            heartbeat_s=self.settings.get(membership_settings.HEARTBEAT_INTERVAL),
            alive_s=self.settings.get(membership_settings.MEMBER_EXPIRY),
        )
        self.store = _CountedStore(self.counts)
        self.network = LocalNetwork()
        self._caller = _CountedCaller(self.network.caller(), self.counts)
        self._loop = cast("VirtualLoop", asyncio.get_running_loop())
        _SharedRing.known.clear()
        names = [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:7235" for number in range(hosts + 1)]
        self._spare = names.pop()
        self._hosts = {name: _Host(name, self) for name in names}
        self._queues = [
            TaskQueueId(f"{self._random.getrandbits(64):016x}", f"queue-{number}", TaskType.ACTIVITY)
            for number in range(queues)
        ]
        self._partitions = [Partition(queue, number) for queue in self._queues for number in range(per_queue)]
        config = PartitionConfig(version=1, read=per_queue, write=per_queue)
        metrics = Metrics()
        self._roots = [
            self._root(queue, config, metrics, is_busy=number < growing) for number, queue in enumerate(self._queues)
        ]

    def clock(self) -> float:
        """The virtual time of the loop, as the wall clock."""
        return self._loop.time()

    async def start(self) -> None:
        """Start all hosts as members of an existing ring, with heartbeats spread over one interval; and start all
        roots.
        """
        for name in self._hosts:
            await MemoryStore.heartbeat(self.store, Member(name, self.clock() + self.times.alive_s))
        pause_s = self.times.heartbeat_s / len(self._hosts)
        for host in self._hosts.values():
            self._loop.spawn(host.process, host.join(), "join")
            await asyncio.sleep(pause_s)
        for partition, name in self.owners().items():
            self._hosts[name].loaded.add(partition)
        for root in self._roots:
            root.start()
            await asyncio.sleep(10.0 / len(self._roots))

    async def close(self) -> None:
        """Stop the roots; the loop stops the rest."""
        for root in self._roots:
            await root.close()

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)

    def owners(self) -> dict[Partition, str]:
        """The owner of each partition, by the ring of a live host."""
        ring = next(iter(self._hosts.values())).membership.ring
        router = Router(ring, self.settings.get(SPREAD_ROUTING_BATCH_SIZE))
        return {partition: router.route(partition, self.clock()) for partition in self._partitions}

    def settle_counts(self) -> None:
        """Load each partition at its owner, as the first request does, and reset all counts."""
        for partition, name in self.owners().items():
            self._hosts[name].loaded.add(partition)
        self.counts.clear()

    async def leave(self) -> None:
        """One host announces that it leaves."""
        name, host = self._take()
        await host.membership.leave()
        self.network.unregister(name)
        await nudge_all(self._caller, self._hosts, sender=name, timeout_s=NUDGE_S_MAX)

    async def crash(self) -> None:
        """One host crashes, without an announcement."""
        name, host = self._take()
        host.process.is_killed = True
        self.network.unregister(name)

    async def join(self) -> None:
        """One host joins, and notifies the others."""
        host = self._hosts[self._spare] = _Host(self._spare, self)
        await self._loop.spawn(host.process, host.join(), "join")
        others = [name for name in self._hosts if name != self._spare]
        await nudge_all(self._caller, others, sender=self._spare, timeout_s=NUDGE_S_MAX)

    async def until_agreed(self, act: Act) -> float:
        """Make a change; returns the seconds until the rings of all live hosts have exactly the live hosts."""
        began_s = self.clock()
        await act()
        wanted = tuple(sorted(self._hosts))
        while any(host.membership.ring.hosts != wanted for host in self._hosts.values()):
            await asyncio.sleep(AGREED_CHECK_S)
            if self.clock() - began_s > AGREED_S_MAX:
                raise AssertionError(f"the hosts do not agree after {AGREED_S_MAX} s")
        return self.clock() - began_s

    def _take(self) -> tuple[str, _Host]:
        """Choose a host, which is no longer one of the live hosts."""
        name = self._random.choice(sorted(self._hosts)[1:])
        return name, self._hosts.pop(name)

    def _root(self, queue: TaskQueueId, config: PartitionConfig, metrics: Metrics, *, is_busy: bool) -> RootCoordinator:
        calm_per_s, busy_per_s = CALM_ADDS_PER_S * config.write, BUSY_ADDS_PER_S * config.write
        root: RootCoordinator

        async def ask(number: int, with_drain: bool) -> DescribeResponse:  # noqa: FBT001 - the shape of `Ask`
            if number:
                self.counts["reports"] += 1
            in_force = root.config
            adds_per_s = busy_per_s if is_busy and self.is_growing else calm_per_s
            return _description(number, in_force, adds_per_s / in_force.write, with_drain=with_drain)

        async def push(_: int, config: PartitionConfig, rules: DispatchRules) -> Versions:
            self.counts["pushes"] += 1
            self.counts["pushes_of_changes"] += config.version > 1
            return Versions(config.version, rules.version)

        root = RootCoordinator(
            state=RootState(config),
            store=_RootStore(self.counts),
            outside={},
            ask=ask,
            push=push,
            on_change=lambda _config, _rules: None,
            settings=self.settings,
            scope=Scope(queue.namespace_id, queue.name, queue.type),
            clock=self.clock,
            counts=metrics.partition(queue.namespace_id, queue.name, queue.type, 0),
            log=_SILENT,
        )
        return root


def _description(number: int, config: PartitionConfig, adds_per_s: float, *, with_drain: bool) -> DescribeResponse:
    return DescribeResponse(
        partition=number,
        host="host",
        config=config,
        report=BacklogReport(number, 0, 0.0, adds_per_s, 0.0),
        dispatches_per_s=adds_per_s,
        polls_waiting=1,
        tasks_loaded=0,
        range_id=1,
        pollers=[],
        priorities=[],
        scaler_adds_per_s=adds_per_s,
        rate_limit_per_s=0.0,
        drain=DrainReport(number, config.version, 0, 0) if with_drain else None,
    )
