"""Random faults in network, store and hosts: versions never decrease, no task is stranded, and all partitions converge.

SC-1, FL-19, FL-20, FL-21, FL-25, FL-26.
"""

import asyncio
import contextlib
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import PartitionConfig, accept
from fairlead.matching.root.config_push import REFRESHES_BETWEEN_REMINDERS
from fairlead.rpc.hosts.caller import CallLost, Unreachable
from fairlead.settings import DynamicSettings
from fairlead.storage.tasks import OutcomeUnknown, QueueId, StoreUnavailable
from tests.matching.root_world import REPAIR_S, VirtualLoop, World

STRENGTHS = st.sampled_from([0.0, 0.05, 0.2, 0.5])
MOMENTS = st.sampled_from([0.0, 0.0, 0.01, 1.0, 5.0, 40.0])
SETTINGS = """
matching.enableAdaptiveScaler: [{{value: {on}}}]
matching.partitionUpscaleRPS: [{{value: 100}}]
matching.partitionUpscaleSustainedDuration: [{{value: 0s}}]
matching.partitionDownscaleSustainedDuration: [{{value: 0s}}]
matching.taskListMaximumWritePartitions: [{{value: 7}}]
"""


class Storm:
    """Random faults; `strength` is the probability of each."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.strength = 0.0
        # Partitions that get no pushes, but still respond to questions.
        self.deaf: set[int] = set()

    def strikes(self) -> bool:
        return self._random.random() < self.strength

    async def delay(self) -> None:
        if self.strikes():
            await asyncio.sleep(self._random.choice([0.0, 0.1, 1.0, 5.0, 30.0]))

    async def around_push(self, number: int, config: PartitionConfig) -> int | None:
        await self.delay()
        if number in self.deaf or self.strikes():
            raise self._random.choice([Unreachable, CallLost])("lost")
        # The acknowledgement may come from a host that is no longer the owner: then the owner doesn't get the push.
        return config.version if self.strikes() else None

    async def around_ask(self, number: int) -> None:
        await self.delay()
        if self.strikes():
            raise CallLost("lost")

    async def before(self, operation: str, queue: QueueId | None) -> Callable[[], Awaitable[None]] | None:
        await self.delay()
        if self.strikes():
            raise StoreUnavailable("away")
        if operation != "save_config":
            return None
        if self.strikes():
            raise OutcomeUnknown("lost")
        return self.delay if self.strikes() else None

    async def after(self, operation: str, queue: QueueId | None) -> None:
        await self.delay()
        if operation in {"save_config", "renew_lease"} and self.strikes():
            raise OutcomeUnknown("lost")


class TaskQueueMachine(RuleBasedStateMachine):
    """One task queue whose root moves between hosts, with and without faults."""

    @initialize(seed=st.integers(0, 2**32), read=st.integers(1, 4), on=st.booleans(), strength=STRENGTHS)
    def begin(self, seed: int, read: int, on: bool, strength: float) -> None:
        self.loop = VirtualLoop()
        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name) / "settings.yaml"
        self.file.write_text(SETTINGS.format(on=str(on).lower()))
        self.settings = DynamicSettings(file=self.file)
        self.storm = Storm(seed)
        self.calls: set[asyncio.Task[Any]] = set()

        async def make() -> None:
            self.world = await World.make(read=read, write=read, settings=self.settings)
            self.world.store._faults = self.storm
            self.world.before_push = self.world.after_push = self.storm.around_push
            self.world.before_ask = self.world.after_ask = self.storm.around_ask
            self.root = self.world.root()
            self.roots = [self.root]
            self.root.start()
            self.working = asyncio.create_task(self._work(random.Random(seed)))

        self.do(make())
        self.storm.strength = strength
        self.member_versions: dict[int, int] = {}

    async def _work(self, chance: random.Random) -> None:
        """Tasks arrive, are stored and are dispatched all the time."""
        while True:
            number = chance.randrange(self.world.stored.read + 1)
            with contextlib.suppress(Unreachable):
                member = self.world.member(number)
                if number < member.config.write:
                    member.appends_in_flight += 1
            for member in self.world.members.values():
                if chance.random() < 0.2:
                    member.tasks += member.appends_in_flight
                    member.appends_in_flight = 0
                if chance.random() < 0.4:
                    member.tasks = 0
            await asyncio.sleep(chance.choice([0.01, 0.5, 2.0]))

    def do(self, work: Awaitable[None]) -> None:
        self.loop.run_until_complete(work)

    def call(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Start the call, and do not wait for its response."""

        async def ask() -> None:
            with contextlib.suppress(FairleadError):
                await work()

        self.calls.add(self.loop.create_task(ask()))

    # Calls to the root

    @rule(seconds=MOMENTS)
    def tick(self, seconds: float) -> None:
        self.call(self.root.tick)
        self.do(asyncio.sleep(seconds))

    @rule(read=st.integers(1, 7), write=st.integers(1, 7), seconds=MOMENTS)
    def update(self, read: int, write: int, seconds: float) -> None:
        root = self.root
        self.call(lambda: root.update(read=max(read, write), write=write, force=False))
        self.do(asyncio.sleep(seconds))

    @rule(write=st.integers(1, 3), between_s=MOMENTS, seconds=MOMENTS)
    def lower_by_hand(self, write: int, between_s: float, seconds: float) -> None:
        """SC-3: the three steps of a decrease, by an operator who doesn't wait long enough."""
        root = self.root

        async def lower() -> None:
            with contextlib.suppress(FairleadError):
                await root.update(read=root.config.read, write=write, force=False)
            await asyncio.sleep(between_s)
            await root.update(read=write, write=write, force=False)

        self.call(lower)
        self.do(asyncio.sleep(seconds))

    @rule(index=st.integers(0, 100))
    def give_up_a_call(self, index: int) -> None:
        calls = [call for call in self.calls if not call.done()]
        if calls:
            calls[index % len(calls)].cancel()
            self.do(asyncio.sleep(0))

    @rule(on=st.booleans())
    def switch(self, on: bool) -> None:
        self.file.write_text(SETTINGS.format(on=str(on).lower()))
        self.settings.reload()

    # Events at the root and the partitions

    @rule(number=st.integers(1, 6))
    def toggle_pushes_to(self, number: int) -> None:
        """Stop or resume pushes to a partition."""
        self.storm.deaf ^= {number}

    @rule(strength=STRENGTHS, seconds=MOMENTS)
    def change_fault_probability(self, strength: float, seconds: float) -> None:
        self.storm.strength = strength
        self.do(asyncio.sleep(seconds))

    @rule(was_closed=st.booleans())
    def move_the_root(self, was_closed: bool) -> None:
        """Move the root to another host; the old host may not know it yet."""

        async def move() -> None:
            if was_closed:
                await self.root.close()
            lease, strength = self.world.new_lease(), self.storm.strength
            self.storm.strength = 0.0
            await lease.take()
            self.world.lease = lease
            self.world.members[0].config = self.world.stored
            self.root = self.world.root()
            self.storm.strength = strength
            self.roots.append(self.root)
            self.root.start()
            if len(self.roots) > 3:
                await self.roots.pop(0).close()

        self.do(move())

    @precondition(lambda self: self.root._background.is_ended)
    @rule()
    def load_the_root_again(self) -> None:
        self.move_the_root(was_closed=True)

    @rule(rate=st.sampled_from([1.0, 20.0, 90.0, 300.0]))
    def load(self, rate: float) -> None:
        self.world.load_each(rate)

    @rule(number=st.integers(1, 6))
    def crash_or_reload(self, number: int) -> None:
        """Crash a partition, or reload it with the stored configuration, which its owner reads under a new lease."""
        member = self.world.members.get(number)
        if member is not None and member.is_up:
            member.is_up = False
            # The appends reached the store, but their callers got no response.
            member.tasks += member.appends_in_flight
            member.appends_in_flight = 0
        elif member is not None:
            member.is_up, member.config = True, self.world.stored
            self.member_versions.pop(number, None)

    @rule(index=st.integers(0, 1000))
    def repeat_an_old_push(self, index: int) -> None:
        if self.world.sent:
            number, version = self.world.sent[index % len(self.world.sent)]
            with contextlib.suppress(Unreachable):
                member = self.world.member(number)
                member.config = accept(member.config, self.world.seen[version])

    # Invariants

    @invariant()
    def the_world_has_seen_no_violation(self) -> None:
        if hasattr(self, "world"):
            assert not self.world.violations, self.world.violations

    @invariant()
    def every_task_is_in_a_read_partition(self) -> None:
        if hasattr(self, "world"):
            stored = self.world.stored
            assert stored.read >= stored.write >= 1
            for number, member in self.world.members.items():
                assert number < stored.read or (member.tasks, member.appends_in_flight) == (0, 0)

    @invariant()
    def no_version_decreases_or_is_ahead_of_the_store(self) -> None:
        if hasattr(self, "world"):
            for root in self.roots:
                self.world.see(root.config)
            for number, member in self.world.members.items():
                if number:
                    self.world.see(member.config)
                    assert member.config.version >= self.member_versions.get(number, 0)
                    self.member_versions[number] = member.config.version

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.do(self._converge_without_faults())
            assert not self.world.violations, self.world.violations
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.do(asyncio.sleep(0))
            self.loop.close()
            self.folder.cleanup()

    async def _converge_without_faults(self) -> None:
        """Stop all faults and reload all partitions: then all must have the root's configuration."""
        self.storm.strength = 0.0
        self.storm.deaf.clear()
        self.file.write_text(SETTINGS.format(on="false"))
        self.settings.reload()
        for number, member in self.world.members.items():
            if not member.is_up:
                member.is_up, member.config = True, self.world.stored
                self.member_versions.pop(number, None)
        await asyncio.sleep(100.0)
        if self.root._background.is_ended:
            self.world.lease = self.world.new_lease()
            await self.world.lease.take()
            self.root = self.world.root()
            self.roots.append(self.root)
            self.root.start()
        await asyncio.sleep(REPAIR_S * (REFRESHES_BETWEEN_REMINDERS + 1))
        assert all(call.done() for call in self.calls)
        assert self.root.config == self.world.stored
        for number in range(1, self.root.config.read):
            assert self.world.member(number).config == self.root.config
        acknowledged = self.root.explain().acknowledged
        assert acknowledged == dict.fromkeys(range(self.root.config.read), self.root.config.version)
        self.working.cancel()
        for root in self.roots:
            await root.close()
        sent = len(self.world.sent)
        await asyncio.sleep(100.0)
        assert len(self.world.sent) == sent
        assert asyncio.all_tasks() == {asyncio.current_task()}


TestPartitionsConvergeDespiteLostCallsAndCrashes = pytest.mark.sim(TaskQueueMachine.TestCase)
