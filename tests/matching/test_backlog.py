"""The backlog service on a store that can fail: nothing that was acknowledged is lost, whatever goes wrong."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import pytest

from fairlead.core.fairness import BufferLimits, WeightOverrides
from fairlead.core.partitions import TaskType
from fairlead.matching.backlog import AppendQueueFull, BacklogClosed, BacklogLimits, PartitionBacklog
from fairlead.matching.matcher import HeldTask, Place
from fairlead.matching.messages import NewTask
from fairlead.storage.contract import LeaseLost, OutcomeUnknown, QueueId, StoreUnavailable
from fairlead.storage.memory import MemoryStore
from fairlead.telemetry import Metrics
from tests.virtual_time import on_virtual_time

QUEUE = QueueId("namespace", "orders", TaskType.ACTIVITY)
LIMITS = BacklogLimits(
    read_backoff_s_min=0.001,
    read_backoff_s_max=0.002,
    save_interval_s=0.01,
    buffer=BufferLimits(batch_size=10, reload_at=3),
)


class Owner:
    """A host that owns the partition, and what has been loaded there."""

    def __init__(self, store: MemoryStore, limits: BacklogLimits = LIMITS) -> None:
        self.loaded: dict[Place, HeldTask[bytes]] = {}
        self.backlog = PartitionBacklog(
            store,
            QUEUE,
            clock=asyncio.get_running_loop().time,
            counts=Metrics().partition(*QUEUE, 0),
            overrides=WeightOverrides(),
            on_loaded=self.load,
            on_evicted=self.evict,
            limits=limits,
        )

    def load(self, tasks: Sequence[HeldTask[bytes]]) -> None:
        for task in tasks:
            assert task.place not in self.loaded
            self.loaded[task.place] = task

    def evict(self, places: Sequence[Place]) -> None:
        for place in places:
            self.loaded.pop(place, None)

    async def append(self, *payloads: str, key: str = "", priority: int = 3) -> None:
        await asyncio.gather(*(self.backlog.append(new(one, key=key, priority=priority)) for one in payloads))

    def dispatch(self) -> str | None:
        """Start the first task that is loaded."""
        if not self.loaded:
            return None
        task = self.loaded.pop(min(self.loaded))
        self.backlog.ack(task.place)
        return task.payload.decode()

    async def dispatch_all(self) -> list[str]:
        """Start tasks until no more come."""
        got: list[str] = []
        quiet = 0
        while quiet < 30:
            payload = self.dispatch()
            if payload is None:
                quiet += 1
                await asyncio.sleep(0.001)
            else:
                quiet = 0
                got.append(payload)
        return got


def new(payload: str, *, key: str = "", priority: int = 3) -> NewTask:
    return NewTask(priority, key, 1.0, payload.encode())


async def opened(store: MemoryStore, limits: BacklogLimits = LIMITS) -> Owner:
    owner = Owner(store, limits)
    await owner.backlog.open()
    return owner


class Faulty:
    """Does to the next calls of an operation what it was told to."""

    def __init__(self) -> None:
        self.before_next: dict[str, list[Exception | asyncio.Event]] = {}
        self.after_next: dict[str, list[Exception]] = {}

    async def before(self, operation: str, _queue: QueueId | None) -> Callable[[], Awaitable[None]] | None:
        planned = self.before_next.get(operation)
        if not planned:
            return None
        fault = planned.pop(0)
        if isinstance(fault, Exception):
            raise fault

        async def wait() -> None:
            await fault.wait()

        return wait

    async def after(self, operation: str, _queue: QueueId | None) -> None:
        planned = self.after_next.get(operation)
        if planned:
            raise planned.pop(0)


async def test_what_was_appended_is_loaded_dispatched_and_deleted() -> None:
    store = MemoryStore()
    owner = await opened(store)
    await owner.append("a", "b", "c")
    assert await owner.backlog.count() == 3
    assert sorted(await owner.dispatch_all()) == ["a", "b", "c"]
    await asyncio.sleep(0.05)
    await owner.backlog.close()
    successor = await opened(store)
    assert await successor.dispatch_all() == []
    await successor.backlog.close()


async def test_many_appends_at_once_share_few_writes() -> None:
    class Counting(Faulty):
        appends = 0

        async def before(self, operation: str, queue: QueueId | None) -> Callable[[], Awaitable[None]] | None:
            self.appends += operation == "append"
            await asyncio.sleep(0)
            return await super().before(operation, queue)

    counting = Counting()
    owner = await opened(MemoryStore(counting))
    await owner.append(*(str(number) for number in range(200)))
    assert counting.appends <= 10
    assert len(await owner.dispatch_all()) == 200
    await owner.backlog.close()


async def test_a_new_owner_goes_on_with_what_is_stored_in_the_fair_order() -> None:
    store = MemoryStore()
    owner = await opened(store)
    await owner.append(*(f"flood-{number}" for number in range(100)), key="flood")
    for key in ("x", "y"):
        await owner.append(f"{key}-0", f"{key}-1", key=key)
    await owner.append("urgent", priority=1)
    await owner.backlog.close()
    successor = await opened(store)
    got = await successor.dispatch_all()
    assert got[0] == "urgent"
    assert len(got) == 105
    assert max(got.index(one) for one in ("x-0", "y-0", "x-1", "y-1")) < 8
    await successor.backlog.close()


async def test_an_owner_that_lost_its_lease_stores_nothing_and_says_so() -> None:
    store = MemoryStore()
    old = await opened(store)
    await old.append("before")
    current = await opened(store)
    with pytest.raises(LeaseLost):
        await old.append("too late")
    assert old.backlog.lease.lost.is_set()
    with pytest.raises(LeaseLost, match="another owner by now"):
        await old.append("far too late")
    assert await current.dispatch_all() == ["before"]
    await old.backlog.close()
    await current.backlog.close()


async def test_a_task_whose_answer_was_lost_is_still_dispatched() -> None:
    faulty = Faulty()
    owner = await opened(MemoryStore(faulty))
    faulty.after_next["append"] = [OutcomeUnknown("the answer was lost")]
    with pytest.raises(OutcomeUnknown):
        await owner.append("there")
    await owner.append("after it")
    assert sorted(await owner.dispatch_all()) == ["after it", "there"]
    await owner.backlog.close()


async def test_a_write_that_is_late_is_refused_after_the_renewal_and_others_in_flight_are_not_lost() -> None:
    faulty = Faulty()
    owner = await opened(MemoryStore(faulty))
    late = asyncio.Event()
    faulty.before_next["append"] = [late]
    with pytest.raises(OutcomeUnknown):
        await owner.append("late")
    late.set()
    await owner.append("another", "and another")
    assert sorted(await owner.dispatch_all()) == ["and another", "another"]
    await owner.backlog.close()


async def test_a_store_that_can_not_be_reached_refuses_appends_and_reads_go_on_when_it_is_back() -> None:
    faulty = Faulty()
    store = MemoryStore(faulty)
    owner = await opened(store)
    faulty.before_next["append"] = [StoreUnavailable("away")]
    with pytest.raises(StoreUnavailable):
        await owner.append("refused")
    await owner.append("kept")
    await owner.backlog.close()
    faulty.before_next["read"] = [StoreUnavailable("away")] * 5
    successor = await opened(store)
    assert await successor.dispatch_all() == ["kept"]
    await successor.backlog.close()


async def test_a_full_queue_refuses_and_loses_nothing() -> None:
    """Issue, 'Bad input': a full append queue."""
    limits = BacklogLimits(appends_waiting_max=5, buffer=BufferLimits(batch_size=10, reload_at=3))
    owner = await opened(MemoryStore(), limits)
    answers = await asyncio.gather(
        *(owner.backlog.append(new(str(number))) for number in range(8)), return_exceptions=True
    )
    refused = [answer for answer in answers if isinstance(answer, AppendQueueFull)]
    assert len(refused) == 3
    assert "5 appends wait" in str(refused[0])
    assert len(await owner.dispatch_all()) == 5
    await owner.backlog.close()


async def test_a_task_is_stored_though_its_caller_has_gone() -> None:
    owner = await opened(MemoryStore())
    caller = asyncio.create_task(owner.backlog.append(new("orphan")))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert await owner.dispatch_all() == ["orphan"]
    await owner.backlog.close()


async def test_closing_stores_what_was_taken_and_takes_no_more() -> None:
    store = MemoryStore()
    owner = await opened(store)
    appends = [asyncio.create_task(owner.backlog.append(new(str(number)))) for number in range(50)]
    await asyncio.sleep(0)
    await owner.backlog.close()
    await asyncio.gather(*appends)
    with pytest.raises(BacklogClosed):
        await owner.append("no more")
    successor = await opened(store)
    assert len(await successor.dispatch_all()) == 50
    await successor.backlog.close()


class Chaos:
    """Delays, lost answers, late effects and outages at random, until it is told to stop."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.is_over = False

    async def pause(self) -> None:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)

    async def before(self, operation: str, _queue: QueueId | None) -> Callable[[], Awaitable[None]] | None:
        await self.pause()
        drawn = self.chance.random()
        if self.is_over or operation in ("take_lease", "stored_keys"):
            return None
        if drawn < 0.08:
            raise StoreUnavailable("away for a moment")
        if drawn < 0.14 and operation in ("append", "delete_through"):
            return self.pause
        return None

    async def after(self, operation: str, _queue: QueueId | None) -> None:
        await self.pause()
        if not self.is_over and operation in ("append", "delete_through") and self.chance.random() < 0.06:
            raise OutcomeUnknown("the answer was lost")


async def live(seed: int) -> tuple[Counter[str], set[str]]:
    """A life of the partition under one seed: what was dispatched, how often, and what had been acknowledged."""
    chance = random.Random(seed)
    chaos = Chaos(chance)
    store = MemoryStore(chaos)
    owner = await opened(store)
    dispatched: Counter[str] = Counter()
    acknowledged: set[str] = set()

    async def add(payload: str) -> None:
        try:
            await owner.append(payload, key=chance.choice("abc"), priority=chance.choice([1, 3]))
            acknowledged.add(payload)
        except (LeaseLost, OutcomeUnknown, StoreUnavailable, AppendQueueFull, BacklogClosed):
            return

    adding: set[asyncio.Task[None]] = set()
    previous: list[Owner] = []
    for step in range(300):
        drawn = chance.random()
        if drawn < 0.02 or owner.backlog.lease.lost.is_set():
            previous.append(owner)
            owner = await opened(store)
        elif drawn < 0.55:
            adding.add(asyncio.create_task(add(f"task {step}")))
        else:
            payload = owner.dispatch()
            if payload is not None:
                dispatched[payload] += 1
        await chaos.pause()
    chaos.is_over = True
    await asyncio.gather(*adding)
    # A last takeover: whatever the present owner only has in memory must not be needed.
    successor = await opened(store)
    for payload in await successor.dispatch_all():
        dispatched[payload] += 1
    for one in [*previous, owner, successor]:
        await one.backlog.close()
    return dispatched, acknowledged


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(30))
async def test_every_acknowledged_task_is_dispatched_whatever_goes_wrong(seed: int) -> None:
    """Facts, temporal-matching (b) 1. To see one seed again: pytest -k 'goes_wrong and <seed>'."""
    dispatched, acknowledged = await live(seed)
    assert acknowledged - set(dispatched) == set(), f"lost with seed {seed}"
    assert len(acknowledged) > 50


class Broken:
    """A store that hangs, or fails as nobody has thought of."""

    def __init__(self) -> None:
        self.hangs_at = ""
        self.fails_at = ""

    async def before(self, operation: str, queue: QueueId | None) -> None:
        if operation == self.hangs_at:
            await asyncio.sleep(1000)
        if operation == self.fails_at:
            raise RuntimeError("a fault of the driver")

    async def after(self, operation: str, queue: QueueId | None) -> None:
        """Nothing more."""


@on_virtual_time
async def test_appends_that_still_wait_when_the_backlog_is_closed_are_answered() -> None:
    faults = Broken()
    owner = Owner(MemoryStore(faults), BacklogLimits(batch_tasks_max=1, writes_max=1))
    await owner.backlog.open()
    faults.hangs_at = "append"
    appends = [asyncio.create_task(owner.backlog.append(NewTask(3, "", 1.0, b"x"))) for _ in range(3)]
    await asyncio.sleep(1)
    await owner.backlog.close()
    outcomes = await asyncio.wait_for(asyncio.gather(*appends, return_exceptions=True), 60)
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, BacklogClosed, BacklogClosed]
    assert owner.backlog.appends_in_flight == 0


@on_virtual_time
async def test_a_failure_that_nobody_has_thought_of_ends_the_lease_and_not_the_partition() -> None:
    faults = Broken()
    owner = Owner(MemoryStore(faults))
    await owner.backlog.open()
    faults.fails_at = "read"
    await owner.backlog.append(NewTask(3, "", 1.0, b"x"))
    await asyncio.wait_for(owner.backlog.lease.lost.wait(), 60)
    await owner.backlog.close()
