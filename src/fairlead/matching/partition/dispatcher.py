"""Gives tasks to the polls of one partition; lets polls wait for tasks, and offered tasks for polls."""

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fairlead.aio.deadlines import Deadlines, Wakeable, new_wakes
from fairlead.core.concurrency import Full
from fairlead.core.rates import KeyRates, Rate
from fairlead.matching.clock import Clock
from fairlead.matching.messages import NewTask
from fairlead.matching.partition.matched_task import MatchedTask, OfferResult
from fairlead.matching.partition.matcher import HeldTask, Match, Matcher
from fairlead.matching.partition.task_weights import TaskWeights
from fairlead.matching.partition.waiting_poll import PollOutcome, Redirect, WaitingPoll
from fairlead.matching.task_starter import NotStarted
from fairlead.rpc.hosts.caller import Overloaded

# Seconds for which a task backs off after the starter refused it.
BACKOFF_S = 0.2
# Number of query tasks that wait for a poll; a caller waits for each of them.
QUERY_TASKS_MAX = 10_000


class TooManyQueryTasks(Overloaded):
    """`QUERY_TASKS_MAX` query tasks are waiting for a poll: the task was not accepted."""


@dataclass(slots=True, eq=False)
class _WaitingTask:
    """A task that waits for a sync match, and is not stored while it waits."""

    matched: MatchedTask
    offered: "asyncio.Future[OfferResult]"
    is_matched: bool = False


class Dispatcher:
    """Matches arriving tasks and polls. `Matcher` decides the order and applies the limits.

    `on_backlogged` is called when tasks of the backlog are loaded and no poll waits. `wakes` holds the polls'
    deadlines.

    Many methods, because tasks and polls can each arrive, wait, be matched, and return for several reasons.
    """

    __slots__ = (
        "_clock",
        "_on_backlogged",
        "_query_tasks",
        "_sync_match_tasks",
        "_wake",
        "_wakes",
        "_weights",
        "is_closing",
        "matcher",
        "rate_per_s",
    )

    def __init__(
        self,
        *,
        weights: TaskWeights,
        clock: Clock,
        rate_per_s: float = math.inf,
        key_rate_per_s: float = math.inf,
        on_backlogged: Callable[[], None] = lambda: None,
        wakes: Deadlines[Wakeable] | None = None,
    ) -> None:
        self._weights = weights
        self._clock = clock
        self._on_backlogged = on_backlogged
        # Not `Matcher[bytes](...)`, which would store the type argument in each object.
        self.matcher: Matcher[bytes] = Matcher(rate=Rate(rate_per_s), key_rates=KeyRates(key_rate_per_s))
        self.rate_per_s = rate_per_s
        self.is_closing = False
        self._wake: asyncio.TimerHandle | None = None
        self._wakes = new_wakes() if wakes is None else wakes
        # Created when the first task waits. In order of arrival, so that a simulation is repeatable.
        self._sync_match_tasks: OrderedDict[_WaitingTask, None] | None = None
        self._query_tasks: OrderedDict[_WaitingTask, None] | None = None

    # --- tasks

    async def offer(
        self, task: NewTask, *, wait_s: float = 0.0, is_limited: bool = True, is_backlog: bool = False
    ) -> OfferResult:
        """Give a task to a poll that waits or comes within `wait_s`; see `is_done` for the result.

        `is_limited` is False for a forwarded task, which was counted by the rate limits of the partition that stores
        it.
        """
        if not self.matcher.polls and wait_s <= 0:
            return None
        weight = self._weights.of(task.fairness_key, task.weight)
        loop = asyncio.get_running_loop()
        offered: asyncio.Future[OfferResult] = loop.create_future()
        matched = MatchedTask(
            *(task.payload, task.priority, task.fairness_key, weight, task.created_s, None, offered),
            is_charged=is_limited,
            is_backlog=is_backlog,
            owner=task.owner,
        )
        poll = self._find_poll(matched)
        if poll is not None:
            poll.outcome.set_result(matched)
            return await offered
        if wait_s > 0:
            if self._sync_match_tasks is None:
                self._sync_match_tasks = OrderedDict()
            return await self._wait_for_poll(matched, offered, self._sync_match_tasks, loop.time() + wait_s)
        return None

    def reserve(self, task: NewTask) -> "tuple[WaitingPoll, asyncio.Future[bytes | NotStarted]] | None":
        """Take a waiting poll for a task that will be written and started in one commit; None if no poll waits.

        The caller sets the future to the poll's response. If it sets REFUSED instead, the poll continues to wait.
        """
        if not self.matcher.polls or self.is_closing:
            return None
        starting: asyncio.Future[bytes | NotStarted] = asyncio.get_running_loop().create_future()
        weight = self._weights.of(task.fairness_key, task.weight)
        matched = MatchedTask(
            *(task.payload, task.priority, task.fairness_key, weight, task.created_s, None), starting=starting
        )
        poll = self._find_poll(matched)
        if poll is None:
            return None
        poll.outcome.set_result(matched)
        return poll, starting

    async def offer_query(self, task: NewTask, *, wait_s: float) -> bool:
        """Give a query task, before all other tasks, to a poll that waits or comes within `wait_s`.

        True if the task was started or is obsolete. The task is never stored. If the starter refuses it, it is offered
        again while time is left.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while (result := await self._offer_query_once(task, until_s)) is NotStarted.REFUSED:
            if loop.time() + BACKOFF_S >= until_s:
                return False
            await asyncio.sleep(BACKOFF_S)
        return result is not None

    async def _offer_query_once(self, task: NewTask, until_s: float) -> OfferResult:
        loop = asyncio.get_running_loop()
        offered: asyncio.Future[OfferResult] = loop.create_future()
        matched = MatchedTask(
            *(task.payload, task.priority, task.fairness_key, task.weight, task.created_s, None, offered),
            is_charged=False,
            is_query=True,
        )
        while (poll := self.matcher.take_poll()) is not None:
            assert isinstance(poll, WaitingPoll)  # noqa: S101 - all polls here are ours
            # Skip a poll whose caller was cancelled but which the matcher still holds.
            if not poll.outcome.done():
                poll.outcome.set_result(matched)
                return await offered
        if until_s <= loop.time():
            return None
        if self._query_tasks is None:
            self._query_tasks = OrderedDict()
        if len(self._query_tasks) >= QUERY_TASKS_MAX:
            raise TooManyQueryTasks(f"{len(self._query_tasks)} query tasks wait for a poll: retry in a while")
        return await self._wait_for_poll(matched, offered, self._query_tasks, until_s)

    def hold(self, tasks: Sequence[HeldTask[bytes]]) -> None:
        """Hold loaded tasks of the backlog until polls take them."""
        now_s = self._clock()
        hold = self.matcher.hold
        for task in tasks:
            # The stored weight is the one that the caller gave, without overrides; 0 means that it gave none.
            task.weight = self._weights.of(task.fairness_key, task.weight)
        self._match([match for task in tasks for match in hold(task, now_s)])
        if self.matcher.tasks and not self.matcher.polls:
            self._on_backlogged()

    def give_back(self, matched: MatchedTask) -> None:
        """Return a task that was not started: a backlogged task waits for another poll, an offered task is refused."""
        self.refund(matched)
        if matched.offered is not None and not matched.offered.done():
            matched.offered.set_result(NotStarted.REFUSED)
        if matched.held is not None:
            self.hold([matched.held])

    def park(self, matched: MatchedTask, full: Full) -> None:
        """Return a task that a limit on running activities has refused, and park its key or the task queue."""
        held, matched.held = matched.held, None
        if matched.is_charged:
            self.refund(matched)
            self.matcher.park(matched.fairness_key, full, self._clock())
        if matched.offered is not None and not matched.offered.done():
            matched.offered.set_result(NotStarted.KEY_FULL if full is Full.KEY else NotStarted.QUEUE_FULL)
        if held is not None:
            self.hold([held])

    def note_started(self, fairness_key: str) -> None:
        """Record that a task has started, in a partition with parked tasks."""
        self._match(self.matcher.note_started(fairness_key, self._clock()))

    def note_free_slot(self, fairness_key: str) -> None:
        """Record that an activity of a task queue with a limit on running activities has ended."""
        if self.matcher.is_parking and not self.is_closing:
            self._match(self.matcher.note_free_slot(fairness_key, self._clock()))

    def refund(self, matched: MatchedTask) -> None:
        """Give back what a task that was not started took from the rate limits."""
        if matched.is_charged:
            self.matcher.refund(matched.fairness_key, matched.weight)

    def take_held(self) -> MatchedTask | None:
        """Take the first backlogged task that may be dispatched now, for the parent; None while a poll waits."""
        task = self.matcher.take(self._clock())
        if task is None:
            return None
        return MatchedTask(task.payload, task.position.priority, task.fairness_key, task.weight, task.created_s, task)

    def admit(self, task: NewTask) -> MatchedTask | None:
        """Count a new task against the rate limits, to offer it to the parent; None if they don't allow it now."""
        weight = self._weights.of(task.fairness_key, task.weight)
        if not self.matcher.admit(task.fairness_key, weight, self._clock()):
            return None
        return MatchedTask(task.payload, task.priority, task.fairness_key, weight, task.created_s, None)

    def change_rates(self, *, rate_per_s: float, key_rate_per_s: float) -> None:
        """Change the rate limits."""
        self.rate_per_s = rate_per_s
        self._match(
            self.matcher.change_rates(rate_per_s=rate_per_s, key_rate_per_s=key_rate_per_s, now_s=self._clock())
        )

    # --- polls

    async def wait(self, poll: WaitingPoll, deadline_s: float) -> PollOutcome:
        """Let a poll wait for a task until its deadline, by the event loop's clock.

        The caller must start or give back a task that it gets, and must release a redirect.
        """
        if self.is_closing:
            return None
        if self._query_tasks and (query_task := self._take_query_task()) is not None:
            return query_task
        matches = self.matcher.wait(poll, self._clock())
        if len(matches) == 1 and matches[0].poll is poll:
            # No other poll waits, so no timer for a rate limit is needed.
            return _matched(matches[0].task)
        outcome = poll.outcome
        self._match(matches)
        if self._sync_match_tasks and not outcome.done():
            self._match_waiting_tasks(self._sync_match_tasks)
        if outcome.done():
            return outcome.result()
        poll.since_s = asyncio.get_running_loop().time()
        poll.owner = self
        poll.tick = self._wakes.add(poll, deadline_s)
        try:
            return await outcome
        except asyncio.CancelledError:
            # If its waiter is cancelled, so is the future, unless it got its result in the same turn of the event loop.
            self.matcher.cancel(poll)
            if outcome.done() and not outcome.cancelled():
                got = outcome.result()
                if isinstance(got, MatchedTask):
                    self.give_back(got)
                elif got is not None:
                    got.release()
            raise
        finally:
            self._wakes.remove(poll, poll.tick)

    def withdraw(self, poll: WaitingPoll, instead: Redirect | None = None) -> bool:
        """End a poll's wait with the outcome `instead`; False if the poll has an outcome already, or was cancelled."""
        self.matcher.cancel(poll)
        if poll.outcome.done():
            return False
        poll.outcome.set_result(instead)
        return True

    def waiting_polls(self) -> Iterator[WaitingPoll]:
        """Yield the waiting polls, oldest first; polls must not come or go during the iteration."""
        return (poll for poll in self.matcher.waiting() if isinstance(poll, WaitingPoll))

    def answer_polls(self) -> None:
        """End the wait of all polls, and of all tasks that wait for a sync match or are query tasks."""
        for poll in list(self.waiting_polls()):
            self.withdraw(poll)
        for waiting in (self._sync_match_tasks, self._query_tasks):
            while waiting:
                waiting_task, _ = waiting.popitem(last=False)
                if not waiting_task.offered.done():
                    waiting_task.offered.set_result(None)

    def stop_waiting(self) -> None:
        """End all waits; later polls and offers don't wait."""
        self.is_closing = True
        self.answer_polls()

    def close(self) -> None:
        """End all waits and cancel all timers."""
        self.stop_waiting()
        if self._wake is not None:
            self._wake.cancel()

    def end_wait(self, poll: WaitingPoll) -> None:
        """End the wait of a poll whose deadline has passed."""
        self.withdraw(poll)
        if self.matcher.tasks and not self.matcher.polls:
            # A rate limit held these tasks back while the poll waited.
            self._on_backlogged()

    def _find_poll(self, matched: MatchedTask) -> WaitingPoll | None:
        key, weight = matched.fairness_key, matched.weight
        while (poll := self.matcher.offer(key, weight, self._clock(), is_limited=matched.is_charged)) is not None:
            assert isinstance(poll, WaitingPoll)  # noqa: S101 - all polls here are ours
            if not poll.outcome.done():
                return poll
            # The poll's caller was cancelled after the poll was matched.
            self.refund(matched)
        return None

    async def _wait_for_poll(
        self,
        matched: MatchedTask,
        offered: "asyncio.Future[OfferResult]",
        waiting: OrderedDict[_WaitingTask, None],
        until_s: float,
    ) -> OfferResult:
        if self.is_closing:
            return None
        waiting_task = _WaitingTask(matched, offered)
        waiting[waiting_task] = None

        def end() -> None:
            if not waiting_task.is_matched and not offered.done():
                offered.set_result(None)

        timer = asyncio.get_running_loop().call_at(until_s, end)
        try:
            return await offered
        finally:
            timer.cancel()
            waiting.pop(waiting_task, None)

    def _take_query_task(self) -> MatchedTask | None:
        """Take the first query task whose caller still waits."""
        while self._query_tasks:
            waiting_task, _ = self._query_tasks.popitem(last=False)
            if not waiting_task.offered.done():
                waiting_task.is_matched = True
                return waiting_task.matched
        return None

    def _match_waiting_tasks(self, waiting: OrderedDict[_WaitingTask, None]) -> None:
        for waiting_task in list(waiting):
            if waiting_task.offered.done():
                continue
            poll = self._find_poll(waiting_task.matched)
            if poll is None:
                return
            waiting_task.is_matched = True
            del waiting[waiting_task]
            poll.outcome.set_result(waiting_task.matched)

    def _match(self, matches: Sequence[Match[bytes]]) -> None:
        left = deque(matches)
        while left:
            match = left.popleft()
            task, poll = match.task, match.poll
            assert isinstance(poll, WaitingPoll)  # noqa: S101 - all polls here are ours
            if poll.outcome.done():
                # The poll's caller was cancelled, and the matcher still held the poll: the task goes to the next poll.
                self.matcher.refund(task.fairness_key, task.weight)
                left += self.matcher.hold(task, self._clock())
                continue
            poll.outcome.set_result(_matched(task))
        self._set_wake()

    def _set_wake(self) -> None:
        """Set the timer for the time at which the rate limits allow the next task."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if not self.matcher.tasks or self.is_closing:
            return
        now_s = self._clock()
        wake_s = self.matcher.next_wake_s(now_s)
        if wake_s is not None:
            loop = asyncio.get_running_loop()
            self._wake = loop.call_later(wake_s - now_s, lambda: self._match(self.matcher.wake(self._clock())))


def _matched(task: HeldTask[bytes]) -> MatchedTask:
    return MatchedTask(
        *(task.payload, task.position.priority, task.fairness_key, task.weight, task.created_s, task), is_backlog=True
    )
