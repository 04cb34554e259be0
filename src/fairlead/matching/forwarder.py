"""Within which limits a partition bothers its parent, and the root its children: the forwarder's keys of seed 000."""

import heapq
from dataclasses import dataclass

from fairlead.matching.backlog import Clock
from fairlead.matching.messages import BacklogReport
from fairlead.matching.rates import Rate
from fairlead.settings import DynamicSettings, Scope, matching

# A report of a child's backlog that was not repeated for this long is forgotten.
REPORT_HOLDS_S = 5.0


class Forwarder:
    """Counts what is on its way to the parent: so many tasks and polls at once, so many tasks a second.

    The limits are asked for each time, so that a change takes effect at once; what is under way already is not called
    back. After a failure the parent is left alone for a while.
    """

    def __init__(self, settings: DynamicSettings, scope: Scope, *, clock: Clock) -> None:
        self._settings = settings
        self._scope = scope
        self._clock = clock
        self._rate_per_s = settings.get(matching.FORWARDER_MAX_RATE_PER_SECOND, scope)
        self._rate = Rate(self._rate_per_s)
        self._paused_until_s = 0.0
        self.tasks_out = 0
        self.polls_out = 0

    @property
    def has_poll_token(self) -> bool:
        """Whether a poll may go up now."""
        return (
            self.polls_out < self._settings.get(matching.FORWARDER_MAX_OUTSTANDING_POLLS, self._scope)
            and self._clock() >= self._paused_until_s
        )

    @property
    def pause_left_s(self) -> float:
        """How long the parent is still to be left alone."""
        return max(0.0, self._paused_until_s - self._clock())

    def take_poll_token(self) -> bool:
        """Let a poll go up, if it may; `end_poll` when it is back."""
        if not self.has_poll_token:
            return False
        self.polls_out += 1
        return True

    def end_poll(self) -> None:
        """A poll has come back, however it did."""
        self.polls_out -= 1

    def take_task_token(self) -> bool:
        """Let a task go up, if it may; `end_task` when it was answered."""
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
        """A task was answered, or was not sent after all."""
        self.tasks_out -= 1
        if not was_sent:
            self._rate.give_back()

    def pause(self, seconds: float) -> None:
        """Leave the parent alone for a while: it could not be reached, or is busy."""
        self._paused_until_s = self._clock() + seconds


@dataclass(slots=True)
class _Child:
    oldest_s: float
    tasks: int
    noted_s: float
    polls_out: int = 0


class ChildBacklogs:
    """What the root knows of partitions that have a backlog and no polls, and the polls that it has sent to them."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._children: dict[int, _Child] = {}
        # By the time since which the oldest task waits. Entries that are no longer so are left out when they come up.
        self._by_age: list[tuple[float, int]] = []
        self.polls_out = 0

    def note(self, report: BacklogReport) -> None:
        """Take over what a partition says of its backlog."""
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
        """A partition has nothing for a poll, or can't be reached."""
        child = self._children.get(number)
        if child is not None:
            child.tasks = 0
            self._leave(number, child)

    @property
    def has_any(self) -> bool:
        """Whether some partition has more tasks than polls on the way to it."""
        return self._first() is not None

    def take(self) -> int | None:
        """The partition that a poll is sent to; `end` when it is back."""
        number = self._first()
        if number is None:
            return None
        child = self._children[number]
        child.polls_out += 1
        self.polls_out += 1
        return number

    def end(self, number: int) -> None:
        """A poll has come back from a partition."""
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
