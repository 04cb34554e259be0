"""The durable backlog of one partition: appends in batches, reads ahead, deletes behind, under one lease.

The decisions are the core's (`core.fairness`); here they are carried out. An append is answered when its task is
durable. What is loaded is given to `on_loaded`, what is evicted is taken back by `on_evicted`; a task that has been
started is told to `ack`.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.cluster.calls import Exhausted
from fairlead.core.errors import RetryLater
from fairlead.core.fairness import (
    LEVEL_ZERO,
    BufferLimits,
    DeleteSchedule,
    FairBacklog,
    Level,
    Merge,
    Share,
    StoredKey,
    WeightOverrides,
    Write,
)
from fairlead.core.fairness.deletes import ACKED_MIN
from fairlead.core.fairness.deletes import INTERVAL_S as DELETE_INTERVAL_S
from fairlead.core.fairness.passes import KEYS_MAX
from fairlead.core.fairness.weights import STRIDE_OF_WEIGHT_ONE
from fairlead.core.partitions import PartitionConfig
from fairlead.matching.lease import QueueLease
from fairlead.matching.matcher import HeldTask, Place
from fairlead.matching.messages import NewTask, PriorityInfo
from fairlead.storage.contract import (
    Lease,
    LeaseLost,
    Levels,
    OutcomeUnknown,
    QueueId,
    StoredTask,
    StoreUnavailable,
    TaskStore,
)
from fairlead.telemetry import PartitionMetrics, get_log

Clock = Callable[[], float]

_log = get_log("matching")


class AppendQueueFull(Exhausted):
    """More appends wait than the partition takes: nothing was stored."""


class BacklogClosed(RetryLater):
    """The partition is being unloaded: nothing was stored."""


@dataclass(frozen=True, slots=True)
class BacklogLimits:
    """How much a partition has under way at once, and how often it does its chores."""

    appends_waiting_max: int = 2000
    batch_tasks_max: int = 100
    writes_max: int = 4
    # Started tasks are deleted when there are so many, or some after this time, and so many at once at most.
    delete_at_tasks: int = ACKED_MIN
    delete_interval_s: float = DELETE_INTERVAL_S
    delete_batch_tasks: int = 1000
    keys_counted_max: int = KEYS_MAX
    save_interval_s: float = 60.0
    close_timeout_s: float = 5.0
    read_backoff_s_min: float = 0.05
    read_backoff_s_max: float = 10.0
    buffer: BufferLimits = BufferLimits()  # noqa: RUF009 - frozen


class WaitingKey(NamedTuple):
    """A fairness key with tasks in the backlog: about how many, how far the last is behind, and its weight."""

    tasks: int
    lead: float
    weight: float


@dataclass(slots=True, eq=False)
class _Append:
    task: NewTask
    done: asyncio.Future[None]


class PartitionBacklog:
    """Stores tasks and brings them back in the order of their fair turn, while this host has the partition's lease."""

    def __init__(
        self,
        store: TaskStore,
        queue: QueueId,
        *,
        clock: Clock,
        counts: PartitionMetrics,
        overrides: WeightOverrides,
        on_loaded: Callable[[Sequence[HeldTask[bytes]]], None],
        on_evicted: Callable[[Sequence[Place]], None],
        parked: Callable[[], int] = lambda: 0,
        limits: BacklogLimits | None = None,
    ) -> None:
        self._store = store
        self._queue = queue
        self._clock = clock
        self._overrides = overrides
        self._on_loaded = on_loaded
        self._on_evicted = on_evicted
        self._parked = parked
        self._limits = limits or BacklogLimits()
        self._counts = counts
        self.lease = QueueLease(store, queue, counts)
        self._backlogs: dict[int, FairBacklog[StoredTask]] = {}
        self._deletes: dict[int, DeleteSchedule] = {}
        self._waiting: list[_Append] = []
        self._work = asyncio.Event()
        self._reads = asyncio.Event()
        self._acks = asyncio.Event()
        self._writes = asyncio.Semaphore(self._limits.writes_max)
        # In the order in which they were begun, so that a simulation repeats itself.
        self._running: dict[asyncio.Task[None], None] = {}
        self._appends_in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closing = False
        self._tasks_counted = 0

    @property
    def tasks(self) -> int:
        """How many tasks the store holds that have not been started: exact once all of them have been read."""
        if self.is_loaded:
            self._tasks_counted = sum(len(backlog.loaded) for backlog in self._backlogs.values())
        return max(0, self._tasks_counted)

    @property
    def priorities(self) -> list[PriorityInfo]:
        """How far each priority has come."""
        return [
            PriorityInfo(priority, backlog.ack_level, backlog.read_level, backlog.max_level)
            for priority, backlog in sorted(self._backlogs.items())
        ]

    @property
    def is_loaded(self) -> bool:
        """Whether everything that is stored is in memory."""
        return all(backlog.is_at_end for backlog in self._backlogs.values())

    def tasks_by_priority(self) -> dict[int, int]:
        """How the tasks are spread over the priorities: exact once all are read, until then a guess that sums up."""
        tasks = {priority: len(backlog.loaded) for priority, backlog in self._backlogs.items()}
        partly = [priority for priority, backlog in self._backlogs.items() if not backlog.is_at_end]
        unread = max(0, self.tasks - sum(tasks.values()))
        for number, priority in enumerate(partly):
            tasks[priority] += unread // len(partly) + (number < unread % len(partly))
        return tasks

    def override_weights(self, overrides: WeightOverrides) -> None:
        """Count with these overrides from the next write on."""
        self._overrides = overrides
        for backlog in self._backlogs.values():
            backlog.override_weights(overrides)

    def waiting_keys(self) -> dict[str, WaitingKey]:
        """The keys that may have tasks waiting, as far as they are counted one by one."""
        waiting: dict[str, WaitingKey] = {}
        for backlog in self._backlogs.values():
            for key, passes, stride in backlog.waiting():
                known = waiting.get(key)
                tasks = passes // stride + 1 + (known.tasks if known else 0)
                lead = max(passes / STRIDE_OF_WEIGHT_ONE, known.lead if known else 0.0)
                waiting[key] = WaitingKey(tasks, lead, STRIDE_OF_WEIGHT_ONE / stride)
        return waiting

    @property
    def appends_in_flight(self) -> int:
        """Appends that have been taken and not been answered yet: what the drain rule asks for."""
        return self._appends_in_flight

    async def open(self) -> Lease:
        """Take the lease, learn where every fairness key stands, and begin to load."""
        lease = await self.lease.take()
        if lease.levels:
            # No more than a first guess: it need not stop anything.
            with suppress(StoreUnavailable):
                self._tasks_counted = await self._store.count(self._queue, lease.range_id)
        for priority, levels in lease.levels.items():
            stored = await self._store.stored_keys(self._queue, priority, after=levels.ack_level)
            self._add_priority(priority, levels, stored)
        for loop in (self._write_forever, self._read_forever, self._delete_forever, self._save_forever):
            self._start(loop())
        return lease

    async def append(self, task: NewTask) -> None:
        """Keep a task; it is durable when this returns. Where it raises `OutcomeUnknown` it may be kept, too."""
        if self._is_closing:
            raise BacklogClosed(f"partition {self._queue.name!r} is being unloaded: ask for its owner again")
        if len(self._waiting) >= self._limits.appends_waiting_max:
            raise AppendQueueFull(
                f"{len(self._waiting)} appends wait for the store in partition {self._queue.name!r}: retry in a while"
            )
        # Raises if the lease is lost, before anything is begun.
        _ = self.lease.range_id
        append = _Append(task, asyncio.get_running_loop().create_future())
        self._waiting.append(append)
        self._appends_in_flight += 1
        self._idle.clear()
        self._work.set()
        try:
            # Once it was begun a write goes on, whether its caller still waits or has gone.
            await asyncio.shield(append.done)
        except asyncio.CancelledError:
            self._forget(append)
            raise

    def _forget(self, append: _Append) -> None:
        """The caller has gone: what was not begun need not be stored. It may have been tried again elsewhere."""
        if append in self._waiting:
            self._waiting.remove(append)
            self._end_appends(1)

    def _end_appends(self, count: int) -> None:
        self._appends_in_flight -= count
        if not self._appends_in_flight:
            self._idle.set()

    def ack(self, place: Place) -> None:
        """A task has been started: it need not be kept."""
        self._backlogs[place.priority].ack(place.level)
        self._tasks_counted -= 1
        self._acks.set()
        self._reads.set()

    async def count(self) -> int:
        """How many tasks the store holds, dispatched ones that are not deleted yet among them."""
        while True:
            range_id = self.lease.range_id
            try:
                return await self._store.count(self._queue, range_id)
            except LeaseLost:
                # Where our own renewal came between, it can be asked again.
                self.lease.refused(range_id)

    async def save_config(self, config: PartitionConfig) -> None:
        """Save the partition configuration, under the lease."""
        while True:
            range_id = self.lease.range_id
            try:
                await self._store.save_config(self._queue, range_id, config)
            except LeaseLost:
                # Where our own renewal came between nothing was saved, and it can be tried again.
                self.lease.refused(range_id)
                continue
            return

    async def save_rules(self, config: PartitionConfig, rules: bytes) -> None:
        """Save the rules of dispatch, and the configuration that tells the partitions of them, under the lease."""
        while True:
            range_id = self.lease.range_id
            try:
                await self._store.save_rules(self._queue, range_id, config, rules)
            except LeaseLost:
                # As with `save_config`.
                self.lease.refused(range_id)
                continue
            return

    async def load_config(self) -> PartitionConfig | None:
        """The partition configuration as it is stored, when no earlier save can take effect any more."""
        await self.lease.renew(self.lease.range_id)
        return await self._store.load_config(self._queue)

    async def delete_acked(self) -> None:
        """Delete what has been started without waiting for more of it, so that `count` says what is left."""
        for priority, backlog in sorted(self._backlogs.items()):
            if backlog.ack_level > LEVEL_ZERO:
                await self._delete_through(priority, backlog.ack_level)

    async def close(self) -> None:
        """Store what has been taken, save how far it has come, and stop."""
        self._is_closing = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), self._limits.close_timeout_s)
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        waiting, self._waiting = self._waiting, []
        _resolve(waiting, BacklogClosed(f"partition {self._queue.name!r} was unloaded first: nothing was stored"))
        self._end_appends(len(waiting))
        with suppress(LeaseLost, StoreUnavailable, OutcomeUnknown):
            await self._save()

    def _start(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Where something failed as nobody has thought of, the lease counts as lost: another start may go better."""
        self._running.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("backlog_failed", queue=self._queue.name, exc_info=error)
            self.lease.lose()

    def _add_priority(self, priority: int, levels: Levels, stored: Sequence[StoredKey]) -> None:
        self._backlogs[priority] = FairBacklog(
            ack_level=levels.ack_level,
            max_level=levels.max_level,
            stored=stored,
            overrides=self._overrides,
            limits=self._limits.buffer,
            keys_max=self._limits.keys_counted_max,
        )
        self._deletes[priority] = DeleteSchedule(
            acked_min=self._limits.delete_at_tasks, interval_s=self._limits.delete_interval_s
        )
        self._reads.set()
        self._acks.set()

    def _backlog(self, priority: int) -> FairBacklog[StoredTask]:
        if priority not in self._backlogs:
            self._add_priority(priority, Levels(LEVEL_ZERO, LEVEL_ZERO), ())
        return self._backlogs[priority]

    async def _write_forever(self) -> None:
        while True:
            await self._work.wait()
            await self._writes.acquire()
            if not self._waiting:
                # Those who asked have gone.
                self._work.clear()
                self._writes.release()
                continue
            size = self._limits.batch_tasks_max
            first, rest = self._waiting[:size], self._waiting[size:]
            priority = first[0].task.priority
            batch = [append for append in first if append.task.priority == priority]
            self._waiting = [append for append in first if append.task.priority != priority] + rest
            if not self._waiting:
                self._work.clear()
            self._start(self._write(priority, batch))

    async def _write(self, priority: int, batch: list[_Append]) -> None:
        try:
            await self._append_batch(priority, batch)
            _resolve(batch, None)
        except (LeaseLost, StoreUnavailable, OutcomeUnknown) as refused:
            _resolve(batch, refused)
        finally:
            # Also where this was cancelled or failed by a bug: nobody waits for ever.
            _resolve(batch, OutcomeUnknown(f"partition {self._queue.name!r} stopped while the task was being stored"))
            self._end_appends(len(batch))
            self._writes.release()

    async def _append_batch(self, priority: int, batch: list[_Append]) -> None:
        ids = await self.lease.take_ids(len(batch))
        backlog = self._backlog(priority)
        write = backlog.begin_write([Share(one.task.fairness_key, one.task.weight) for one in batch], ids=ids)
        tasks = [
            StoredTask(level, one.task.fairness_key, one.task.weight, one.task.payload, one.task.created_s)
            for level, one in zip(write.levels, batch, strict=True)
        ]
        try:
            await self._store_tasks(priority, backlog, write, tasks)
        except (LeaseLost, StoreUnavailable):
            backlog.write_failed(write)
            raise
        except OutcomeUnknown:
            await self._settle(priority, backlog, write)
            raise
        self._tasks_counted += len(tasks)
        self._deliver(priority, backlog.write_succeeded(write, tasks))

    async def _store_tasks(
        self, priority: int, backlog: FairBacklog[StoredTask], write: Write, tasks: Sequence[StoredTask]
    ) -> None:
        while True:
            range_id = self.lease.range_id
            levels = Levels(backlog.ack_level, max(backlog.max_level, *write.levels))
            try:
                await self._store.append(self._queue, range_id, priority, tasks, levels)
            except LeaseLost:
                # Where our own renewal came between nothing was stored, so the same levels can be tried again.
                self.lease.refused(range_id)
                continue
            return

    async def _settle(self, priority: int, backlog: FairBacklog[StoredTask], write: Write) -> None:
        """Find out what became of a write: after a renewal of the lease it is there, or never will be."""
        backoff_s = self._limits.read_backoff_s_min
        range_id = self.lease.range_id
        while True:
            try:
                await self.lease.renew(range_id)
                break
            except (StoreUnavailable, OutcomeUnknown):
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, self._limits.read_backoff_s_max)
        self._deliver(priority, backlog.write_settled(write))

    async def _read_forever(self) -> None:
        backoff_s = self._limits.read_backoff_s_min
        while True:
            await self._reads.wait()
            self._reads.clear()
            for priority in sorted(self._backlogs):
                if await self._read(priority):
                    backoff_s = self._limits.read_backoff_s_min
                else:
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, self._limits.read_backoff_s_max)
                    self._reads.set()

    async def _read(self, priority: int) -> bool:
        """Read what should be read now; False if the store could not."""
        backlog = self._backlogs[priority]
        while (read := backlog.next_read(parked=self._parked())) is not None:
            try:
                stored = await self._store.read(self._queue, priority, after=read.after, limit=read.limit)
            except StoreUnavailable:
                self._deliver(priority, backlog.read_failed(read))
                return False
            except asyncio.CancelledError:
                backlog.read_failed(read)
                raise
            self._deliver(priority, backlog.read_succeeded(read, [(task.level, task) for task in stored]))
        return True

    def _deliver(self, priority: int, merge: Merge[StoredTask]) -> None:
        if merge.evicted:
            self._on_evicted([Place(priority, level) for level in merge.evicted])
        if merge.loaded:
            self._on_loaded([
                HeldTask(Place(priority, level), task.fairness_key, task.weight, task.payload, task.created_s)
                for level, task in merge.loaded
            ])  # fmt: skip
        self._reads.set()

    async def _delete_forever(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._acks.wait(), self._limits.delete_interval_s)
            self._acks.clear()
            for priority in sorted(self._backlogs):
                await self._delete(priority)

    async def _delete(self, priority: int) -> None:
        backlog, schedule = self._backlogs[priority], self._deletes[priority]
        delete = schedule.next_delete(ack_level=backlog.ack_level, acks_passed=backlog.acks_passed, now_s=self._clock())
        if delete is None:
            return
        try:
            await self._delete_through(priority, delete.through)
        except (LeaseLost, StoreUnavailable, OutcomeUnknown):
            schedule.delete_failed(delete)
        else:
            schedule.delete_succeeded(delete)

    async def _delete_through(self, priority: int, through: Level) -> None:
        limit = self._limits.delete_batch_tasks
        gone = limit
        while gone == limit:
            range_id = self.lease.range_id
            try:
                gone = await self._store.delete_through(self._queue, range_id, priority, through=through, limit=limit)
            except LeaseLost:
                # Where our own renewal came between nothing was deleted, and it can be tried again.
                self.lease.refused(range_id)

    async def _save_forever(self) -> None:
        hungry: set[int] = set()
        while True:
            await asyncio.sleep(self._limits.save_interval_s)
            with suppress(StoreUnavailable, OutcomeUnknown, LeaseLost):
                await self._save()
            hungry = self._set_going(hungry)

    def _set_going(self, hungry_before: set[int]) -> set[int]:
        """Have the reader look again where for a whole interval nothing was loaded though there may be more to load.

        A read that takes so long, or a store that is away, looks the same: to look again costs nothing then.
        """
        hungry = {one for one, backlog in self._backlogs.items() if not backlog.is_at_end and not backlog.loaded}
        if hungry & hungry_before:
            self._counts.fair_reader_stuck_detected += 1
            self._reads.set()
        return hungry

    async def _save(self) -> None:
        """Save how far each priority has come; where nothing has changed it still shows whether the lease is ours."""
        levels = {one: Levels(backlog.ack_level, backlog.max_level) for one, backlog in self._backlogs.items()}
        range_id = self.lease.range_id
        try:
            await self._store.save_levels(self._queue, range_id, levels)
        except LeaseLost:
            # Where our own renewal came between, the next time is early enough.
            self.lease.refused(range_id)


def _resolve(batch: Sequence[_Append], refused: Exception | None) -> None:
    for append in batch:
        if append.done.done():
            continue
        if refused is None:
            append.done.set_result(None)
        else:
            append.done.set_exception(refused)
            # Where the caller has gone, nobody looks at it.
            append.done.exception()
