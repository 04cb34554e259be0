"""A task queue for tests of its root: a real in-memory store, fake partitions, and a network with planned faults."""

import asyncio
import functools
import itertools
import selectors
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from structlog.typing import FilteringBoundLogger

from fairlead.core.partitions import DrainReport, PartitionConfig, TaskType, accept
from fairlead.matching.messages import BacklogReport, DescribeResponse, DispatchRules, Versions
from fairlead.matching.partition.lease import QueueLease
from fairlead.matching.root.coordinator import RootCoordinator
from fairlead.matching.root.state import RootState, decode_state, encode_record
from fairlead.rpc.hosts.caller import CallLost, Unreachable
from fairlead.settings import DynamicSettings, Plain, Scope
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import OutcomeUnknown, QueueId, StoreUnavailable
from fairlead.telemetry import Metrics

T = TypeVar("T")

SCOPE = Scope("namespace", "orders", TaskType.ACTIVITY)
ROOT = QueueId("namespace", "orders", TaskType.ACTIVITY)
TICK_S, REPAIR_S = 15.0, 10.0
SCALER_ON: dict[str, Plain] = {
    "matching.enableAdaptiveScaler": True,
    "matching.partitionUpscaleRPS": 100.0,
    "matching.partitionUpscaleSustainedDuration": "0s",
    "matching.partitionDownscaleSustainedDuration": "0s",
}


class _Selector(selectors.DefaultSelector):
    """Advances the loop's time where the loop would sleep."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "deadlock: no timer is set and no I/O is ready"
            self.loop.now_s += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time: hours take milliseconds."""

    def __init__(self) -> None:
        selector = _Selector()
        super().__init__(selector)
        self.now_s = 1_000_000.0
        selector.loop = self

    def time(self) -> float:
        return self.now_s


def timers() -> int:
    """Number of timers that are set."""
    loop = asyncio.get_running_loop()
    return sum(not handle.cancelled() for handle in loop._scheduled)  # type: ignore[attr-defined]


_worlds: list["World"] = []


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on virtual time; fail the test if a world has recorded a violation."""
    _worlds.clear()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(work)
    for world in _worlds:
        assert world.violations == []
    return result


def on_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def wrapped() -> None:
        run(test())

    return wrapped


@dataclass
class Trouble:
    """Faults of the store: for each operation, actions for its next calls, in order; None does nothing."""

    before_it: dict[str, list[Callable[[], Awaitable[Any]] | None]] = field(default_factory=dict)
    after_it: dict[str, list[Callable[[], Awaitable[Any]] | None]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    async def before(self, operation: str, queue: QueueId | None) -> Callable[[], Awaitable[None]] | None:
        self.calls.append(operation)
        wait: Callable[[], Awaitable[None]] | None = await self._next(self.before_it, operation)
        return wait

    async def after(self, operation: str, queue: QueueId | None) -> None:
        await self._next(self.after_it, operation)

    async def _next(self, actions: dict[str, list[Callable[[], Awaitable[Any]] | None]], operation: str) -> Any:
        action = actions[operation].pop(0) if actions.get(operation) else None
        return None if action is None else await action()


async def unavailable() -> None:
    raise StoreUnavailable("the store is away")


async def unknown() -> None:
    raise OutcomeUnknown("the store did not answer")


async def never() -> None:
    await asyncio.Event().wait()


@dataclass
class Member:
    """One partition, as its owner has it in memory."""

    config: PartitionConfig
    rules: DispatchRules = field(default_factory=DispatchRules)
    adds_per_s: float = 0.0
    tasks: int = 0
    appends_in_flight: int = 0
    is_up: bool = True


# May return the acknowledged version; then the push doesn't reach the partition.
PushFault = Callable[[int, PartitionConfig], Awaitable[int | None]]
AskFault = Callable[[int], Awaitable[None]]


class StoredRoot:
    """The root's state in an in-memory store, under a lease."""

    def __init__(self, store: MemoryStore, lease: QueueLease) -> None:
        self._store = store
        self._lease = lease

    async def save(self, state: RootState, *, before: RootState) -> None:
        if (state.rules, state.source) == (before.rules, before.source):
            await self._store.save_config(ROOT, self._lease.range_id, state.config)
        else:
            await self._store.save_rules(ROOT, self._lease.range_id, state.config, encode_record(state))

    async def load(self) -> RootState | None:
        await self._lease.renew(self._lease.range_id)
        config = await self._store.load_config(ROOT)
        return None if config is None else decode_state(config, await self._store.load_rules(ROOT))


class World:
    """The partitions of one task queue, and a record of the calls and changes of its root."""

    def __init__(self, settings: DynamicSettings) -> None:
        _worlds.append(self)
        self.violations: list[str] = []
        self.counts = Metrics().partition(*ROOT, 0)
        self.log: FilteringBoundLogger = structlog.wrap_logger(
            structlog.ReturnLogger(),
            processors=[self._record_log],
            wrapper_class=structlog.make_filtering_bound_logger(0),
        )
        self.logged: list[str] = []
        self.trouble = Trouble()
        self.store = MemoryStore(self.trouble)
        self.lease = self.new_lease()
        self.settings = settings
        self.members: dict[int, Member] = {}
        self.sent: list[tuple[int, int]] = []
        # Configuration versions that partitions reported and that are newer than the root's.
        self.newer: list[int] = []
        self.asked: list[tuple[int, bool]] = []
        self.changes: list[PartitionConfig] = []
        self.rules = DispatchRules()
        self.under_way = self.under_way_most = 0
        self.before_push: PushFault | None = None
        self.after_push: PushFault | None = None
        self.before_ask: AskFault | None = None
        self.after_ask: AskFault | None = None
        # Stored partitions that the configuration does not read, and whether each holds tasks.
        self.outside: dict[int, bool] = {}
        self.seen: dict[int, PartitionConfig] = {}

    @classmethod
    async def make(
        cls,
        *,
        read: int = 1,
        write: int = 1,
        version: int = 1,
        settings: DynamicSettings | dict[str, Plain] | None = None,
    ) -> "World":
        """A stored configuration, and all partitions loaded with it."""
        world = cls(settings if isinstance(settings, DynamicSettings) else DynamicSettings(overrides=settings))
        await world.lease.take()
        config = PartitionConfig(version=version, read=read, write=write)
        await world.store.save_config(ROOT, world.lease.range_id, config)
        world.members = {number: Member(config) for number in range(read)}
        world.trouble.calls.clear()
        return world

    def new_lease(self) -> QueueLease:
        """A lease for another host; the caller takes it."""
        return QueueLease(self.store, ROOT, Metrics().partition(*ROOT, 0))

    @property
    def stored(self) -> PartitionConfig:
        """The stored configuration, read without faults."""
        config = self.store._queues[ROOT].config
        assert config is not None
        return config

    def root(self) -> RootCoordinator:
        """A coordinator under the current lease."""
        lease = self.lease

        changes = self.changes = []
        highest_sent: dict[int, int] = {}

        async def push(number: int, config: PartitionConfig, rules: DispatchRules) -> Versions:
            if config.version < highest_sent.get(number, 0):
                self.violations.append(f"{config} is pushed to {number} after a newer one")
            highest_sent[number] = config.version
            return await self.push(number, config, rules)

        return RootCoordinator(
            state=decode_state(self.stored, self.store._queues[ROOT].rules),
            store=StoredRoot(self.store, lease),
            outside=self.outside,
            ask=self.ask,
            push=push,
            on_change=lambda config, rules: self.change(config, rules, changes),
            settings=self.settings,
            scope=SCOPE,
            clock=lambda: asyncio.get_running_loop().time(),
            counts=self.counts,
            log=self.log,
        )

    def change(self, config: PartitionConfig, rules: DispatchRules, changes: list[PartitionConfig]) -> None:
        """Record that a root uses another configuration; `changes` lists the ones that it used before."""
        self.see(config)
        self.rules = rules
        if changes and config.version != changes[-1].version + (config != changes[-1]):
            self.violations.append(f"{config} follows {changes[-1]}")
        changes.append(config)
        if changes is not self.changes:
            # This root has lost its lease: it learned late that its save took effect.
            return
        if self.stored != config:
            self.violations.append(f"{config} is used, {self.stored} is stored")
        self.members[0].config = config

    def see(self, config: PartitionConfig) -> None:
        """Check a configuration in use: it is stored, and no other one has its version."""
        if config.version > self.stored.version:
            self.violations.append(f"{config} is in use, but only {self.stored} is stored")
        if self.seen.setdefault(config.version, config) != config:
            self.violations.append(f"{config} is in use, and so is {self.seen[config.version]} of the same version")

    async def push(self, number: int, config: PartitionConfig, rules: DispatchRules) -> Versions:
        self.see(config)
        if number == 0:
            self.violations.append("the root pushed to itself")
        self.sent.append((number, config.version))
        self.under_way += 1
        self.under_way_most = max(self.under_way_most, self.under_way)
        try:
            answer = None if self.before_push is None else await self.before_push(number, config)
            if answer is not None:
                return Versions(answer, rules.version)
            member = self.member(number)
            member.config = accept(member.config, config)
            if member.rules.version < rules.version:
                member.rules = rules
            versions = Versions(member.config.version, member.rules.version)
            if self.after_push is not None:
                await self.after_push(number, config)
            return versions
        finally:
            self.under_way -= 1

    async def ask(self, number: int, with_drain: bool) -> DescribeResponse:
        self.asked.append((number, with_drain))
        if self.before_ask is not None:
            await self.before_ask(number)
        answer = self.describe(number, with_drain=with_drain)
        if self.after_ask is not None:
            await self.after_ask(number)
        return answer

    def member(self, number: int) -> Member:
        """The partition; if it isn't loaded, its owner loads it with the stored configuration."""
        member = self.members.setdefault(number, Member(self.stored))
        if not member.is_up:
            raise Unreachable(f"partition {number} has no owner now")
        return member

    def describe(self, number: int, *, with_drain: bool) -> DescribeResponse:
        member = self.member(number)
        drain = DrainReport(number, member.config.version, member.appends_in_flight, member.tasks)
        return DescribeResponse(
            partition=number,
            host="host",
            config=member.config,
            report=BacklogReport(number, member.tasks, 0.0, member.adds_per_s, 0.0),
            dispatches_per_s=0.0,
            polls_waiting=0,
            tasks_loaded=0,
            range_id=1,
            pollers=[],
            priorities=[],
            scaler_adds_per_s=member.adds_per_s,
            rate_limit_per_s=0.0,
            drain=drain if with_drain else None,
            rules=member.rules,
        )

    def load_each(self, adds_per_s: float) -> None:
        """Set the rate at which tasks arrive at each write partition."""
        write = self.members[0].config.write
        for number, member in self.members.items():
            member.adds_per_s = adds_per_s if number < write else 0.0

    def _record_log(self, logger: Any, level: str, event: MutableMapping[str, Any]) -> str:
        self.logged.append(event["event"])
        if level == "error":
            self.violations.append(f"logged as an error: {event}")
        return ""

    def versions(self, read: int) -> list[int]:
        return [self.member(number).config.version for number in range(read)]


async def lost(number: int, config: PartitionConfig) -> None:
    raise CallLost("no response")


def first(times: int, fault: PushFault) -> PushFault:
    """Apply the fault to the first `times` pushes only."""
    counter = itertools.count()

    async def sometimes(number: int, config: PartitionConfig) -> None:
        if next(counter) < times:
            await fault(number, config)

    return sometimes
