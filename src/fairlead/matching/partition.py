"""One partition of a task list at its owner, by itself: gives tasks to polls, and keeps what has to wait.

What has just come is offered to the polls that wait; what nobody takes is kept, durably. A poll waits until a task
comes or its time is over; a task that was given to a poll which has gone meanwhile is given back. How partitions help
each other out is the business of `node`.
"""

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

from fairlead.cluster.calls import Exhausted
from fairlead.core.errors import FairleadError, FixRequest
from fairlead.core.fairness import WeightOverrides, check_key, check_weight
from fairlead.journal import PartitionJournal
from fairlead.matching.backlog import BacklogLimits, Clock, PartitionBacklog, WaitingKey
from fairlead.matching.deadlines import Deadlines
from fairlead.matching.dispatch_counts import DispatchCounts
from fairlead.matching.matcher import HeldTask, Match, Matcher, Place, Poll
from fairlead.matching.messages import KeyInfo, NewTask, PollerInfo
from fairlead.matching.priority_rates import PriorityRates
from fairlead.matching.rates import KeyRates, Rate
from fairlead.matching.starting import NotStarted, Starter
from fairlead.storage.contract import Lease, QueueId, TaskStore
from fairlead.telemetry import PartitionMetrics

PRIORITY_MIN, PRIORITY_MAX, PRIORITY_DEFAULT = 1, 5, 3
POLLERS_MAX = 1000
POLLER_HISTORY_S = 300.0
# A task that was not to be started now is tried again after this time.
REFUSED_PAUSE_S = 0.2
# Tasks that may wait for a poll without being kept, ahead of the backlog: each has a caller that waits for it.
URGENT_TASKS_MAX = 10_000
# Tasks whose owners are asked at once whether they belong here.
REVIEWED_AT_ONCE = 20
# While more is being loaded, a review looks again so often, after such a pause.
REVIEW_PAUSES_MAX = 20
REVIEW_PAUSE_S = 0.05
# Of the average wait of a task, how much the latest one counts.
_WAIT_SMOOTHING = 0.05


class InvalidTask(FixRequest):
    """A task can't be taken as it is; the message begins with the field's name."""


class InvalidPoll(FixRequest):
    """A poll can't be served as it is."""


class TooManyUrgent(Exhausted):
    """More tasks wait for a poll without being kept than the partition takes: nothing was done."""


@dataclass(slots=True, eq=False)
class Given:
    """A task on its way to a poll: of the backlog, or just come, and then somebody waits to hear of it."""

    payload: bytes
    priority: int
    fairness_key: str
    weight: float
    created_s: float
    held: HeldTask[bytes] | None
    told: "asyncio.Future[bytes | NotStarted | None] | None" = None
    # Counted against this partition's limits: not where another has counted it.
    is_charged: bool = True
    # It was stored, here or at the partition that offers it.
    is_backlog: bool = False
    # It goes ahead of the backlog, and counts against no limits.
    is_urgent: bool = False


def _new_future() -> "asyncio.Future[Given | Redirect | None]":
    return asyncio.get_running_loop().create_future()


class Redirect:
    """A poll is to look for a task elsewhere: see `idle_polls`. Whoever gets one releases it when it has looked."""

    __slots__ = ()

    def release(self) -> None:
        """The place that was kept for the poll is free again."""


@dataclass(slots=True, eq=False)
class WaitingPoll(Poll):
    """A poll, and what becomes of it: a task, another place to look, or nothing in time."""

    poll_id: str = ""
    since_s: float = 0.0
    may_redirect: bool = False
    tick: int = 0
    given: "asyncio.Future[Given | Redirect | None]" = field(default_factory=_new_future)


@dataclass(slots=True, eq=False)
class _Hovering:
    """A task that is offered for a while without being kept."""

    given: Given
    # None: no poll came in time.
    told: "asyncio.Future[bytes | NotStarted | None]"
    is_given: bool = False


class Partition:
    """Owns one partition. All decisions about order and limits are the matcher's, about storage the backlog's."""

    def __init__(
        self,
        store: TaskStore,
        queue: QueueId,
        *,
        clock: Clock,
        start: Starter,
        counts: PartitionMetrics,
        overrides: WeightOverrides | None = None,
        rate_per_s: float = math.inf,
        key_rate_per_s: float = math.inf,
        limits: BacklogLimits | None = None,
        on_unserved: Callable[[], None] = lambda: None,
        journal: PartitionJournal | None = None,
    ) -> None:
        self._clock = clock
        self._journal = journal
        self._start = start
        self._counts = counts
        self._overrides = overrides or WeightOverrides()
        self._on_unserved = on_unserved
        self._matcher = Matcher[bytes](rate=Rate(rate_per_s), key_rates=KeyRates(key_rate_per_s))
        self.backlog = PartitionBacklog(
            store,
            queue,
            clock=clock,
            counts=counts,
            overrides=self._overrides,
            on_loaded=self._hold,
            on_evicted=self._let_go,
            parked=lambda: self._matcher.parked,
            limits=limits,
        )
        self._wake: asyncio.TimerHandle | None = None
        self._deadlines = Deadlines[WaitingPoll](self._end_wait)
        self._hovering: OrderedDict[_Hovering, None] = OrderedDict()
        self._urgent: OrderedDict[_Hovering, None] = OrderedDict()
        # Tasks that were refused at their start, until they are tried again.
        self._aside: dict[Place, asyncio.TimerHandle] = {}
        self.dispatches = PriorityRates(started_s=clock())
        self._dispatched_keys = DispatchCounts()
        self._pollers: OrderedDict[str, tuple[float, float | None, bytes]] = OrderedDict()
        self._polled_s = -math.inf
        # In the order in which they came, so that a simulation repeats itself.
        self._polls: dict[WaitingPoll, None] = {}
        self._is_closing = False
        self.rate_per_s = rate_per_s
        self.wait_s = 0.0

    async def open(self) -> Lease:
        """Take the lease and begin to load."""
        return await self.backlog.open()

    @property
    def polls_waiting(self) -> int:
        """How many polls wait for a task here."""
        return self._matcher.polls

    @property
    def tasks_loaded(self) -> int:
        """How many tasks of the backlog are in memory and wait for a poll."""
        return self._matcher.tasks

    @property
    def dispatches_per_s(self) -> float:
        """How many tasks a second have been started here of late."""
        return self.dispatches.rate(self._clock())

    def oldest_s(self) -> float:
        """When the oldest task that is loaded was added, by the wall clock; now, if there is none."""
        return min((task.created_s for task in self._matcher.held()), default=self._clock())

    def oldest_by_priority(self) -> dict[int, float]:
        """Likewise, of each priority that has any."""
        oldest: dict[int, float] = {}
        for task in self._matcher.held():
            priority = task.place.priority
            oldest[priority] = min(oldest.get(priority, math.inf), task.created_s)
        return oldest

    def pollers(self) -> list[PollerInfo]:
        """Who has polled of late, and when last."""
        now_s = self._clock()
        return [
            PollerInfo(identity, seen_s, rate_per_s, worker)
            for identity, (seen_s, rate_per_s, worker) in self._pollers.items()
            if now_s - seen_s <= POLLER_HISTORY_S
        ]

    @property
    def has_pollers(self) -> bool:
        """Whether anybody has polled of late."""
        return self._clock() - self._polled_s <= POLLER_HISTORY_S

    def waiting_polls(self) -> Iterator[WaitingPoll]:
        """The polls that wait here, the first to come first; none may come or go meanwhile."""
        return (poll for poll in self._matcher.waiting() if isinstance(poll, WaitingPoll))

    def keys(self, keys_max: int) -> list[KeyInfo]:
        """The fairness keys with most tasks waiting, then those with most dispatched, at most so many."""
        waiting, is_loaded = self.backlog.waiting_keys(), self.backlog.is_loaded
        loaded = Counter(task.fairness_key for task in self._matcher.held())
        dispatched = self._dispatched_keys

        def info(key: str) -> KeyInfo:
            known = waiting.get(key) or WaitingKey(0, 0.0, dispatched.weight(key))
            # Where all is loaded it is known how many there are; else it follows from how far they reach.
            tasks = loaded[key] if is_loaded else max(loaded[key], known.tasks)
            return KeyInfo(
                fairness_key=key,
                weight=known.weight,
                tasks_loaded=loaded[key],
                tasks_dispatched=dispatched.count(key),
                lead=known.lead if tasks else 0.0,
                tasks_waiting=tasks,
            )

        keys = waiting.keys() | loaded.keys() | dispatched.keys()
        return nsmallest(
            keys_max, map(info, keys), key=lambda one: (-one.tasks_waiting, -one.tasks_dispatched, one.fairness_key)
        )

    async def add(self, task: NewTask) -> bool:
        """Take a task: True if a poll has started it, False if it is durable and waits for one."""
        check_task(task)
        if await self.offer(task):
            return True
        await self.keep(task)
        return False

    async def offer(
        self, task: NewTask, *, wait_s: float = 0.0, is_limited: bool = True, is_backlog: bool = False
    ) -> bool:
        """Give a task to a poll that waits, or comes within `wait_s`: True if it has been started, or is gone.

        One that is not limited has been counted against the limits of the partition that it comes from.
        """
        if not self._matcher.polls and wait_s <= 0:
            return False
        weight = self.weight_of(task.fairness_key, task.weight)
        loop = asyncio.get_running_loop()
        told: asyncio.Future[bytes | NotStarted | None] = loop.create_future()
        given = Given(
            task.payload, task.priority, task.fairness_key, weight, task.created_s, None, told, is_limited, is_backlog
        )
        poll = self._find_poll(given)
        if poll is not None:
            poll.given.set_result(given)
            outcome = await told
        elif wait_s > 0:
            outcome = await self._hover(given, told, self._hovering, loop.time() + wait_s)
        else:
            return False
        # One that was refused may be started in a while, by another poll: it is kept meanwhile.
        return outcome is not None and outcome is not NotStarted.REFUSED

    async def offer_urgently(self, task: NewTask, *, wait_s: float) -> bool:
        """Give a task to a poll that waits, or to the next that comes within `wait_s`, ahead of all that waits here.

        True if it has been started, or is gone; it is never kept. One that was refused is tried again while it lasts.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while (outcome := await self._offer_urgently(task, until_s)) is NotStarted.REFUSED:
            if loop.time() + REFUSED_PAUSE_S >= until_s:
                return False
            await asyncio.sleep(REFUSED_PAUSE_S)
        return outcome is not None

    async def _offer_urgently(self, task: NewTask, until_s: float) -> bytes | NotStarted | None:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[bytes | NotStarted | None] = loop.create_future()
        given = Given(
            *(task.payload, task.priority, task.fairness_key, task.weight, task.created_s, None, told),
            is_charged=False,
            is_urgent=True,
        )
        while (poll := self._matcher.take_poll()) is not None:
            assert isinstance(poll, WaitingPoll)  # noqa: S101 - all polls here are ours
            # Of one whose caller has gone, nobody has been told yet.
            if not poll.given.done():
                poll.given.set_result(given)
                return await told
        if until_s <= loop.time():
            return None
        if len(self._urgent) >= URGENT_TASKS_MAX:
            raise TooManyUrgent(f"{len(self._urgent)} tasks that are not kept wait for a poll: retry in a while")
        return await self._hover(given, told, self._urgent, until_s)

    async def keep(self, task: NewTask) -> None:
        """Store a task until a poll takes it: it is durable when this returns."""
        await self.backlog.append(task)

    async def poll(self, identity: str, *, timeout_s: float) -> bytes | None:
        """Wait for a task; None if none came in time. A task that is returned has been started for this poll."""
        if not timeout_s > 0:
            raise InvalidPoll(f"poll of {identity!r} has {timeout_s} s left: its deadline is over")
        self.note_poller(identity)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            given = await self.wait(WaitingPoll(identity), deadline_s)
            if not isinstance(given, Given):
                return None
            answer = await self.start(given, identity, b"")
            if answer is not None:
                return answer

    async def wait(self, poll: WaitingPoll, deadline_s: float) -> Given | Redirect | None:
        """Let a poll wait for a task until its deadline, by the time of the event loop.

        Whoever gets a task from this must `start` it, or `give_back`; a redirect is released.
        """
        if self._is_closing:
            return None
        if self._urgent and (urgent := self._take_urgent()) is not None:
            return urgent
        given = poll.given
        self._match(self._matcher.wait(poll, self._clock()))
        if self._hovering and not given.done():
            self._serve_hovering()
        if given.done():
            return given.result()
        self._polls[poll] = None
        poll.since_s = asyncio.get_running_loop().time()
        poll.tick = self._deadlines.add(poll, deadline_s)
        try:
            return await given
        except asyncio.CancelledError:
            # The future is cancelled with its waiter, unless the poll had been given something in that very moment.
            self._matcher.cancel(poll)
            if given.done() and not given.cancelled():
                got = given.result()
                if isinstance(got, Given):
                    self.give_back(got)
                elif got is not None:
                    got.release()
            raise
        finally:
            self._deadlines.remove(poll, poll.tick)
            self._polls.pop(poll, None)

    def withdraw(self, poll: WaitingPoll, instead: Redirect | None = None) -> bool:
        """Let a poll wait no longer, with this outcome; False if it has got something, or has gone, before."""
        self._matcher.cancel(poll)
        if poll.given.done():
            return False
        poll.given.set_result(instead)
        return True

    async def start(self, given: Given, identity: str, worker: bytes) -> bytes | None:
        """Start a task for a poll; None if it was not to be, and the poll may wait on."""
        if given.is_urgent and given.told is not None and given.told.done():
            # Whoever offered it has gone in the meantime.
            return None
        try:
            answer = await self._start(given.payload, identity, worker)
        except asyncio.CancelledError:
            self.give_back(given)
            raise
        except BaseException:
            # Whoever starts tasks is away: the next poll would fare no better.
            self._put_aside(given)
            raise
        if answer is NotStarted.REFUSED:
            self._put_aside(given)
            return None
        self.finish(given, answer)
        return answer if isinstance(answer, bytes) else None

    async def review(self, worker: bytes, until_s: float) -> bool:
        """Ask of every task that is loaded whether it is still to be done here; False if there was no time for all.

        Those that are gone make room for others, which are asked as well.
        """
        seen: set[Place] = set()
        pauses = REVIEW_PAUSES_MAX
        now_s = asyncio.get_running_loop().time
        while not self._is_closing:
            tasks = [task for task in self._matcher.held() if task.place not in seen][:REVIEWED_AT_ONCE]
            if not tasks:
                pauses -= 1
                if self.backlog.is_loaded or not pauses:
                    return True
                await asyncio.sleep(REVIEW_PAUSE_S)
                continue
            if now_s() >= until_s:
                return False
            for task in tasks:
                seen.add(task.place)
                self._matcher.remove(task.place)
            await asyncio.gather(*(self._review(task, worker) for task in tasks))
            pauses = REVIEW_PAUSES_MAX
        return False

    async def _review(self, task: HeldTask[bytes], worker: bytes) -> None:
        given = Given(
            *(task.payload, task.place.priority, task.fairness_key, task.weight, task.created_s, task), is_charged=False
        )
        try:
            answer = await self._start(task.payload, "", worker)
        except BaseException as failure:
            self.give_back(given)
            if not isinstance(failure, FairleadError):
                raise
            return
        if answer is NotStarted.GONE:
            self.finish(given, answer)
        else:
            self.give_back(given)

    def finish(self, given: Given, answer: bytes | NotStarted) -> None:
        """A task has been started, here or by whom it was offered to, or nobody needs it any more."""
        if given.held is not None:
            priority, level = given.held.place
            self.backlog.ack(given.held.place)
            if self._journal is not None:
                self._journal.acked(self._clock(), given.fairness_key, given.weight, priority, level.pass_number)
        if given.told is not None and not given.told.done():
            given.told.set_result(answer)
        if answer is NotStarted.GONE:
            self._counts.tasks_dropped += 1
            self._refund(given)
            return
        if not given.is_charged:
            # It is counted where it comes from.
            return
        now_s = self._clock()
        self.dispatches[given.priority].add(1, now_s)
        if given.created_s:
            self.wait_s += _WAIT_SMOOTHING * (max(0.0, now_s - given.created_s) - self.wait_s)
        self._dispatched_keys.add(given.fairness_key, given.weight)

    def weight_of(self, key: str, weight: float) -> float:
        """The weight that a task of a key counts by here, which came with `weight`."""
        # The weight itself was checked when the task came; 0 is for none.
        if self._overrides and (override := self._overrides.get(key)):
            return override
        return weight if weight >= 1.0 else check_weight(weight)

    def note_forwarded(self, given: Given) -> None:
        """A task is being offered to the parent."""
        if self._journal is not None:
            self._journal.forwarded(self._clock(), given.fairness_key, given.weight, given.priority)

    def give_back(self, given: Given) -> None:
        """A task was not started: it waits for another poll, or whoever brought it keeps it."""
        self._refund(given)
        if given.told is not None and not given.told.done():
            given.told.set_result(NotStarted.REFUSED)
        if given.held is not None:
            self._hold([given.held])

    def _put_aside(self, given: Given) -> None:
        """A task was not to be started now: it waits a moment before it is given to the next poll."""
        held, given.held = given.held, None
        self.give_back(given)
        if held is not None and not self._is_closing:
            # One that was evicted and loaded again on its way may be refused twice, and waits once.
            self._forget_aside(held.place)
            timer = asyncio.get_running_loop().call_later(REFUSED_PAUSE_S, self._take_up, held)
            self._aside[held.place] = timer

    def _take_up(self, held: HeldTask[bytes]) -> None:
        del self._aside[held.place]
        self._hold([held])

    def take_held(self) -> Given | None:
        """The first task of the backlog that may go now, if no poll waits: to be offered elsewhere."""
        task = self._matcher.take(self._clock())
        if task is None:
            return None
        return Given(task.payload, task.place.priority, task.fairness_key, task.weight, task.created_s, task)

    def admit(self, task: NewTask) -> Given | None:
        """A task that has just come, counted against the limits, to be offered elsewhere; None if it must wait."""
        weight = self.weight_of(task.fairness_key, task.weight)
        if not self._matcher.admit(task.fairness_key, weight, self._clock()):
            return None
        return Given(task.payload, task.priority, task.fairness_key, weight, task.created_s, None)

    def change_rates(self, *, rate_per_s: float, key_rate_per_s: float) -> None:
        """Dispatch within other limits from now on."""
        self.rate_per_s = rate_per_s
        self._match(
            self._matcher.change_rates(rate_per_s=rate_per_s, key_rate_per_s=key_rate_per_s, now_s=self._clock())
        )

    def override_weights(self, overrides: WeightOverrides) -> None:
        """Count with other weights from now on. A level that is stored stays; and a weight that is lifted still counts
        for the tasks that are loaded with it.
        """
        self._overrides = overrides
        self.backlog.override_weights(overrides)
        for task in self._matcher.held():
            task.weight = self.weight_of(task.fairness_key, task.weight)

    def note_poller(self, identity: str, rate_per_s: float | None = None, worker: bytes = b"") -> None:
        """Remember who polls."""
        self._polled_s = now_s = self._clock()
        self._pollers[identity] = (now_s, rate_per_s, worker)
        self._pollers.move_to_end(identity)
        if len(self._pollers) > POLLERS_MAX:
            self._pollers.popitem(last=False)

    def answer_polls(self) -> None:
        """Answer the polls that wait, and refuse what hovers."""
        for poll in list(self._polls):
            self.withdraw(poll)
        for waiting in (self._hovering, self._urgent):
            while waiting:
                hovering, _ = waiting.popitem(last=False)
                if not hovering.told.done():
                    hovering.told.set_result(None)

    def stop_waiting(self) -> None:
        """Likewise, and let nothing wait here any more."""
        self._is_closing = True
        self.answer_polls()

    async def close(self) -> None:
        """Answer the polls that wait, store what was taken, and stop."""
        self.stop_waiting()
        self._deadlines.close()
        for aside in self._aside.values():
            aside.cancel()
        self._aside.clear()
        if self._wake is not None:
            self._wake.cancel()
        await self.backlog.close()

    def _end_wait(self, poll: WaitingPoll) -> None:
        self.withdraw(poll)
        if self._matcher.tasks and not self._matcher.polls:
            # A limit held them back while it waited.
            self._on_unserved()

    def _find_poll(self, given: Given) -> WaitingPoll | None:
        key, weight = given.fairness_key, given.weight
        while (poll := self._matcher.offer(key, weight, self._clock(), is_limited=given.is_charged)) is not None:
            assert isinstance(poll, WaitingPoll)  # noqa: S101 - all polls here are ours
            if not poll.given.done():
                return poll
            # Its caller has gone, and it has not been told yet.
            self._refund(given)
        return None

    async def _hover(
        self,
        given: Given,
        told: "asyncio.Future[bytes | NotStarted | None]",
        waiting: OrderedDict[_Hovering, None],
        until_s: float,
    ) -> bytes | NotStarted | None:
        if self._is_closing:
            return None
        hovering = _Hovering(given, told)
        waiting[hovering] = None

        def end() -> None:
            if not hovering.is_given and not told.done():
                told.set_result(None)

        timer = asyncio.get_running_loop().call_at(until_s, end)
        try:
            return await told
        finally:
            timer.cancel()
            waiting.pop(hovering, None)

    def _take_urgent(self) -> Given | None:
        """The first task that goes ahead of all others, of those whose callers still wait."""
        while self._urgent:
            hovering, _ = self._urgent.popitem(last=False)
            if not hovering.told.done():
                hovering.is_given = True
                return hovering.given
        return None

    def _serve_hovering(self) -> None:
        for hovering in list(self._hovering):
            if hovering.told.done():
                continue
            poll = self._find_poll(hovering.given)
            if poll is None:
                return
            hovering.is_given = True
            del self._hovering[hovering]
            poll.given.set_result(hovering.given)

    def _refund(self, given: Given) -> None:
        if given.is_charged:
            self._matcher.refund(given.fairness_key, given.weight)

    def _hold(self, tasks: Sequence[HeldTask[bytes]]) -> None:
        now_s = self._clock()
        hold = self._matcher.hold
        for task in tasks:
            # As stored it is what the task came with: 0 for none, and no override.
            task.weight = self.weight_of(task.fairness_key, task.weight)
        self._match([match for task in tasks for match in hold(task, now_s)])
        if self._matcher.tasks and not self._matcher.polls:
            self._on_unserved()

    def _let_go(self, places: Sequence[Place]) -> None:
        for place in places:
            self._matcher.remove(place)
            self._forget_aside(place)

    def _forget_aside(self, place: Place) -> None:
        aside = self._aside.pop(place, None)
        if aside is not None:
            aside.cancel()

    def _match(self, matches: Sequence[Match[bytes]]) -> None:
        left = deque(matches)
        while left:
            match = left.popleft()
            task, poll = match.task, match.poll
            assert isinstance(poll, WaitingPoll)  # noqa: S101 - all polls here are ours
            if poll.given.done():
                # Its caller has gone, and it has not been told yet: the task goes to the next.
                self._matcher.refund(task.fairness_key, task.weight)
                left += self._matcher.hold(task, self._clock())
                continue
            poll.given.set_result(
                Given(
                    *(task.payload, task.place.priority, task.fairness_key, task.weight, task.created_s, task),
                    is_backlog=True,
                )
            )
        self._set_wake()

    def _set_wake(self) -> None:
        """Come back when a limit lets the next task go."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if not self._matcher.tasks or self._is_closing:
            return
        now_s = self._clock()
        wake_s = self._matcher.next_wake_s(now_s)
        if wake_s is not None:
            loop = asyncio.get_running_loop()
            self._wake = loop.call_later(wake_s - now_s, lambda: self._match(self._matcher.wake(self._clock())))


def check_task(task: NewTask) -> None:
    """Refuse a task that can't be taken as it is, before anything is done with it."""
    if not PRIORITY_MIN <= task.priority <= PRIORITY_MAX:
        raise InvalidTask(f"priority is {task.priority}: give {PRIORITY_MIN} (first) to {PRIORITY_MAX} (last)")
    check_key(task.fairness_key)
    check_weight(task.weight)
