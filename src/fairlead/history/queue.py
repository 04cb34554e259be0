"""A queue of a shard: what is to be done after a step, now or at a time, until it is done.

A task is durable before it is begun, since it was written with the step that made it. Tasks up to a horizon are in
memory; those beyond it are read from the store when their time comes near. A task is done at least once: whoever does
it looks whether it still means anything. Finished tasks are deleted a while later, all at once, up to the first that
is not finished.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import msgspec

from fairlead.core.errors import FairleadError
from fairlead.history.state.tasks import QueueRow, decode_row
from fairlead.storage.history_contract import TASKS_COMPLETED_MAX, HistoryStore, LeaseLost, RunKey, TaskKey
from fairlead.telemetry import get_log

SECOND_NS = 1_000_000_000

# Tasks in memory of one queue of all shards together; what comes beyond is read again later.
TASKS_IN_MEMORY_MAX = 100_000
TASKS_A_SHARD_MIN = 1_000
PAGE_MAX = 2_000
# Tasks of one queue that are worked on at a time.
CONCURRENT_MAX = 200
# How far ahead of their time timers are brought into memory, and how often that is looked at.
AHEAD_NS = 60 * SECOND_NS
LOOK_AHEAD_S = 20.0
DELETE_INTERVAL_S = 1.0
# Loops count in milliseconds, and may be that much early: who looks before the time looks again until it comes.
ALARM_LATE_S = 0.001
# A task that fails is tried again after ever longer waits. So many at a time wait without keeping others from work.
RETRYING_MAX = 1_000
RETRY_FIRST_S = 0.05
RETRY_S_MAX = 10.0
_RETRY_LOUD_ATTEMPTS = 5

END_OF_TIME = TaskKey(2**63 - 1, 2**63 - 1)

_log = get_log("history.queue")

Run = Callable[[QueueRow], Awaitable[None]]


class ShardQueue:
    """The tasks of one queue of one shard. `is_timed`: each has a time before which it is not begun."""

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
        is_timed: bool,
        tasks_max: int = TASKS_IN_MEMORY_MAX,
    ) -> None:
        self.name = name
        self._shard_id = shard_id
        self._store = store
        self._run = run
        self._clock_ns = clock_ns
        self._range_id = range_id
        self._on_lost = on_lost
        self._on_error = on_error
        self._is_timed = is_timed
        self._tasks_max = tasks_max
        # What is being written, waits or is worked on; and the same keys by size, those that are done among them.
        self._outstanding: dict[TaskKey, QueueRow | None] = {}
        self._keys: list[TaskKey] = []
        # Keys in memory whose turn has not come.
        self._waiting: list[TaskKey] = []
        self._level = TaskKey(-1, -1)
        self._deleted = TaskKey(-1, -1)
        self._highest_done = TaskKey(-1, -1)
        self._horizon = TaskKey(-1, -1)
        # Above this, the store is being asked what there is.
        self._reading_from = END_OF_TIME
        self._busy = 0
        self._failing = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._work: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._look = asyncio.Event()

    async def open(self, level: TaskKey | None) -> None:
        """Take up what is there above `level`."""
        if level is not None:
            self._level = self._deleted = self._highest_done = self._horizon = level
        await self._read_on()
        self._loops = [asyncio.create_task(self._read_forever()), asyncio.create_task(self._delete_forever())]

    async def close(self) -> None:
        """Begin nothing more, and leave what was begun."""
        self._is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        going = [*self._loops, *self._work]
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)

    def has_any_of(self, key: RunKey) -> bool:
        """Whether something of a run is in memory that is not done."""
        rows = self._outstanding.values()
        return any(row is not None and (row.namespace_id, row.workflow_id, row.run_id) == key for row in rows)

    async def read_until(self, until_ns: int) -> AsyncIterator[QueueRow]:
        """What the store has up to a time; what is done is among it for a while."""
        after = self._deleted
        while True:
            page = await self._store.read_tasks(
                self._shard_id, self.name, after=after, until_ns=until_ns, limit=PAGE_MAX
            )
            for stored in page:
                # What can't be read was told of when it was to be done.
                with suppress(msgspec.DecodeError):
                    yield decode_row(stored.payload)
            if len(page) < PAGE_MAX:
                return
            after = page[-1].key

    @property
    def pending(self) -> int:
        """Tasks in memory that are not done."""
        return len(self._outstanding)

    def place(self, fire_at_ns: int, task_id: int) -> TaskKey:
        """Where a task that is about to be written is to stand: above what is already given up for deletion."""
        key = TaskKey(fire_at_ns, task_id)
        if key <= self._level:
            key = TaskKey(self._level.fire_at_ns + 1, task_id)
        self._outstanding[key] = None
        heapq.heappush(self._keys, key)
        return key

    def written(self, key: TaskKey, row: QueueRow) -> None:
        """The task is durable: it is begun when its time comes."""
        if key > self._horizon or len(self._outstanding) > self._tasks_max:
            # Beyond the horizon, or too many: it is read later. The horizon must not be beyond it then.
            self._forget(key)
            self._horizon = min(self._horizon, TaskKey(key.fire_at_ns, key.task_id - 1))
            return
        self._outstanding[key] = row
        self._enqueue(key)

    def not_written(self, key: TaskKey) -> None:
        """The task was not written after all."""
        self._forget(key)

    def _enqueue(self, key: TaskKey) -> None:
        if not self._is_timed and self._busy < CONCURRENT_MAX and not self._waiting:
            self._begin(key)
            return
        heapq.heappush(self._waiting, key)
        if self._is_timed and self._waiting[0] is key:
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if not self._waiting or self._is_closed:
            return
        wait_s = (self._waiting[0].fire_at_ns - self._clock_ns()) / SECOND_NS
        wait_s = wait_s + ALARM_LATE_S if wait_s > 0 else 0.0
        self._alarm = asyncio.get_running_loop().call_later(min(wait_s, LOOK_AHEAD_S), self._wake)

    def _wake(self) -> None:
        self._begin_due()
        if self._busy < CONCURRENT_MAX:
            self._set_alarm()

    def _begin_due(self) -> None:
        now_ns = self._clock_ns() if self._is_timed else 0
        while (
            self._waiting
            and self._busy < CONCURRENT_MAX
            and not self._is_closed
            and (not self._is_timed or self._waiting[0].fire_at_ns <= now_ns)
        ):
            self._begin(heapq.heappop(self._waiting))

    def _begin(self, key: TaskKey) -> None:
        row = self._outstanding.get(key)
        if row is None or self._is_closed:
            return
        self._busy += 1
        task = asyncio.get_running_loop().create_task(self._do(key, row))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _do(self, key: TaskKey, row: QueueRow) -> None:
        attempt = 0
        wait_s = RETRY_FIRST_S
        is_busy = True
        try:
            while not self._is_closed:
                try:
                    await self._run(row)
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
                            task=type(row.task).__name__,
                            workflow_id=row.workflow_id,
                            run_id=row.run_id,
                            error=str(failure),
                        )
                except Exception:  # noqa: BLE001 - whatever it is, the task is not done
                    attempt += 1
                    _log.exception(
                        "task failed",
                        shard=self._shard_id,
                        queue=self.name,
                        task=type(row.task).__name__,
                        workflow_id=row.workflow_id,
                        run_id=row.run_id,
                    )
                self._on_error(row)
                if self._failing < RETRYING_MAX:
                    is_busy = False
                    self._rest()
                self._failing += 1
                try:
                    await asyncio.sleep(wait_s)
                finally:
                    self._failing -= 1
                if not is_busy:
                    is_busy = True
                    self._busy += 1
                wait_s = min(wait_s * 2, RETRY_S_MAX)
            else:
                return
            self._forget(key)
            self._highest_done = max(self._highest_done, key)
        finally:
            if is_busy:
                self._rest()

    def _rest(self) -> None:
        """Let others work."""
        self._busy -= 1
        if self._waiting:
            self._wake() if self._is_timed else self._begin_due()
        elif not self._outstanding:
            self._look.set()

    def _forget(self, key: TaskKey) -> None:
        self._outstanding.pop(key, None)

    async def _read_forever(self) -> None:
        while True:
            self._look.clear()
            # Not `wait_for`: where both come at once, it would not let the loop be ended.
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AHEAD_S):
                    await self._look.wait()
            try:
                await self._read_on()
            except FairleadError as failure:
                _log.warning("queue can't be read", shard=self._shard_id, queue=self.name, error=str(failure))
                await asyncio.sleep(RETRY_S_MAX)
            except Exception:  # noqa: BLE001 - the queue goes on whatever it is
                _log.exception("queue can't be read", shard=self._shard_id, queue=self.name)
                await asyncio.sleep(RETRY_S_MAX)

    async def _read_on(self) -> None:
        """Bring what is beyond the horizon into memory, as far as the time has come near and there is room."""
        while len(self._outstanding) < self._tasks_max:
            after = self._horizon
            until_ns = self._clock_ns() + AHEAD_NS if self._is_timed else None
            # At once, before the store is asked: what is written meanwhile may not be in its answer.
            ahead = END_OF_TIME if until_ns is None else TaskKey(until_ns, END_OF_TIME.task_id)
            if ahead <= after:
                return
            self._horizon = ahead
            self._reading_from = after
            try:
                page = await self._store.read_tasks(
                    self._shard_id, self.name, after=after, until_ns=until_ns, limit=PAGE_MAX
                )
            except BaseException:
                self._horizon = min(self._horizon, after)
                raise
            finally:
                self._reading_from = END_OF_TIME
            for stored in page:
                if stored.key not in self._outstanding:
                    self._take(stored.key, stored.payload)
            if len(page) < PAGE_MAX:
                return
            # Unless something that was written meanwhile had to be left in the store.
            self._horizon = min(self._horizon, page[-1].key)

    def _take(self, key: TaskKey, payload: bytes) -> None:
        try:
            row = decode_row(payload)
        except msgspec.DecodeError as wrong:
            # It stays in the store, and so does the level: a person, or the release that wrote it, must look.
            _log.error("task can't be read", shard=self._shard_id, queue=self.name, key=tuple(key), error=str(wrong))
            self._outstanding[key] = None
            heapq.heappush(self._keys, key)
            return
        self._outstanding[key] = row
        heapq.heappush(self._keys, key)
        self._enqueue(key)

    async def _delete_forever(self) -> None:
        while True:
            await asyncio.sleep(DELETE_INTERVAL_S)
            try:
                await self.delete_done()
            except LeaseLost:
                self._on_lost()
                return
            except FairleadError as failure:
                _log.warning("queue can't be deleted from", shard=self._shard_id, queue=self.name, error=str(failure))
            except Exception:  # noqa: BLE001 - the queue goes on whatever it is
                _log.exception("queue can't be deleted from", shard=self._shard_id, queue=self.name)

    async def delete_done(self) -> None:
        """Delete what is done, up to the first task that is not."""
        keys = self._keys
        while keys and keys[0] not in self._outstanding:
            heapq.heappop(keys)
        if len(keys) > 2 * len(self._outstanding) + PAGE_MAX:
            # Most are of timers far away, which are in the store and would be here until their time.
            keys[:] = [key for key in keys if key in self._outstanding]
            heapq.heapify(keys)
        # What is beyond the horizon may be in the store only.
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
