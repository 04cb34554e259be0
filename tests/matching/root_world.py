"""A task list in memory for the tests of its root: a real store, partitions that obey, and a network that may not."""

import asyncio
import functools
import itertools
import selectors
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from structlog.typing import FilteringBoundLogger

from fairlead.cluster.calls import CallLost, Unreachable
from fairlead.core.partitions import DrainReport, PartitionConfig, TaskType, accept
from fairlead.matching.lease import QueueLease
from fairlead.matching.messages import BacklogReport, DescribeAnswer, DispatchRules
from fairlead.matching.root import RootCoordinator
from fairlead.matching.rules import decode_rules, encode_rules
from fairlead.settings import DynamicSettings, Plain, Scope
from fairlead.storage.contract import OutcomeUnknown, QueueId, StoreUnavailable
from fairlead.storage.memory import MemoryStore
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
    """Where the loop would sleep, its time moves on instead."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits for something that nobody will do"
            self.loop.now_s += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on which hours take milliseconds."""

    def __init__(self) -> None:
        selector = _Selector()
        super().__init__(selector)
        self.now_s = 1_000_000.0
        selector.loop = self

    def time(self) -> float:
        return self.now_s


def timers() -> int:
    """How many timers are running."""
    loop = asyncio.get_running_loop()
    return sum(not handle.cancelled() for handle in loop._scheduled)  # type: ignore[attr-defined]


_worlds: list["World"] = []


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on virtual time; whatever a world has seen that must not be fails the test."""
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
    """What goes wrong with the store: an action for the next operations of each name, in order; None is no trouble."""

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
    """One partition as its owner has it."""

    config: PartitionConfig
    adds_per_s: float = 0.0
    tasks: int = 0
    appends_in_flight: int = 0
    is_up: bool = True


# May say what is answered, and then nothing else happens.
PushFault = Callable[[int, PartitionConfig], Awaitable[int | None]]
AskFault = Callable[[int], Awaitable[None]]


class World:
    """The partitions of one task list, and what its root has said to them and done."""

    def __init__(self, settings: DynamicSettings) -> None:
        _worlds.append(self)
        self.violations: list[str] = []
        self.counts = Metrics().partition(*ROOT, 0)
        self.log: FilteringBoundLogger = structlog.wrap_logger(
            structlog.ReturnLogger(),
            processors=[self._hear],
            wrapper_class=structlog.make_filtering_bound_logger(0),
        )
        self.logged: list[str] = []
        self.trouble = Trouble()
        self.store = MemoryStore(self.trouble)
        self.lease = self.new_lease()
        self.settings = settings
        self.members: dict[int, Member] = {}
        self.sent: list[tuple[int, int]] = []
        self.asked: list[tuple[int, bool]] = []
        self.changes: list[PartitionConfig] = []
        self.rules = DispatchRules()
        self.under_way = self.under_way_most = 0
        self.before_push: PushFault | None = None
        self.after_push: PushFault | None = None
        self.before_ask: AskFault | None = None
        self.after_ask: AskFault | None = None
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
        """A task list with this configuration stored, and all of its partitions loaded with it."""
        world = cls(settings if isinstance(settings, DynamicSettings) else DynamicSettings(overrides=settings))
        await world.lease.take()
        config = PartitionConfig(version=version, read=read, write=write)
        await world.store.save_config(ROOT, world.lease.range_id, config)
        world.members = {number: Member(config) for number in range(read)}
        world.trouble.calls.clear()
        return world

    def new_lease(self) -> QueueLease:
        """The hold of another host, once it has taken it."""
        return QueueLease(self.store, ROOT, Metrics().partition(*ROOT, 0))

    @property
    def stored(self) -> PartitionConfig:
        """What is in the store, whatever trouble there is in reading it."""
        config = self.store._queues[ROOT].config
        assert config is not None
        return config

    def root(self) -> RootCoordinator:
        """A coordinator of whoever has the lease now."""
        lease = self.lease

        async def save(config: PartitionConfig) -> None:
            await self.store.save_config(ROOT, lease.range_id, config)

        async def load() -> PartitionConfig | None:
            await lease.renew(lease.range_id)
            return await self.store.load_config(ROOT)

        async def save_rules(config: PartitionConfig, rules: DispatchRules) -> None:
            await self.store.save_rules(ROOT, lease.range_id, config, encode_rules(rules))

        async def load_rules() -> DispatchRules:
            return decode_rules(await self.store.load_rules(ROOT))

        changes = self.changes = []
        highest_sent: dict[int, int] = {}

        async def push(number: int, config: PartitionConfig) -> int:
            if config.version < highest_sent.get(number, 0):
                self.violations.append(f"{config} is told to {number} after a newer one")
            highest_sent[number] = config.version
            return await self.push(number, config)

        return RootCoordinator(
            config=self.stored,
            rules=decode_rules(self.store._queues[ROOT].rules),
            save=save,
            load=load,
            save_rules=save_rules,
            load_rules=load_rules,
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
        """A root goes by another configuration; `changes` are those that it went by before."""
        self.see(config)
        self.rules = rules
        if changes and config.version != changes[-1].version + 1:
            self.violations.append(f"{config} follows {changes[-1]}")
        changes.append(config)
        if changes is not self.changes:
            # A root that was one: it has learned late that it had saved.
            return
        if self.stored != config:
            self.violations.append(f"{config} is used, {self.stored} is stored")
        self.members[0].config = config

    def see(self, config: PartitionConfig) -> None:
        """Somebody goes by this or is told of it: it has been stored, and its version has one meaning only."""
        if config.version > self.stored.version:
            self.violations.append(f"{config} is out, {self.stored} is stored")
        if self.seen.setdefault(config.version, config) != config:
            self.violations.append(f"{config} is out, and so is {self.seen[config.version]}")

    async def push(self, number: int, config: PartitionConfig) -> int:
        self.see(config)
        if number == 0:
            self.violations.append("the root is pushed to")
        self.sent.append((number, config.version))
        self.under_way += 1
        self.under_way_most = max(self.under_way_most, self.under_way)
        try:
            answer = None if self.before_push is None else await self.before_push(number, config)
            if answer is not None:
                return answer
            member = self.member(number)
            member.config = accept(member.config, config)
            version = member.config.version
            if self.after_push is not None:
                await self.after_push(number, config)
            return version
        finally:
            self.under_way -= 1

    async def ask(self, number: int, with_drain: bool) -> DescribeAnswer:
        self.asked.append((number, with_drain))
        if self.before_ask is not None:
            await self.before_ask(number)
        answer = self.describe(number, with_drain=with_drain)
        if self.after_ask is not None:
            await self.after_ask(number)
        return answer

    def member(self, number: int) -> Member:
        """The partition, which its owner loads with the stored configuration if it is not loaded."""
        member = self.members.setdefault(number, Member(self.stored))
        if not member.is_up:
            raise Unreachable(f"partition {number} has no owner now")
        return member

    def describe(self, number: int, *, with_drain: bool) -> DescribeAnswer:
        member = self.member(number)
        drain = DrainReport(number, member.config.version, member.appends_in_flight, member.tasks)
        return DescribeAnswer(
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
        )

    def load_each(self, adds_per_s: float) -> None:
        """So many tasks a second come to each write partition, from now on."""
        write = self.members[0].config.write
        for number, member in self.members.items():
            member.adds_per_s = adds_per_s if number < write else 0.0

    def _hear(self, logger: Any, level: str, event: MutableMapping[str, Any]) -> str:
        self.logged.append(event["event"])
        if level == "error":
            self.violations.append(f"logged as a bug: {event}")
        return ""

    def versions(self, read: int) -> list[int]:
        return [self.member(number).config.version for number in range(read)]


async def lost(number: int, config: PartitionConfig) -> None:
    raise CallLost("no answer")


def first(times: int, fault: PushFault) -> PushFault:
    """Only the first so many times."""
    counter = itertools.count()

    async def sometimes(number: int, config: PartitionConfig) -> None:
        if next(counter) < times:
            await fault(number, config)

    return sometimes
