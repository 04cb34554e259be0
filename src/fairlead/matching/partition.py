"""One partition of a task list at its owner: takes tasks in, gives them to polls, and keeps what has to wait.

A task that comes is given to a waiting poll at once, or stored. It is answered when it has been started, or is
durable, and not before. A poll waits until a task comes or its time is over; a task that was given to a poll which has
gone meanwhile is given back.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from fairlead.core.errors import FixRequest
from fairlead.core.fairness import WeightOverrides, check_key, check_weight
from fairlead.core.scaling import RateWindow
from fairlead.matching.backlog import BacklogLimits, Clock, NewTask, PartitionBacklog
from fairlead.matching.matcher import HeldTask, Match, Matcher, Place, Poll
from fairlead.matching.rates import KeyRates, Rate
from fairlead.storage.contract import QueueId, TaskStore

PRIORITY_MIN, PRIORITY_MAX, PRIORITY_DEFAULT = 1, 5, 3
POLLERS_MAX = 1000
POLLER_HISTORY_S = 300.0
RATE_BUCKET_S = 5.0
RATE_BUCKETS = 6


class InvalidTask(FixRequest):
    """A task can't be taken as it is; the message begins with the field's name."""


class InvalidPoll(FixRequest):
    """A poll can't be served as it is."""


class Started(Enum):
    """What became of a task that was to be started."""

    STARTED = "started"
    GONE = "gone"  # Started before, or no longer wanted: nobody needs it any more.
    REFUSED = "refused"  # Not now; it must be given to another poll.


Starter = Callable[[bytes, str], Awaitable[Started]]


@dataclass(slots=True, eq=False)
class _WaitingPoll(Poll):
    given: "asyncio.Future[_Given]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(slots=True, eq=False)
class _Given:
    """A task on its way to a poll: of the backlog, or just come, and then somebody waits to hear of it."""

    payload: bytes
    fairness_key: str
    weight: float
    held: HeldTask[bytes] | None
    told: "asyncio.Future[Started] | None"


@dataclass(frozen=True, slots=True)
class PartitionView:
    """What a partition says of itself."""

    adds_per_s: float
    dispatches_per_s: float
    tasks_loaded: int
    polls_waiting: int
    pollers: dict[str, float]


class Partition:
    """Owns one partition. All decisions about order and limits are the matcher's, about storage the backlog's."""

    def __init__(
        self,
        store: TaskStore,
        queue: QueueId,
        *,
        clock: Clock,
        start: Starter,
        overrides: WeightOverrides | None = None,
        rate_per_s: float = math.inf,
        key_rate_per_s: float = math.inf,
        limits: BacklogLimits | None = None,
    ) -> None:
        self._clock = clock
        self._start = start
        self._overrides = overrides or WeightOverrides()
        self._matcher = Matcher[bytes](rate=Rate(rate_per_s), key_rates=KeyRates(key_rate_per_s))
        self.backlog = PartitionBacklog(
            store,
            queue,
            clock=clock,
            overrides=self._overrides,
            on_loaded=self._hold,
            on_evicted=self._let_go,
            parked=lambda: self._matcher.parked,
            limits=limits,
        )
        self._wake: asyncio.TimerHandle | None = None
        self._adds = RateWindow(bucket_s=RATE_BUCKET_S, buckets=RATE_BUCKETS, started_s=clock())
        self._dispatches = RateWindow(bucket_s=RATE_BUCKET_S, buckets=RATE_BUCKETS, started_s=clock())
        self._pollers: OrderedDict[str, float] = OrderedDict()
        self._polls: set[_WaitingPoll] = set()

    async def open(self) -> None:
        """Take the lease and begin to load."""
        await self.backlog.open()

    async def add(self, task: NewTask) -> bool:
        """Take a task: True if a poll has started it, False if it is durable and waits for one."""
        _check(task)
        self._adds.add(1, self._clock())
        weight = self._weight(task.fairness_key, task.weight)
        while (poll := self._matcher.offer(task.fairness_key, weight, self._clock())) is not None:
            assert isinstance(poll, _WaitingPoll)  # noqa: S101 - all polls here are ours
            told: asyncio.Future[Started] = asyncio.get_running_loop().create_future()
            poll.given.set_result(_Given(task.payload, task.fairness_key, weight, None, told))
            if await told is not Started.REFUSED:
                return True
        await self.backlog.append(task)
        return False

    async def poll(self, identity: str, *, timeout_s: float) -> bytes | None:
        """Wait for a task; None if none came in time. A task that is returned has been started for this poll."""
        if not timeout_s > 0:
            raise InvalidPoll(f"poll of {identity!r} has {timeout_s} s left: its deadline is over")
        self._note_poller(identity)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            given = await self._wait_for_task(identity, deadline_s)
            if given is None:
                return None
            if await self._start_given(given, identity):
                return given.payload

    def view(self) -> PartitionView:
        """How the partition is doing."""
        now_s = self._clock()
        return PartitionView(
            adds_per_s=self._adds.rate(now_s),
            dispatches_per_s=self._dispatches.rate(now_s),
            tasks_loaded=self._matcher.tasks,
            polls_waiting=self._matcher.polls,
            pollers={one: seen_s for one, seen_s in self._pollers.items() if now_s - seen_s <= POLLER_HISTORY_S},
        )

    def change_rates(self, *, rate_per_s: float, key_rate_per_s: float) -> None:
        """Dispatch within other limits from now on."""
        self._match(
            self._matcher.change_rates(rate_per_s=rate_per_s, key_rate_per_s=key_rate_per_s, now_s=self._clock())
        )

    async def close(self) -> None:
        """Answer the polls that wait, store what was taken, and stop."""
        for poll in self._polls:
            self._matcher.cancel(poll)
            # Nothing happens to those that have been given a task.
            poll.given.cancel()
        if self._wake is not None:
            self._wake.cancel()
        await self.backlog.close()

    async def _wait_for_task(self, identity: str, deadline_s: float) -> _Given | None:
        poll = _WaitingPoll(identity)
        self._polls.add(poll)
        self._match(self._matcher.wait(poll, self._clock()))
        try:
            # Unlike a plain await, this leaves the future as it is when the time is over or the caller has gone: it
            # may have been given a task in that very moment.
            await asyncio.wait([poll.given], timeout=max(0.0, deadline_s - asyncio.get_running_loop().time()))
        except asyncio.CancelledError:
            given = self._withdraw(poll)
            if given is not None:
                self._give_back(given)
            raise
        return self._withdraw(poll)

    def _withdraw(self, poll: _WaitingPoll) -> _Given | None:
        """Let a poll wait no longer; what it has been given, if it was."""
        self._polls.discard(poll)
        self._matcher.cancel(poll)
        return poll.given.result() if poll.given.done() and not poll.given.cancelled() else None

    async def _start_given(self, given: _Given, identity: str) -> bool:
        """Start a task for a poll; False if it was not to be, and the poll waits on."""
        try:
            outcome = await self._start(given.payload, identity)
        except BaseException:
            self._give_back(given)
            raise
        if outcome is Started.REFUSED:
            self._give_back(given)
            return False
        if given.held is not None:
            self.backlog.ack(given.held.place)
        if given.told is not None:
            given.told.set_result(outcome)
        if outcome is Started.GONE:
            self._matcher.refund(given.fairness_key, given.weight)
            return False
        self._dispatches.add(1, self._clock())
        return True

    def _give_back(self, given: _Given) -> None:
        """A task was not started: it waits for another poll, or whoever brought it keeps it."""
        self._matcher.refund(given.fairness_key, given.weight)
        if given.told is not None and not given.told.done():
            given.told.set_result(Started.REFUSED)
        if given.held is not None:
            self._hold([given.held])

    def _hold(self, tasks: Sequence[HeldTask[bytes]]) -> None:
        now_s = self._clock()
        self._match([match for task in tasks for match in self._matcher.hold(task, now_s)])

    def _let_go(self, places: Sequence[Place]) -> None:
        for place in places:
            self._matcher.remove(place)

    def _match(self, matches: Sequence[Match[bytes]]) -> None:
        for match in matches:
            task, poll = match.task, match.poll
            assert isinstance(poll, _WaitingPoll)  # noqa: S101 - all polls here are ours
            poll.given.set_result(_Given(task.payload, task.fairness_key, task.weight, task, None))
        self._set_wake()

    def _set_wake(self) -> None:
        """Come back when a limit lets the next task go."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        now_s = self._clock()
        wake_s = self._matcher.next_wake_s(now_s)
        if wake_s is not None:
            loop = asyncio.get_running_loop()
            self._wake = loop.call_later(wake_s - now_s, lambda: self._match(self._matcher.wake(self._clock())))

    def _weight(self, key: str, weight: float) -> float:
        return self._overrides.get(key) or check_weight(weight)

    def _note_poller(self, identity: str) -> None:
        self._pollers[identity] = self._clock()
        self._pollers.move_to_end(identity)
        if len(self._pollers) > POLLERS_MAX:
            self._pollers.popitem(last=False)


def _check(task: NewTask) -> None:
    if not PRIORITY_MIN <= task.priority <= PRIORITY_MAX:
        raise InvalidTask(f"priority is {task.priority}: give {PRIORITY_MIN} (first) to {PRIORITY_MAX} (last)")
    check_key(task.fairness_key)
    check_weight(task.weight)
