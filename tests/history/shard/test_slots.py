"""Slots under crashes, lost responses and stale owners: at least one slot per running activity, and none leaks."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.api.run_limits import RunLimits
from fairlead.core.concurrency import Full, Slot, SlotLimits
from fairlead.core.errors import FairleadError
from fairlead.history.shard.background import BackgroundWork
from fairlead.history.shard.ownership import NotOwner, Ownership
from fairlead.history.shard.slots import AUDIT_S, ShardSlots
from fairlead.history.shard.workflow_locks import WorkflowLock, WorkflowLocks
from fairlead.history.state.errors import KeyAtLimit, QueueAtLimit
from fairlead.settings import DynamicSettings
from fairlead.storage.history import RunKey
from fairlead.storage.memory.history import MemoryHistory
from fairlead.storage.tasks import OutcomeUnknown, StoreUnavailable
from fairlead.telemetry import Metrics
from tests.depth import IS_DEEP
from tests.simulators.matching.virtual_loop import run

LIMITS = SlotLimits(key_max=2, queue_max=3)
SHARDS = 2
RUNS = 4
STEPS = 60
SEEDS = 300 if IS_DEEP else 40


class Broken(AssertionError):
    """An invariant does not hold."""


class Chaos:
    """Delays each operation on slots, and makes some fail, with or without effect."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.is_over = False

    async def before(self, operation: str, _shard: int | None) -> Callable[[], Awaitable[None]] | None:
        if self.is_over or not operation.endswith(("slot", "slots")):
            return None
        await asyncio.sleep(self._chance.random())
        turn = self._chance.random()
        if turn < 0.1:
            raise StoreUnavailable("not reached")
        if turn < 0.2 and operation.endswith("slot"):
            delay_s = 3 * self._chance.random()
            return lambda: asyncio.sleep(delay_s)
        return None

    async def after(self, operation: str, _shard: int | None) -> None:
        if not self.is_over and operation.endswith("slot") and self._chance.random() < 0.1:
            raise OutcomeUnknown("no response")


class World:
    """The committed activity of each run: the token of the start that a worker has, or None."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.chaos = Chaos(self.chance)
        self.store = MemoryHistory(self.chaos)
        self.running: dict[RunKey, str | None] = {
            RunKey("ns", f"w{number}", f"r{number}"): None for number in range(RUNS * SHARDS)
        }
        self.tokens = itertools.count(1)
        self.has_started = False

    def token(self, _key: RunKey) -> str:
        return f"t{next(self.tokens)}"

    def check(self) -> None:
        """Every running activity has a slot, and no limit is exceeded."""
        tokens = {token for token in self.running.values() if token}
        slots = {slot.token for shard_id in range(SHARDS) for slot in self.store._slots.of_shard(shard_id)}
        if tokens - slots:
            raise Broken(f"running without a slot: {tokens - slots}")
        keys = Counter(fairness_key(key) for key, token in self.running.items() if token)
        if keys and (max(keys.values()) > LIMITS.key_max or keys.total() > LIMITS.queue_max):
            raise Broken(f"too many run: {keys}")

    def check_nothing_is_left(self) -> None:
        """Every slot is that of a running activity."""
        tokens = sorted(token for token in self.running.values() if token)
        left = sorted(slot.token for shard_id in range(SHARDS) for slot in self.store._slots.of_shard(shard_id))
        if left != tokens:
            raise Broken(f"slots {left}, running {tokens}")


def fairness_key(key: RunKey) -> str:
    return "ab"[int(key.workflow_id[1:]) // SHARDS % 2]


def shard_of(key: RunKey) -> int:
    return int(key.workflow_id[1:]) % SHARDS


class Owner:
    """An owner of a shard: starts and ends activities as the handlers do."""

    def __init__(self, world: World, shard_id: int, slots: type[ShardSlots]) -> None:
        self.world = world
        self.shard_id = shard_id
        self.ownership = Ownership(shard_id, host="h", store=world.store, on_lost=lambda: None)
        self.background = BackgroundWork(shard_id, run=self._no_task)
        self.locks = WorkflowLocks()
        settings = DynamicSettings(
            overrides={
                "matching.fairnessKeyConcurrency": LIMITS.key_max,
                "matching.taskQueueConcurrency": LIMITS.queue_max,
            }
        )
        matching = SimpleNamespace(report_free_slot=self._hear)
        services: Any = SimpleNamespace(
            store=world.store, limits=RunLimits(settings), metrics=Metrics(), matching=matching
        )
        self.slots = slots(
            shard_id,
            services=services,
            ownership=self.ownership,
            background=self.background,
            lock=self.lock,
            load=self.load,
        )

    async def _no_task(self, _row: object) -> None: ...

    async def _hear(self, _task_queue: object, _key: str) -> None: ...

    def lock(self, namespace_id: str, workflow_id: str) -> WorkflowLock:
        self.ownership.check()
        return self.locks(namespace_id, workflow_id)

    async def load(self, *key: str) -> Any:
        self.ownership.check()
        return SimpleNamespace(state=self.state_of(self.world.running[RunKey(*key)]))

    def state_of(self, token: str | None) -> Any:
        activities = {5: SimpleNamespace(is_started=True, started_request_id=token)} if token else {}
        return SimpleNamespace(is_open=True, live=SimpleNamespace(activities=activities))

    async def open(self) -> None:
        await self.ownership.acquire()
        self.slots.open()

    async def commit(self, key: RunKey, token: str | None) -> None:
        """Change the run, fenced by the shard's range; the outcome may stay unknown, and then the shard is given up."""
        await asyncio.sleep(self.world.chance.random())
        self.ownership.check()
        turn = 1.0 if self.world.chaos.is_over else self.world.chance.random()
        if turn < 0.1:
            raise StoreUnavailable("not reached")
        if self.world.store._shard(self.shard_id).range_id != self.ownership.range_id:
            self.ownership.lose()
            raise self.ownership.taken()
        self.world.running[key] = token
        self.world.check()
        if turn < 0.2:
            self.ownership.lose()
            raise OutcomeUnknown("no response")

    async def start(self, key: RunKey) -> None:
        async with self.lock(key.namespace_id, key.workflow_id):
            if self.world.running[key]:
                return
            token = self.world.token(key)
            await self.slots.take(key, token=token, event_id=5, task_queue="q", fairness_key=fairness_key(key))
            try:
                await self.commit(key, token)
            except BaseException:
                self.slots.doubt(key)
                raise
            self.world.has_started = True
            self.slots.note_run(key, self.state_of(token))

    async def end(self, key: RunKey) -> None:
        async with self.lock(key.namespace_id, key.workflow_id):
            if self.world.running[key]:
                await self.commit(key, None)
                self.slots.note_run(key, self.state_of(None))

    async def close(self) -> None:
        self.ownership.is_lost = True
        self.slots.close()
        await self.background.close()


async def act(owner: Owner, key: RunKey, *, starts: bool) -> None:
    try:
        await (owner.start(key) if starts else owner.end(key))
    except (FairleadError, NotOwner, KeyAtLimit, QueueAtLimit):
        return


async def live(world: World, slots: type[ShardSlots], owner_class: type[Owner] = Owner) -> None:
    """Random starts, ends and changes of owner; after the last fault, exactly the running activities have slots."""
    chance = world.chance
    owners = [owner_class(world, shard_id, slots) for shard_id in range(SHARDS)]
    everybody = list(owners)
    for owner in owners:
        await owner.open()
    acts: list[asyncio.Task[None]] = []

    async def replace(shard_id: int) -> None:
        new = owner_class(world, shard_id, slots)
        everybody.append(new)
        await new.open()
        # The old owner continues until the store refuses one of its writes.
        owners[shard_id] = new

    for _ in range(STEPS):
        key = chance.choice(list(world.running))
        owner = owners[shard_of(key)]
        if owner.ownership.is_lost or chance.random() < 0.1:
            await replace(owner.shard_id)
        acts.append(asyncio.create_task(act(owner, key, starts=chance.random() < 0.6)))
        await asyncio.sleep(chance.random())
        world.check()
    await asyncio.gather(*acts)
    world.chaos.is_over = True
    for shard_id in range(SHARDS):
        if owners[shard_id].ownership.is_lost:
            await replace(shard_id)
    for _ in range(4):
        # Virtual time.
        await asyncio.sleep(AUDIT_S)
        world.check()
    world.check_nothing_is_left()
    for each in everybody:
        await each.close()
    await world.store.close()


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(SEEDS))
def test_slots_are_those_of_running_activities_despite_faults(seed: int) -> None:
    """FL-80, FL-82, FL-83: the invariants hold under all faults, and if slots are freed late or twice."""
    world = World(seed)
    _, loop = run(live(world, ShardSlots))
    assert loop.failures == []
    assert world.has_started


class NeverLooksUp(ShardSlots):
    """Planted: slots that a crash left behind are not looked up."""

    def _begin_audit(self) -> None: ...


class LooksUpWithoutLock(ShardSlots):
    """Planted: a look-up does not wait for a start that is under way."""

    async def _check(self, key: RunKey) -> None:
        running = await self._running(key)
        await self._free([slot for token, slot in self.held.get(key, {}).items() if token not in running])


class FreesBeforeCommit(Owner):
    """Planted: a slot is freed before the commit that ends its attempt."""

    async def end(self, key: RunKey) -> None:
        async with self.lock(key.namespace_id, key.workflow_id):
            if self.world.running[key]:
                self.slots.note_run(key, self.state_of(None))
                await self.commit(key, None)


class StartsBeforeTaking(Owner):
    """Planted: an attempt starts before it has its slot."""

    async def start(self, key: RunKey) -> None:
        async with self.lock(key.namespace_id, key.workflow_id):
            if not self.world.running[key]:
                token = self.world.token(key)
                await self.commit(key, token)
                await self.slots.take(key, token=token, event_id=5, task_queue="q", fairness_key=fairness_key(key))


class SameToken(World):
    """Planted: every start of a run has the same token."""

    def token(self, key: RunKey) -> str:
        return key.run_id


class Unfenced(World):
    """Planted: an owner that has lost its shard can take slots."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.store._check_owned = lambda shard_id, range_id: None  # type: ignore[method-assign]  # noqa: ARG005


class Uncounted(World):
    """Planted: the store takes a slot beyond the limit of the task queue."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        take = self.store._slots.take

        def take_key_only(slot: Slot, limits: SlotLimits) -> Full | None:
            return take(slot, limits._replace(queue_max=0))

        self.store._slots.take = take_key_only  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("world", "slots", "owner"),
    [
        (World, NeverLooksUp, Owner),
        (World, LooksUpWithoutLock, Owner),
        (World, ShardSlots, FreesBeforeCommit),
        (World, ShardSlots, StartsBeforeTaking),
        (SameToken, ShardSlots, Owner),
        (Unfenced, ShardSlots, Owner),
        (Uncounted, ShardSlots, Owner),
    ],
    ids=lambda planted: planted.__name__,
)
def test_the_search_finds_a_planted_bug(world: type[World], slots: type[ShardSlots], owner: type[Owner]) -> None:
    for seed in range(400):
        try:
            run(live(world(seed), slots, owner))
        except Broken:
            return
    pytest.fail("no seed has found the bug")
