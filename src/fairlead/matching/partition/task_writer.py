"""Stores new tasks of one partition, in batches."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from fairlead.aio.backoff import Backoff, jitter_of
from fairlead.aio.event import LightEvent
from fairlead.core.errors import RetryLater
from fairlead.core.fairness import FairBacklog, Share, Write
from fairlead.matching.messages import NewTask
from fairlead.matching.partition.backlog_limits import BacklogLimits
from fairlead.matching.partition.lease import QueueLease
from fairlead.matching.partition.priority_backlogs import PriorityBacklogs
from fairlead.matching.partition.runner import Runner
from fairlead.rpc.hosts.caller import Overloaded
from fairlead.storage.tasks import (
    LeaseLost,
    Levels,
    OutcomeUnknown,
    QueueId,
    StoredTask,
    StoreUnavailable,
    TaskStore,
)


class AppendQueueFull(Overloaded):
    """Too many appends wait already: nothing was stored."""


class BacklogClosed(RetryLater):
    """The partition is being unloaded: nothing was stored."""


@dataclass(slots=True, eq=False)
class _Append:
    task: NewTask
    done: asyncio.Future[None]


class TaskWriter:
    """Appends tasks to the store. An append returns when its task is durable.

    `runner` runs a coroutine in the background.
    """

    __slots__ = (
        "_idle",
        "_is_closing",
        "_is_scheduled",
        "_is_stopped",
        "_lease",
        "_limits",
        "_priorities",
        "_queue",
        "_runner",
        "_store",
        "_waiting",
        "_writes",
        "appends_in_flight",
    )

    def __init__(
        self,
        store: TaskStore,
        queue: QueueId,
        *,
        lease: QueueLease,
        priorities: PriorityBacklogs,
        limits: BacklogLimits,
        runner: Runner,
    ) -> None:
        self._store = store
        self._queue = queue
        self._lease = lease
        self._priorities = priorities
        self._limits = limits
        self._runner = runner
        self._waiting: list[_Append] = []
        # Whether a callback of the event loop will begin the writes of the waiting appends.
        self._is_scheduled = False
        self._writes = 0
        self._is_stopped = False
        # Number of appends that were accepted and have not returned yet; the drain rule needs it.
        self.appends_in_flight = 0
        # Set when no append is in flight; None until the writer finishes.
        self._idle: LightEvent | None = None
        self._is_closing = False

    async def append(self, task: NewTask) -> None:
        """Store a task; it is durable when this returns. After `OutcomeUnknown` the task may or may not be stored."""
        if self._is_closing:
            raise BacklogClosed(f"partition {self._queue.name!r} is being unloaded: look up its owner again")
        if len(self._waiting) >= self._limits.appends_waiting_max:
            raise AppendQueueFull(
                f"{len(self._waiting)} appends wait for the store in partition {self._queue.name!r}: retry in a while"
            )
        # Reading the range id raises `LeaseLost` before anything is stored.
        _ = self._lease.range_id
        loop = asyncio.get_running_loop()
        append = _Append(task, loop.create_future())
        self._waiting.append(append)
        self.appends_in_flight += 1
        if not self._is_scheduled:
            # Begin later in this turn of the event loop, so that the appends of one turn share a write.
            self._is_scheduled = True
            loop.call_soon(self._begin_writes)
        try:
            # If the caller is cancelled, so is this future. A write that has begun continues, and ignores the cancelled
            # future.
            await append.done
        except asyncio.CancelledError:
            self._forget(append)
            raise

    def _forget(self, append: _Append) -> None:
        """Drop an append that has not begun: its caller was cancelled, and may have retried at another partition."""
        if append in self._waiting:
            self._waiting.remove(append)
            self._end_appends(1)

    def _end_appends(self, count: int) -> None:
        self.appends_in_flight -= count
        if self._idle is not None and not self.appends_in_flight:
            self._idle.set()

    async def finish(self) -> None:
        """Accept no more appends, and wait until the appends in flight are stored, for a limited time."""
        self._is_closing = True
        if self.appends_in_flight:
            self._idle = LightEvent()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), self._limits.close_timeout_s)
        self._is_stopped = True

    def reject_waiting(self) -> None:
        """Fail the appends that were not begun."""
        waiting, self._waiting = self._waiting, []
        _resolve(
            waiting,
            BacklogClosed(
                f"partition {self._queue.name!r} was unloaded before the task was stored: add the task again"
            ),
        )
        self._end_appends(len(waiting))

    def _begin_writes(self) -> None:
        """Begin to store the appends that wait, in batches of one priority."""
        self._is_scheduled = False
        while self._waiting and self._writes < self._limits.writes_max and not self._is_stopped:
            size = self._limits.batch_tasks_max
            first, rest = self._waiting[:size], self._waiting[size:]
            priority = first[0].task.priority
            batch = [append for append in first if append.task.priority == priority]
            self._waiting = [append for append in first if append.task.priority != priority] + rest
            self._writes += 1
            self._runner.run(self._write(priority, batch))

    async def _write(self, priority: int, batch: list[_Append]) -> None:
        try:
            await self._append_batch(priority, batch)
            _resolve(batch, None)
        except (LeaseLost, StoreUnavailable, OutcomeUnknown) as refused:
            _resolve(batch, refused)
        finally:
            # Runs also after a cancellation or a bug, so that no caller waits for ever.
            _resolve(batch, OutcomeUnknown(f"partition {self._queue.name!r} stopped while the task was being stored"))
            self._end_appends(len(batch))
            self._writes -= 1
            self._begin_writes()

    async def _append_batch(self, priority: int, batch: list[_Append]) -> None:
        ids = await self._lease.take_ids(len(batch))
        backlog = self._priorities.of(priority)
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
        self._priorities.tasks_counted += len(tasks)
        self._priorities.deliver(priority, backlog.write_succeeded(write, tasks))

    async def _store_tasks(
        self, priority: int, backlog: FairBacklog[StoredTask], write: Write, tasks: Sequence[StoredTask]
    ) -> None:
        while True:
            range_id = self._lease.range_id
            levels = Levels(backlog.ack_level, max(backlog.max_level, *write.levels))
            try:
                await self._store.append(self._queue, range_id, priority, tasks, levels)
            except LeaseLost:
                # If this host has renewed the lease meanwhile, nothing was stored: write the same levels again.
                self._lease.refused(range_id)
                continue
            return

    async def _settle(self, priority: int, backlog: FairBacklog[StoredTask], write: Write) -> None:
        """Resolve a write with unknown outcome: renew the lease, so that the write has taken effect or never will."""
        backoff = Backoff(
            self._limits.read_backoff_s_min, self._limits.read_backoff_s_max, random=jitter_of(repr(self._queue))
        )
        range_id = self._lease.range_id
        while True:
            try:
                await self._lease.renew(range_id)
                break
            except (StoreUnavailable, OutcomeUnknown):
                await asyncio.sleep(backoff.next_s())
        self._priorities.deliver(priority, backlog.write_settled(write))


def _resolve(batch: Sequence[_Append], refused: Exception | None) -> None:
    for append in batch:
        if append.done.done():
            continue
        if refused is None:
            append.done.set_result(None)
        else:
            append.done.set_exception(refused)
            # Reading the error keeps asyncio from logging it when the caller is gone.
            append.done.exception()
