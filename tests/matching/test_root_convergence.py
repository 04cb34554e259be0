"""Whatever is lost and whoever crashes: versions never go back, no task is left where nobody reads, and all is healed.

Facts on Cadence, invariants 4 to 8 and 15.
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

from fairlead.cluster.calls import CallLost, Unreachable
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import PartitionConfig, accept
from fairlead.matching.lease import QueueLease
from fairlead.matching.pushes import LOOKS_BETWEEN_REMINDERS
from fairlead.settings import DynamicSettings
from fairlead.storage.contract import OutcomeUnknown, QueueId, StoreUnavailable
from fairlead.telemetry import Metrics
from tests.matching.root_world import REPAIR_S, ROOT, VirtualLoop, World

NUMBERS = st.integers(0, 6)
SETTINGS = """
matching.enableAdaptiveScaler: [{{value: {on}}}]
matching.partitionUpscaleRPS: [{{value: 100}}]
matching.partitionUpscaleSustainedDuration: [{{value: 0s}}]
matching.partitionDownscaleSustainedDuration: [{{value: 0s}}]
matching.taskListMaximumWritePartitions: [{{value: 7}}]
"""


class Storm:
    """Everything that can go wrong does, as often as `strength` says."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.strength = 0.0

    def strikes(self) -> bool:
        return self._random.random() < self.strength

    async def delay(self) -> None:
        if self.strikes():
            await asyncio.sleep(self._random.choice([0.0, 0.1, 1.0, 5.0, 30.0]))

    async def around_push(self, number: int, config: PartitionConfig) -> int | None:
        await self.delay()
        if self.strikes():
            raise self._random.choice([Unreachable, CallLost])("lost")
        # Acknowledged by a host that is not the owner any more: the owner hears nothing.
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


class TaskListMachine(RuleBasedStateMachine):
    """One task list, whose root changes hosts, in fair weather and foul."""

    @initialize(seed=st.integers(0, 2**32), read=st.integers(1, 4))
    def begin(self, seed: int, read: int) -> None:
        self.loop = VirtualLoop()
        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name) / "settings.yaml"
        self.file.write_text(SETTINGS.format(on="true"))
        self.settings = DynamicSettings(file=self.file)
        self.storm = Storm(seed)
        self.calls: set[asyncio.Task[Any]] = set()
        self.incarnations: dict[int, int] = {}

        async def make() -> None:
            self.world = await World.make(read=read, write=read, settings=self.settings)
            self.world.store._faults = self.storm
            self.world.before_push = self.world.after_push = self.storm.around_push
            self.world.before_ask = self.world.after_ask = self.storm.around_ask
            self.root = self.world.root()
            self.roots = [self.root]
            self.root.start()

        self.do(make())
        self.member_versions: dict[int, int] = {}

    def do(self, work: Awaitable[None]) -> None:
        self.loop.run_until_complete(work)

    def call(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Have somebody ask for it, and not wait for the answer."""

        async def ask() -> None:
            with contextlib.suppress(FairleadError):
                await work()

        self.calls.add(self.loop.create_task(ask()))

    # What the root does

    @rule()
    def tick(self) -> None:
        self.call(self.root.tick)

    @rule()
    def repair(self) -> None:
        self.call(self.root.repair)

    @rule(read=st.integers(1, 7), write=st.integers(1, 7))
    def update(self, read: int, write: int) -> None:
        root = self.root
        self.call(lambda: root.update(read=read, write=write, force=False))

    @rule(on=st.booleans())
    def switch(self, on: bool) -> None:
        self.file.write_text(SETTINGS.format(on=str(on).lower()))
        self.settings.reload()

    @rule(seconds=st.sampled_from([0.0, 0.01, 1.0, 5.0, 20.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))

    @rule(strength=st.sampled_from([0.0, 0.1, 0.5]))
    def weather(self, strength: float) -> None:
        self.storm.strength = strength

    @rule(index=st.integers(0, 100))
    def give_up_a_call(self, index: int) -> None:
        calls = [call for call in self.calls if not call.done()]
        if calls:
            calls[index % len(calls)].cancel()
            self.do(asyncio.sleep(0))

    # What happens to the root and to the partitions

    @rule(was_closed=st.booleans())
    def move_the_root(self, was_closed: bool) -> None:
        """To another host; the old one may not know yet."""

        async def move() -> None:
            if was_closed:
                await self.root.close()
            lease, strength = QueueLease(self.world.store, ROOT, Metrics().partition(*ROOT, 0)), self.storm.strength
            self.storm.strength = 0.0
            await lease.take()
            self.world.lease = lease
            self.world.members[0].config = self.world.stored
            self.root = self.world.root()
            self.storm.strength = strength
            self.roots.append(self.root)
            self.root.start()

        self.do(move())

    @rule()
    def close_a_former_root(self) -> None:
        if self.roots[0] is not self.root:
            self.do(self.roots.pop(0).close())

    @precondition(lambda self: self.root._background.is_ended)
    @rule()
    def load_the_root_again(self) -> None:
        self.move_the_root(was_closed=True)

    @rule(number=NUMBERS, rate=st.sampled_from([0.0, 20.0, 90.0, 300.0]))
    def load(self, number: int, rate: float) -> None:
        if number in self.world.members:
            self.world.members[number].adds_per_s = rate

    @rule(number=NUMBERS, is_quick=st.booleans())
    def add_a_task(self, number: int, is_quick: bool) -> None:
        with contextlib.suppress(Unreachable):
            member = self.world.member(number)
            if number >= member.config.write:
                return
            if is_quick:
                member.tasks += 1
            else:
                member.appends_in_flight += 1

    @rule(number=NUMBERS)
    def store_what_is_in_flight(self, number: int) -> None:
        member = self.world.members.get(number)
        if member is not None:
            member.tasks += member.appends_in_flight
            member.appends_in_flight = 0

    @rule(number=NUMBERS)
    def finish_the_tasks(self, number: int) -> None:
        if number in self.world.members:
            self.world.members[number].tasks = 0

    @rule(number=st.integers(1, 6))
    def crash(self, number: int) -> None:
        member = self.world.members.get(number)
        if member is not None and member.is_up:
            member.is_up = False
            # It reached the store, and nobody heard of it.
            member.tasks += member.appends_in_flight
            member.appends_in_flight = 0

    @rule(number=st.integers(1, 6))
    def load_again(self, number: int) -> None:
        """The new owner has the lease before it reads the root's row, so what it reads is not older than that."""
        member = self.world.members.get(number)
        if member is not None and not member.is_up:
            member.is_up, member.config = True, self.world.stored
            self.member_versions.pop(number, None)

    @rule(index=st.integers(0, 1000))
    def repeat_an_old_push(self, index: int) -> None:
        if self.world.sent:
            number, version = self.world.sent[index % len(self.world.sent)]
            with contextlib.suppress(Unreachable):
                member = self.world.member(number)
                member.config = accept(member.config, self.world.seen[version])

    # What must be so at all times

    @invariant()
    def nothing_that_must_not_be_was_seen(self) -> None:
        if hasattr(self, "world"):
            assert not self.world.violations, self.world.violations

    @invariant()
    def no_task_is_where_nobody_reads(self) -> None:
        if hasattr(self, "world"):
            stored = self.world.stored
            assert stored.read >= stored.write >= 1
            for number, member in self.world.members.items():
                assert number < stored.read or (member.tasks, member.appends_in_flight) == (0, 0)

    @invariant()
    def nobody_goes_back_or_is_ahead_of_the_store(self) -> None:
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
            self.do(self._come_to_rest())
            assert not self.world.violations, self.world.violations
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.do(asyncio.sleep(0))
            self.loop.close()
            self.folder.cleanup()

    async def _come_to_rest(self) -> None:
        """The weather is fair from now on, and all are up: all partitions go by what the root goes by."""
        self.storm.strength = 0.0
        self.file.write_text(SETTINGS.format(on="false"))
        self.settings.reload()
        for number, member in self.world.members.items():
            if not member.is_up:
                member.is_up, member.config = True, self.world.stored
                self.member_versions.pop(number, None)
        await asyncio.sleep(100.0)
        if self.root._background.is_ended:
            self.world.lease = QueueLease(self.world.store, ROOT, Metrics().partition(*ROOT, 0))
            await self.world.lease.take()
            self.root = self.world.root()
            self.roots.append(self.root)
            self.root.start()
        await asyncio.sleep(REPAIR_S * (LOOKS_BETWEEN_REMINDERS + 1))
        assert all(call.done() for call in self.calls)
        assert self.root.config == self.world.stored
        for number in range(1, self.root.config.read):
            assert self.world.member(number).config == self.root.config
        acknowledged = self.root.explain().acknowledged
        assert acknowledged == dict.fromkeys(range(self.root.config.read), self.root.config.version)
        for root in self.roots:
            await root.close()
        sent = len(self.world.sent)
        await asyncio.sleep(100.0)
        assert len(self.world.sent) == sent
        assert asyncio.all_tasks() == {asyncio.current_task()}


TestPartitionsConvergeWhateverIsLostAndWhoeverCrashes = pytest.mark.sim(TaskListMachine.TestCase)
