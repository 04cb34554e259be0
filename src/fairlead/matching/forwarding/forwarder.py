"""Limits on forwarding: from a partition to its parent (TQ-6), and from the root down to its children (FL-9)."""

import heapq
from dataclasses import dataclass

from fairlead.core.rates import Rate
from fairlead.core.scaling import RateWindow
from fairlead.matching.clock import Clock
from fairlead.matching.messages import BacklogReport
from fairlead.matching.partition.priority_rates import RATE_BUCKET_S, RATE_BUCKETS
from fairlead.settings import DynamicSettings, Scope
from fairlead.settings.dynamic import matching

# Seconds for which a child's backlog report is valid, unless the child reports again.
REPORT_HOLDS_S = 5.0


class Forwarder:
    """Limits the number of tasks and polls that wait at the parent, and the rate of forwarded tasks.

    The limits are read from the settings each time, so a change takes effect at once; tasks and polls already at the
    parent are not called back. After a failure, nothing is forwarded during a pause.
    """

    __slots__ = (
        "_clock",
        "_paused_until_s",
        "_polls",
        "_rate",
        "_rate_per_s",
        "_scope",
        "_settings",
        "_tasks",
        "polls_out",
        "tasks_out",
    )

    def __init__(self, settings: DynamicSettings, scope: Scope, *, clock: Clock) -> None:
        self._settings = settings
        self._scope = scope
        self._clock = clock
        self._rate_per_s = settings.get(matching.FORWARDER_MAX_RATE_PER_SECOND, scope)
        self._rate = Rate(self._rate_per_s)
        self._paused_until_s = 0.0
        self.tasks_out = 0
        self.polls_out = 0
        # Made at the first one.
        self._tasks: RateWindow | None = None
        self._polls: RateWindow | None = None

    @property
    def has_poll_token(self) -> bool:
        """Whether a poll may be forwarded now."""
        return (
            self.polls_out < self._settings.get(matching.FORWARDER_MAX_OUTSTANDING_POLLS, self._scope)
            and self._clock() >= self._paused_until_s
        )

    @property
    def pause_left_s(self) -> float:
        """Seconds until the pause ends; 0 if there is none."""
        return max(0.0, self._paused_until_s - self._clock())

    def take_poll_token(self) -> bool:
        """Take a token to forward a poll; False if there is none. `end_poll` returns the token."""
        if not self.has_poll_token:
            return False
        self.polls_out += 1
        return True

    def end_poll(self) -> None:
        """Return the token of a poll whose forwarding has ended, with or without a task."""
        self.polls_out -= 1

    def take_task_token(self) -> bool:
        """Take a token to forward a task; False if there is none. `end_task` returns the token."""
        now_s = self._clock()
        rate_per_s = self._settings.get(matching.FORWARDER_MAX_RATE_PER_SECOND, self._scope)
        if rate_per_s != self._rate_per_s:
            self._rate_per_s = rate_per_s
            self._rate.change(rate_per_s)
        if (
            self.tasks_out >= self._settings.get(matching.FORWARDER_MAX_OUTSTANDING_TASKS, self._scope)
            or now_s < self._paused_until_s
            or self._rate.ready_s(now_s) > now_s
        ):
            return False
        self._rate.take(now_s)
        self.tasks_out += 1
        return True

    def end_task(self, *, was_sent: bool = True) -> None:
        """Return the token of a task; the rate limit counts the task only if it was sent."""
        self.tasks_out -= 1
        if not was_sent:
            self._rate.give_back()

    def note_task(self) -> None:
        """Count a task that is offered to the parent."""
        self._tasks = self._counted(self._tasks)

    def note_poll(self) -> None:
        """Count a poll that is offered to the parent."""
        self._polls = self._counted(self._polls)

    def rates_per_s(self) -> tuple[float, float]:
        """Tasks and polls a second that were offered to the parent lately."""
        now_s = self._clock()
        tasks, polls = (0.0 if window is None else window.rate(now_s) for window in (self._tasks, self._polls))
        return tasks, polls

    def _counted(self, window: RateWindow | None) -> RateWindow:
        now_s = self._clock()
        if window is None:
            window = RateWindow(bucket_s=RATE_BUCKET_S, buckets=RATE_BUCKETS, started_s=now_s)
        window.add(1, now_s)
        return window

    def pause(self, seconds: float) -> None:
        """Forward nothing for some seconds: the parent was unreachable or is busy."""
        self._paused_until_s = self._clock() + seconds


@dataclass(slots=True)
class _Child:
    oldest_s: float
    tasks: int
    noted_s: float
    polls_out: int = 0


class ChildBacklogs:
    """The root's view of partitions that have a backlog and no polls, and the polls that it has sent down to them."""

    __slots__ = ("_by_age", "_children", "_clock", "polls_out")

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._children: dict[int, _Child] = {}
        # A heap of (time at which the oldest task was added, partition). Outdated entries are dropped when they reach
        # the top.
        self._by_age: list[tuple[float, int]] = []
        self.polls_out = 0

    def note(self, report: BacklogReport) -> None:
        """Record a partition's backlog report."""
        child = self._children.get(report.partition)
        now_s = self._clock()
        if child is None:
            if not report.tasks:
                return
            child = self._children[report.partition] = _Child(now_s - report.age_s, report.tasks, now_s)
        else:
            child.oldest_s, child.tasks, child.noted_s = now_s - report.age_s, report.tasks, now_s
        self._enter(report.partition, child)
        self._leave(report.partition, child)

    def forget(self, number: int) -> None:
        """Forget the backlog of a partition that had no task for a poll, or was unreachable."""
        child = self._children.get(number)
        if child is not None:
            child.tasks = 0
            self._leave(number, child)

    @property
    def has_any(self) -> bool:
        """Whether some partition has more tasks than polls that were sent to it."""
        return self._first() is not None

    def take(self) -> int | None:
        """Choose the partition to send a poll to, and count the poll; call `end` when the poll has returned."""
        number = self._first()
        if number is None:
            return None
        child = self._children[number]
        child.polls_out += 1
        self.polls_out += 1
        return number

    def end(self, number: int) -> None:
        """Record that a poll has returned from a partition."""
        self.polls_out -= 1
        child = self._children[number]
        child.polls_out -= 1
        self._enter(number, child)
        self._leave(number, child)

    def _first(self) -> int | None:
        now_s = self._clock()
        while self._by_age:
            oldest_s, number = self._by_age[0]
            child = self._children.get(number)
            if child is not None and now_s - child.noted_s > REPORT_HOLDS_S:
                child.tasks = 0
                self._leave(number, child)
            if child is not None and child.oldest_s == oldest_s and child.tasks > child.polls_out:
                return number
            heapq.heappop(self._by_age)
        return None

    def _enter(self, number: int, child: _Child) -> None:
        if child.tasks <= child.polls_out:
            return
        heapq.heappush(self._by_age, (child.oldest_s, number))
        if len(self._by_age) > 64 and len(self._by_age) > 4 * len(self._children):
            self._by_age = [(one.oldest_s, known) for known, one in self._children.items() if one.tasks > one.polls_out]
            heapq.heapify(self._by_age)

    def _leave(self, number: int, child: _Child) -> None:
        if not child.tasks and not child.polls_out:
            del self._children[number]
