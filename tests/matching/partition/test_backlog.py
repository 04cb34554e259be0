"""The backlog on a store that fails: no acknowledged task is lost."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

import pytest

from fairlead.core.fairness import BufferLimits, Level, WeightOverrides
from fairlead.core.partitions import TaskType
from fairlead.matching.messages import NewTask
from fairlead.matching.partition.backlog import PartitionBacklog
from fairlead.matching.partition.backlog_limits import BacklogLimits
from fairlead.matching.partition.matcher import HeldTask, Position
from fairlead.matching.partition.task_writer import AppendQueueFull, BacklogClosed
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import LeaseLost, OutcomeUnknown, QueueId, StoredTask, StoreUnavailable
from fairlead.telemetry import Metrics
from tests.patience import step
from tests.virtual_time import on_virtual_time

QUEUE = QueueId("namespace", "orders", TaskType.ACTIVITY)
LIMITS = BacklogLimits(
    read_backoff_s_min=0.001,
    read_backoff_s_max=0.002,
    save_interval_s=0.01,
    buffer=BufferLimits(batch_size=10, reload_at=3),
)


class Owner:
    """A host that owns the partition, and the tasks that it has loaded."""

    def __init__(self, store: MemoryStore, limits: BacklogLimits = LIMITS) -> None:
        self.loaded: dict[Position, HeldTask[bytes]] = {}
        self.counts = Metrics().partition(*QUEUE, 0)
        self.backlog = PartitionBacklog(
            store,
            QUEUE,
            clock=asyncio.get_running_loop().time,
            counts=self.counts,
            overrides=WeightOverrides(),
            loaded=self,
            limits=limits,
        )

    def load(self, tasks: Sequence[HeldTask[bytes]]) -> None:
        for task in tasks:
            assert task.position not in self.loaded
            self.loaded[task.position] = task

    def evict(self, positions: Sequence[Position]) -> None:
        for position in positions:
            self.loaded.pop(position, None)

    def parked(self) -> int:
        return 0

    async def append(self, *payloads: str, key: str = "", priority: int = 3) -> None:
        await asyncio.gather(*(self.backlog.writer.append(new(one, key=key, priority=priority)) for one in payloads))

    def dispatch(self) -> str | None:
        """Start the first loaded task."""
        if not self.loaded:
            return None
        task = self.loaded.pop(min(self.loaded))
        self.backlog.priorities.ack(task.position)
        return task.payload.decode()

    async def dispatch_all(self) -> list[str]:
        """Start tasks until no more are loaded for 30 ms."""
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
    """Raises planned exceptions from the next calls of an operation, or delays their effect."""

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


async def test_an_appended_task_is_loaded_dispatched_and_deleted() -> None:
    store = MemoryStore()
    owner = await opened(store)
    await owner.append("a", "b", "c")
    assert await owner.backlog.count() == 3
    assert sorted(await owner.dispatch_all()) == ["a", "b", "c"]
    await step()
    await owner.backlog.close()
    successor = await opened(store)
    assert await successor.dispatch_all() == []
    await successor.backlog.close()


async def test_concurrent_appends_share_a_few_writes() -> None:
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


async def test_a_new_owner_dispatches_the_stored_tasks_in_fair_order() -> None:
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


async def test_a_reader_that_cannot_load_is_counted_as_stuck_and_later_recovers() -> None:
    faults = Faulty()
    store = MemoryStore(faults)
    first = await opened(store)
    await first.append(*map(str, range(5)))
    await first.backlog.close()
    faults.before_next["read"] = [StoreUnavailable("away") for _ in range(10_000)]
    owner = await opened(store)
    for _ in range(1000):
        if owner.counts.fair_reader_stuck_detected:
            break
        await asyncio.sleep(0.005)
    assert owner.counts.fair_reader_stuck_detected
    faults.before_next["read"].clear()
    assert await owner.dispatch_all() == [str(number) for number in range(5)]
    await owner.backlog.close()


async def test_an_append_by_an_owner_that_lost_its_lease_fails_with_lease_lost() -> None:
    store = MemoryStore()
    old = await opened(store)
    await old.append("before")
    current = await opened(store)
    with pytest.raises(LeaseLost):
        await old.append("too late")
    assert old.backlog.lease.lost.is_set()
    assert (old.counts.condition_failed_errors, current.counts.condition_failed_errors) == (1, 0)
    with pytest.raises(LeaseLost, match="another owner now"):
        await old.append("far too late")
    assert await current.dispatch_all() == ["before"]
    await old.backlog.close()
    await current.backlog.close()


async def test_a_task_is_dispatched_even_if_the_response_to_its_append_was_lost() -> None:
    faulty = Faulty()
    owner = await opened(MemoryStore(faulty))
    faulty.after_next["append"] = [OutcomeUnknown("the answer was lost")]
    with pytest.raises(OutcomeUnknown):
        await owner.append("there")
    await owner.append("after it")
    assert sorted(await owner.dispatch_all()) == ["after it", "there"]
    await owner.backlog.close()


async def test_a_late_write_has_no_effect_after_the_lease_is_renewed_and_other_appends_succeed() -> None:
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


@on_virtual_time
async def test_reads_of_an_unavailable_store_pause_ever_longer_and_not_in_step() -> None:
    """With equal pauses, all partitions of a host would read at once when the store comes back."""
    read_s: list[float] = []

    class Away(MemoryStore):
        async def read(self, queue: QueueId, priority: int, *, after: Level, limit: int) -> list[StoredTask]:
            read_s.append(asyncio.get_running_loop().time())
            if len(read_s) <= 30:
                raise StoreUnavailable("away")
            return await super().read(queue, priority, after=after, limit=limit)

    store = Away()
    before = await opened(store)
    await before.append("a")
    await before.backlog.close()
    read_s.clear()
    limits = BacklogLimits(read_backoff_s_min=0.05, read_backoff_s_max=1.0)
    owner = await opened(store, limits)
    await asyncio.sleep(60.0)
    assert len(owner.loaded) == 1
    bounds_s = [min(0.05 * 2**retry, 1.0) for retry in range(30)]
    assert len(read_s) == 31
    shares = [(after - before) / bound_s for (before, after), bound_s in zip(pairwise(read_s), bounds_s, strict=True)]
    assert 0.499 < min(shares) < 0.7
    assert 0.8 < max(shares) < 1.001
    await owner.backlog.close()


async def test_appends_fail_while_the_store_is_unavailable_and_reads_resume_afterwards() -> None:
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


async def test_a_full_append_queue_rejects_appends_and_loses_no_task() -> None:
    """FL-18: a full append queue rejects further appends."""
    limits = BacklogLimits(appends_waiting_max=5, buffer=BufferLimits(batch_size=10, reload_at=3))
    owner = await opened(MemoryStore(), limits)
    answers = await asyncio.gather(
        *(owner.backlog.writer.append(new(str(number))) for number in range(8)), return_exceptions=True
    )
    refused = [answer for answer in answers if isinstance(answer, AppendQueueFull)]
    assert len(refused) == 3
    assert "5 appends wait" in str(refused[0])
    assert len(await owner.dispatch_all()) == 5
    await owner.backlog.close()


async def test_a_task_is_stored_even_if_its_caller_was_cancelled() -> None:
    owner = await opened(MemoryStore())
    caller = asyncio.create_task(owner.backlog.writer.append(new("orphan")))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert await owner.dispatch_all() == ["orphan"]
    await owner.backlog.close()


async def test_close_stores_all_accepted_appends_and_rejects_new_ones() -> None:
    store = MemoryStore()
    owner = await opened(store)
    appends = [asyncio.create_task(owner.backlog.writer.append(new(str(number)))) for number in range(50)]
    await asyncio.sleep(0)
    await owner.backlog.close()
    await asyncio.gather(*appends)
    with pytest.raises(BacklogClosed):
        await owner.append("no more")
    successor = await opened(store)
    assert len(await successor.dispatch_all()) == 50
    await successor.backlog.close()


class Chaos:
    """Random delays, lost responses, late effects and outages, until `is_over` is set."""

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
            raise StoreUnavailable("temporarily unavailable")
        if drawn < 0.14 and operation in ("append", "delete_through"):
            return self.pause
        return None

    async def after(self, operation: str, _queue: QueueId | None) -> None:
        await self.pause()
        if not self.is_over and operation in ("append", "delete_through") and self.chance.random() < 0.06:
            raise OutcomeUnknown("the response was lost")


async def run_with_faults(seed: int) -> tuple[Counter[str], set[str]]:
    """Run one partition with this seed. Returns how often each task was dispatched, and the acknowledged tasks."""
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
    for turn in range(300):
        drawn = chance.random()
        if drawn < 0.02 or owner.backlog.lease.lost.is_set():
            previous.append(owner)
            owner = await opened(store)
        elif drawn < 0.55:
            adding.add(asyncio.create_task(add(f"task {turn}")))
        else:
            payload = owner.dispatch()
            if payload is not None:
                dispatched[payload] += 1
        await chaos.pause()
    chaos.is_over = True
    await asyncio.gather(*adding)
    # A last takeover: no task may depend on the memory of the previous owner.
    successor = await opened(store)
    for payload in await successor.dispatch_all():
        dispatched[payload] += 1
    for one in [*previous, owner, successor]:
        await one.backlog.close()
    return dispatched, acknowledged


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(30))
async def test_every_acknowledged_task_is_dispatched_despite_faults(seed: int) -> None:
    """FL-1. To repeat one seed: pytest -k 'despite_faults and <seed>'."""
    dispatched, acknowledged = await run_with_faults(seed)
    assert acknowledged - set(dispatched) == set(), f"acknowledged tasks were lost with seed {seed}"
    assert len(acknowledged) > 50


class Broken:
    """A store that hangs, or raises an exception that is not a store error."""

    def __init__(self) -> None:
        self.hangs_at = ""
        self.fails_at = ""

    async def before(self, operation: str, queue: QueueId | None) -> None:
        if operation == self.hangs_at:
            await asyncio.sleep(1000)
        if operation == self.fails_at:
            raise RuntimeError("a bug in the driver")

    async def after(self, operation: str, queue: QueueId | None) -> None:
        """No faults after an operation."""


@on_virtual_time
async def test_close_fails_the_appends_that_still_wait() -> None:
    faults = Broken()
    owner = Owner(MemoryStore(faults), BacklogLimits(batch_tasks_max=1, writes_max=1))
    await owner.backlog.open()
    faults.hangs_at = "append"
    appends = [asyncio.create_task(owner.backlog.writer.append(NewTask(3, "", 1.0, b"x"))) for _ in range(3)]
    await asyncio.sleep(1)
    await owner.backlog.close()
    outcomes = await asyncio.wait_for(asyncio.gather(*appends, return_exceptions=True), 60)
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, BacklogClosed, BacklogClosed]
    assert owner.backlog.writer.appends_in_flight == 0


@on_virtual_time
async def test_an_unexpected_exception_ends_the_lease_and_the_backlog_can_still_be_closed() -> None:
    faults = Broken()
    owner = Owner(MemoryStore(faults))
    await owner.backlog.open()
    faults.fails_at = "read"
    await owner.backlog.writer.append(NewTask(3, "", 1.0, b"x"))
    await asyncio.wait_for(owner.backlog.lease.lost.wait(), 60)
    await owner.backlog.close()


async def test_other_work_runs_while_a_partition_with_many_keys_is_opened() -> None:
    async def turns_of_other_work(keys: int) -> int:
        """Number of times that other work runs while a new owner opens a partition with this number of keys."""
        store = MemoryStore()
        first = await opened(store)
        for start in range(0, keys, 1_000):
            await asyncio.gather(*(first.append("x", key=f"key-{start + number}") for number in range(1_000)))
        await first.backlog.close()
        turns = 0

        async def other_work() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(other_work())
        owner = await opened(store)
        other.cancel()
        waiting = owner.backlog.priorities.waiting_keys()
        await owner.backlog.close()
        assert len(waiting) == keys
        return turns

    # Two thousand keys are restored at a time.
    assert await turns_of_other_work(5_000) == await turns_of_other_work(1_000) + 2
