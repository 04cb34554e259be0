"""A task queue of a shard: runs the tasks that steps of runs have added, at once or when they are due.

A task is durable before it starts, because the step that added it wrote it. Tasks up to a horizon are in memory; later
tasks are read from the store when they are nearly due. A task may run more than once, so its executor checks whether it
still applies. Finished tasks are deleted later, together, up to the first unfinished task.
"""

import asyncio
import heapq
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial

import msgspec

from fairlead.aio.admission import Admission
from fairlead.aio.backoff import Backoff
from fairlead.api.times import SECOND_NS
from fairlead.core.errors import FairleadError, reported
from fairlead.history.shard.waiting_tasks import WaitingTasks
from fairlead.history.state.tasks import QueueRow, decode_row
from fairlead.storage.history import TASKS_COMPLETED_MAX, HistoryStore, LeaseLost, RunKey, TaskKey
from fairlead.telemetry import get_log

# Number of tasks in memory, of one queue in all shards together; further tasks are read from the store later.
TASKS_IN_MEMORY_MAX = 100_000
TASKS_A_SHARD_MIN = 1_000
PAGE_MAX = 2_000
# Number of tasks of one queue that run at the same time.
CONCURRENT_MAX = 200
# Nanoseconds before their due time at which timers are loaded into memory.
AHEAD_NS = 60 * SECOND_NS
# Seconds between two checks whether stored timers are nearly due.
TIMERS_AHEAD_S = 20.0
DELETE_INTERVAL_S = 1.0
# Seconds added to an alarm: the clocks of event loops are coarse, and an early alarm would be set again and again.
ALARM_LATE_S = 0.001
# Number of failed tasks of one queue that wait for a retry without counting as running.
RETRYING_MAX = 1_000
# Seconds before the first retry of a failed task or read (doubled for each further retry), and the maximum.
RETRY_FIRST_S = 0.05
RETRY_S_MAX = 10.0
_RETRY_LOUD_ATTEMPTS = 5

END_OF_TIME = TaskKey(2**63 - 1, 2**63 - 1)

_log = get_log("history.queue")

Run = Callable[[QueueRow], Awaitable[None]]


class ShardQueue:
    """One task queue of one shard. If `is_timed`, its tasks are timers, which start when they are due."""

    def __init__(
        self,
        name: str,
        *,
        shard_id: int,
        store: HistoryStore,
        run: Run,
        clock_ns: Callable[[], int],
        range_id: Callable[[], int],
        on_lost: Callable[[], None],
        on_error: Callable[[QueueRow], None] = lambda _row: None,
        is_over: Callable[[QueueRow], bool] = lambda _row: False,
        is_timed: bool,
        ahead_ns: int | None = AHEAD_NS,
        tasks_max: int = TASKS_IN_MEMORY_MAX,
        uniform: Callable[[], float] = random.random,
        turns: Admission | None = None,
    ) -> None:
        """`ahead_ns`: timers that are due within this time are loaded into memory; None loads all timers.

        `is_over` returns whether a task certainly has no effect any more, so that it need not run.
        `uniform` makes random numbers in [0, 1), which vary the pauses between retries. `turns` limits the number of
        tasks that all queues of a busy host run at once.
        """
        self.name = name
        self._shard_id = shard_id
        self._store = store
        self._read_page = partial(store.read_tasks, shard_id, name)
        self._run = run
        self._clock_ns = clock_ns
        self._range_id = range_id
        self._on_lost = on_lost
        self._on_error = on_error
        self._is_over = is_over
        self._is_timed = is_timed
        self._ahead_ns = ahead_ns if is_timed else None
        self._tasks_max = tasks_max
        self._uniform = uniform
        # Unfinished tasks by key (None: being written); and a heap of their keys, with some keys of finished tasks.
        self._outstanding: dict[TaskKey, QueueRow | None] = {}
        self._keys: list[TaskKey] = []
        self._turns = turns or Admission(lambda: CONCURRENT_MAX)
        self._waiting = WaitingTasks(self._outstanding, is_timed=is_timed)
        self._level = self._deleted = self._highest_done = self._horizon = TaskKey(-1, -1)
        # Lowest key of a task that may be only in the store, which is read when that task is nearly due.
        self._next_stored = TaskKey(-1, -1)
        # Key after which a read of the store is in progress.
        self._reading_from = END_OF_TIME
        self._busy = 0
        self._failing = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._work: set[asyncio.Task[None]] = set()
        self._is_closed = False
        # `_has_leftovers` is set if finished tasks are in the store, or keys in the heap have no task in memory.
        self._wake, self._has_leftovers = asyncio.Event(), asyncio.Event()

    async def open(self, level: TaskKey | None) -> None:
        """Load the tasks above `level`, and start the loops."""
        if level is not None:
            self._level = self._deleted = self._highest_done = self._horizon = level
        await self._read_on()
        self._loops = [asyncio.create_task(self._read_forever()), asyncio.create_task(self._delete_forever())]

    async def close(self) -> None:
        """Start no more tasks, and cancel the running ones; the next owner of the shard runs them again."""
        self._is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        going = [*self._loops, *self._work]
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)

    def has_any_of(self, key: RunKey) -> bool:
        """Whether an unfinished task of the run is in memory."""
        rows = self._outstanding.values()
        return any(row is not None and (row.namespace_id, row.workflow_id, row.run_id) == key for row in rows)

    async def read_until(self, until_ns: int) -> AsyncIterator[QueueRow]:
        """The stored tasks up to a time, including finished tasks that are not yet deleted."""
        after = self._deleted
        while True:
            page = await self._read_page(after=after, until_ns=until_ns, limit=PAGE_MAX)
            for stored in page:
                # Skip an unreadable task: it was logged when the queue loaded it.
                with suppress(msgspec.DecodeError):
                    yield decode_row(stored.payload)
            if len(page) < PAGE_MAX:
                return
            after = page[-1].key

    @property
    def pending(self) -> int:
        """The number of unfinished tasks in memory."""
        return len(self._outstanding)

    @property
    def is_busy(self) -> bool:
        """Whether a task is running, waits for a retry, or is due."""
        if not self._is_timed:
            return bool(self._outstanding)
        return self._busy > 0 or self._failing > 0 or self._waiting.has_due(self._clock_ns())

    async def next_timer(self) -> tuple[TaskKey, QueueRow] | None:
        """The first task that is not yet due; None if no task is due within `ahead_ns`."""
        if not self._waiting:
            await self._read_on()
        while (key := self._waiting.first_timer) is not None:
            row = self._outstanding.get(key)
            if row is not None:
                return key, row
            self._waiting.drop_first_timer()
        return None

    def drop_timer(self, key: TaskKey) -> None:
        """Forget a task that no longer has an effect, before it is due."""
        # Don't count it as finished: that would raise the deletion level, above which new tasks must have their keys.
        self._outstanding.pop(key, None)

    def assign(self, fire_at_ns: int, task_id: int) -> TaskKey:
        """Assign a key to a task that will be written; the key is above the keys that are being deleted."""
        key = TaskKey(fire_at_ns, task_id)
        if key <= self._level:
            key = TaskKey(self._level.fire_at_ns + 1, task_id)
        self._outstanding[key] = None
        heapq.heappush(self._keys, key)
        return key

    def written(self, key: TaskKey, row: QueueRow) -> None:
        """Record that the task is durable, so that it starts when it is due."""
        if key > self._horizon or len(self._outstanding) > self._tasks_max:
            # The key is above the range in memory, or memory is full: end the range below the key, to read it later.
            self._outstanding.pop(key, None)
            self._horizon = min(self._horizon, TaskKey(key.fire_at_ns, key.task_id - 1))
            self._next_stored = min(self._next_stored, key)
            self._has_leftovers.set()
            return
        self._outstanding[key] = row
        self._enqueue(key)

    def not_written(self, key: TaskKey) -> None:
        """Forget a task whose write failed, so that the store does not have it."""
        self._outstanding.pop(key, None)

    def _enqueue(self, key: TaskKey) -> None:
        if not self._is_timed and self._busy < CONCURRENT_MAX and not self._waiting:
            self._begin(key)
            return
        if self._waiting.add(key):
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        first = self._waiting.first_timer
        if first is None or self._is_closed:
            return
        wait_s = (first.fire_at_ns - self._clock_ns()) / SECOND_NS
        wait_s = wait_s + ALARM_LATE_S if wait_s > 0 else 0.0
        self._alarm = asyncio.get_running_loop().call_later(min(wait_s, TIMERS_AHEAD_S), self.wake)

    def wake(self) -> None:
        """Start the tasks that are due. The alarm calls this, and it must be called after a jump of the clock."""
        self._begin_due()
        if self._busy < CONCURRENT_MAX:
            self._set_alarm()

    def _begin_due(self) -> None:
        now_ns = self._clock_ns() if self._is_timed else 0
        while self._busy < CONCURRENT_MAX and not self._is_closed:
            key = self._waiting.take(now_ns)
            if key is None:
                return
            self._begin(key)

    def _begin(self, key: TaskKey) -> None:
        if (row := self._outstanding.get(key)) is None or self._is_closed:
            return
        if self._is_over(row):
            self._finish(key)
            return
        self._busy += 1
        self._work.add(task := asyncio.get_running_loop().create_task(self._do(key, row)))
        task.add_done_callback(self._work.discard)

    async def _do(self, key: TaskKey, row: QueueRow) -> None:
        attempt = 0
        backoff = Backoff(RETRY_FIRST_S, RETRY_S_MAX, random=self._uniform)
        is_busy = True
        try:
            while not self._is_closed:
                try:
                    await self._turns.carry_out(row.namespace_id, self._run, row)
                    break
                except LeaseLost:
                    self._on_lost()
                    return
                except FairleadError as failure:
                    attempt += 1
                    if attempt == _RETRY_LOUD_ATTEMPTS:
                        _log.warning(
                            "task keeps failing",
                            shard=self._shard_id,
                            queue=self.name,
                            **_names(row),
                            error=str(failure),
                        )
                except Exception:  # noqa: BLE001 - after any error, the task must run again
                    attempt += 1
                    _log.exception("task failed", shard=self._shard_id, queue=self.name, **_names(row))
                self._on_error(row)
                if self._failing < RETRYING_MAX:
                    is_busy = False
                    self._rest()
                self._failing += 1
                try:
                    await asyncio.sleep(backoff.next_s())
                finally:
                    self._failing -= 1
                if not is_busy:
                    is_busy = True
                    self._busy += 1
            else:
                return
            self._finish(key)
        finally:
            if is_busy:
                self._rest()

    def _finish(self, key: TaskKey) -> None:
        self._outstanding.pop(key, None)
        self._highest_done = max(self._highest_done, key)
        self._has_leftovers.set()
        if not self._outstanding and self._horizon < END_OF_TIME:
            self._wake.set()

    def _rest(self) -> None:
        """Stop counting a task as running, and start other tasks in its place."""
        self._busy -= 1
        if self._waiting:
            self.wake() if self._is_timed else self._begin_due()

    async def _read_forever(self) -> None:
        backoff = Backoff(RETRY_FIRST_S, RETRY_S_MAX, random=self._uniform)
        while True:
            # Don't use `wait_for`, which can swallow a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(TIMERS_AHEAD_S):
                    await self._wake.wait()
            # Not before the wait: the first tasks may end before this loop runs.
            self._wake.clear()
            try:
                await self._read_on()
                backoff.reset()
            except Exception as failure:  # noqa: BLE001 - the read is retried after any error
                _log.warning("queue can't be read", shard=self._shard_id, queue=self.name, **reported(failure))
                await asyncio.sleep(backoff.next_s())
                self._wake.set()

    async def _read_on(self) -> None:
        """Load tasks from beyond the horizon, if they are nearly due and there is room."""
        while len(self._outstanding) < self._tasks_max:
            after = self._horizon
            until_ns = None if self._ahead_ns is None else self._clock_ns() + self._ahead_ns
            # Move the horizon first: the page may lack a task written during the read, which `written` then keeps.
            ahead = END_OF_TIME if until_ns is None else TaskKey(until_ns, END_OF_TIME.task_id)
            if ahead <= after:
                return
            self._horizon = ahead
            if ahead < self._next_stored:
                return
            self._reading_from, self._next_stored = after, END_OF_TIME
            try:
                page = await self._read_page(after=after, until_ns=until_ns, limit=PAGE_MAX)
                if len(page) < PAGE_MAX and until_ns is not None:
                    beyond = await self._read_page(after=ahead, until_ns=None, limit=1)
                    self._next_stored = min([self._next_stored, *(stored.key for stored in beyond)])
            except BaseException:
                self._horizon, self._next_stored = min(self._horizon, after), after
                raise
            finally:
                self._reading_from = END_OF_TIME
            for stored in page:
                if stored.key not in self._outstanding:
                    self._take(stored.key, stored.payload)
            if len(page) < PAGE_MAX:
                return
            # `written` may have lowered the horizon during the read, for a task that it left in the store.
            self._horizon = self._next_stored = min(self._horizon, page[-1].key)

    def _take(self, key: TaskKey, payload: bytes) -> None:
        try:
            row = decode_row(payload)
        except msgspec.DecodeError as wrong:
            # The task stays in the store and limits the deletion level, until an operator or another release acts.
            _log.error("task can't be read", shard=self._shard_id, queue=self.name, key=tuple(key), error=str(wrong))
            self._outstanding[key] = None
            heapq.heappush(self._keys, key)
            return
        self._outstanding[key] = row
        heapq.heappush(self._keys, key)
        self._enqueue(key)

    async def _delete_forever(self) -> None:
        while True:
            await self._has_leftovers.wait()
            await asyncio.sleep(DELETE_INTERVAL_S)
            try:
                await self.delete_done()
                if self._deleted >= self._highest_done:
                    self._has_leftovers.clear()
            except LeaseLost:
                self._on_lost()
                return
            except Exception as failure:  # noqa: BLE001 - the loop continues after any error
                _log.warning("finished tasks not deleted", shard=self._shard_id, queue=self.name, **reported(failure))

    async def delete_done(self) -> None:
        """Delete the finished tasks up to the first unfinished task."""
        keys = self._keys
        while keys and keys[0] not in self._outstanding:
            heapq.heappop(keys)
        if len(keys) > 2 * len(self._outstanding) + PAGE_MAX:
            # Most keys belong to timers that are only in the store, and would stay in the heap until they are due.
            keys[:] = [key for key in keys if key in self._outstanding]
            heapq.heapify(keys)
        # Unfinished tasks beyond the horizon are only in the store.
        level = min(self._highest_done, self._horizon, self._reading_from)
        if keys and keys[0] <= level:
            level = TaskKey(keys[0].fire_at_ns, keys[0].task_id - 1)
        if level <= self._deleted:
            return
        self._level = max(self._level, level)
        gone = TASKS_COMPLETED_MAX
        while gone >= TASKS_COMPLETED_MAX:
            gone = await self._store.complete_tasks(self._shard_id, self._range_id(), self.name, level)
        self._deleted = level


def _names(row: QueueRow) -> dict[str, str]:
    """The fields of a log line about a task."""
    return {"task": type(row.task).__name__, "workflow_id": row.workflow_id, "run_id": row.run_id}
