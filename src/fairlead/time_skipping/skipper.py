"""Skips time to the next timer or sleeper when nothing is in flight.

The conditions are checked after each change: a call ends, a run changes, a lock is removed. Reading the next timer
waits for locks of runs, so the conditions are checked again afterwards, in the same event loop step as the jump.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from fairlead.api.times import SECOND_NS
from fairlead.core.errors import FairleadError, FixRequest
from fairlead.history.shard.shard import Shard
from fairlead.history.task_executors.pending_timers import is_pending
from fairlead.telemetry import get_log
from fairlead.time_skipping.calls import CallWatch
from fairlead.time_skipping.clock import TIME_NS_MAX, SkippingClock
from fairlead.time_skipping.counter import LockCounter
from fairlead.time_skipping.work import WorkWatch

# Seconds between two checks while the queues of shards are busy, at first and at most.
BUSY_S_MIN, BUSY_S_MAX = 0.001, 0.05
# Number of calls that may sleep at the same time.
SLEEPERS_MAX = 10_000
# Longest wait of the alarm in seconds of real time; then the time of the first sleeper is checked again.
ALARM_S_MAX = 3600.0

_log = get_log("time_skipping")


class TooLate(FixRequest):
    """A sleep would end after `TIME_NS_MAX`, the latest time of the clock."""


class TooManySleepers(FixRequest):
    """`SLEEPERS_MAX` calls sleep already."""


class Skipper:
    """Skips time for the shards of one server."""

    def __init__(
        self,
        clock: SkippingClock,
        *,
        counter: LockCounter,
        calls: CallWatch,
        work: WorkWatch,
        shards: Callable[[], Iterable[Shard] | None],
        namespace_name: Callable[[str], str],
    ) -> None:
        """`shards` returns all shards of the cluster, or None until all of them are open."""
        self._clock = clock
        self._counter = counter
        self._calls = calls
        self._work = work
        self._shards = shards
        self._namespace_name = namespace_name
        self._sleepers: set[_Sleeper] = set()
        self._changes = 0
        self._busy_s = BUSY_S_MIN
        self._check: asyncio.Handle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._skipping: asyncio.Task[None] | None = None
        self._is_closed = False
        calls.on_end = self.poke
        work.on_change = self._work_changed

    def now_ns(self) -> int:
        """The current time of the server."""
        return self._clock.now_ns()

    def lock(self) -> None:
        """Hold time until an unlock."""
        self._counter.lock()

    def unlock(self) -> None:
        """Remove a lock; time is skipped if it was the last one. Raises `NotLocked` without a lock."""
        self._counter.unlock()
        self._calls.allow_at_once()
        self.poke()

    async def sleep_until(self, time_ns: int) -> None:
        """Return when the server's clock has reached this time."""
        await self._sleep(time_ns)

    async def unlock_during_sleep(self, duration_ns: int) -> None:
        """Remove a lock until the server's clock has advanced by a duration. Raises `NotLocked` without a lock."""
        until_ns = self._clock.now_ns() + duration_ns
        _check_time(until_ns)
        unlock = self._counter.begin()
        self._calls.allow_at_once()
        await self._sleep(until_ns, on_wake=partial(self._counter.end, unlock))

    def _work_changed(self) -> None:
        self._counter.set_activities(self._work.activities)
        self.poke()

    def poke(self) -> None:
        """Record a change, and check whether time may be skipped."""
        self._changes += 1
        self._busy_s = BUSY_S_MIN
        self._check_soon()

    async def close(self) -> None:
        """Stop skipping. Sleeping calls are ended by the gRPC server."""
        self._is_closed = True
        for handle in (self._check, self._alarm):
            if handle is not None:
                handle.cancel()
        if self._skipping is not None:
            self._skipping.cancel()
            await asyncio.gather(self._skipping, return_exceptions=True)

    # Sleepers

    async def _sleep(self, until_ns: int, *, on_wake: Callable[[], None] = lambda: None) -> None:
        sleeper = _Sleeper(until_ns, asyncio.get_running_loop().create_future(), on_wake)
        try:
            _check_time(until_ns)
            if len(self._sleepers) >= SLEEPERS_MAX:
                raise TooManySleepers(f"{SLEEPERS_MAX} calls sleep already: wait until some of them end")
        except FixRequest:
            on_wake()
            raise
        self._sleepers.add(sleeper)
        self._wake_sleepers()
        self.poke()
        try:
            await sleeper.woken
        finally:
            # The call may be cancelled before it wakes.
            self._wake(sleeper)

    def _wake(self, sleeper: "_Sleeper") -> None:
        if sleeper not in self._sleepers:
            return
        self._sleepers.discard(sleeper)
        # In the same event loop step: no further skip before the lock is restored.
        sleeper.on_wake()
        self._calls.client_answered()
        if not sleeper.woken.done():
            sleeper.woken.set_result(None)

    def _wake_sleepers(self) -> None:
        now_ns = self._clock.now_ns()
        for sleeper in [one for one in self._sleepers if one.until_ns <= now_ns]:
            self._wake(sleeper)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Wake the first sleeper at its time even if no time is skipped."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._sleepers and not self._is_closed:
            wait_s = (min(one.until_ns for one in self._sleepers) - self._clock.now_ns()) / SECOND_NS
            wait_s = max(0.0, min(wait_s, ALARM_S_MAX))
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._wake_sleepers)

    # Skipping

    def _check_soon(self, wait_s: float = 0.0) -> None:
        if self._is_closed:
            return
        if self._check is not None:
            self._check.cancel()
        loop = asyncio.get_running_loop()
        self._check = loop.call_later(wait_s, self._consider) if wait_s else loop.call_soon(self._consider)

    def _consider(self) -> None:
        self._check = None
        if self._skipping is not None and not self._skipping.done():
            # The running skip checks again when it ends.
            return
        wait_s = self._wait_s()
        if wait_s is None:
            return
        if wait_s:
            self._check_soon(wait_s)
            return
        self._skipping = asyncio.get_running_loop().create_task(self._skip())

    def _wait_s(self) -> float | None:
        """Seconds until the next check: 0 if time may be skipped now, None if only a change can allow it."""
        work, calls = self._work, self._calls
        if self._counter.holds or work.workflow_tasks or calls.holding:
            return None
        if wait_s := calls.quiet_in_s():
            return wait_s
        for task in work.waiting:
            namespace = self._namespace_name(task.namespace_id) if task.namespace_id else ""
            expires_in_s = calls.expires_in_s(namespace, task.type, task.task_queues)
            if expires_in_s is None:
                return None
            if expires_in_s:
                return expires_in_s
        shards = self._shards()
        if shards is None or any(queue.is_busy for shard in shards for queue in shard.queues.by_name.values()):
            self._busy_s = min(self._busy_s * 2, BUSY_S_MAX)
            return self._busy_s
        return 0.0

    async def _skip(self) -> None:
        """Skip to the next timer or sleeper, unless something changes while the timers are read."""
        changes = self._changes
        try:
            due_ns = await self._next_ns()
        except FairleadError as failure:
            _log.warning("next timer not found", error=str(failure))
            self._check_soon(BUSY_S_MAX)
            return
        except Exception:  # noqa: BLE001 - a server that no longer skips time would look as if it hung
            _log.exception("next timer not found")
            self._check_soon(BUSY_S_MAX)
            return
        finally:
            self._skipping = None
        if changes != self._changes or self._wait_s() != 0.0:
            self._check_soon()
            return
        if due_ns is None:
            return
        self._clock.jump_to(due_ns)
        for shard in self._shards() or ():
            shard.queues.timer.wake()
        self._wake_sleepers()
        self._check_soon()

    async def _next_ns(self) -> int | None:
        """The time of the first timer that still has an effect or of the first sleeper; None without both."""
        times = [sleeper.until_ns for sleeper in self._sleepers]
        for shard in self._shards() or ():
            queue = shard.queues.timer
            while (found := await queue.next_timer()) is not None:
                key, row = found
                if await is_pending(shard, row):
                    times.append(key.fire_at_ns)
                    break
                queue.drop_timer(key)
        return min((time_ns for time_ns in times if time_ns <= TIME_NS_MAX), default=None)


@dataclass(slots=True, eq=False)
class _Sleeper:
    """A sleeping call. `on_wake` runs when it wakes."""

    until_ns: int
    woken: "asyncio.Future[None]"
    on_wake: Callable[[], None]


def _check_time(time_ns: int) -> None:
    if time_ns > TIME_NS_MAX:
        raise TooLate("time is not skipped beyond the year 2200: sleep for a shorter time")
