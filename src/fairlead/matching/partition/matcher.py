"""Decides which poll gets which task: tasks by priority, then by fair level; polls in order of arrival.

No method waits: the dispatcher calls one for each event and gets the resulting matches. Each call takes at most
logarithmic time in the number of held tasks.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from fairlead.core.concurrency import Full, ParkedKeys
from fairlead.core.fairness import Level
from fairlead.core.rates import KeyRates, Rate

Payload = TypeVar("Payload")

# Number of removed polls after which the dictionary of polls is rebuilt: finding the first poll must skip the places of
# removed ones.
_LEFT_MAX = 256
# Minimum size of a heap that is cleaned when more than half of its entries are outdated. In smaller heaps, outdated
# entries are dropped when they reach the top.
_STALE_MIN = 64


# Shared by all partitions in which no task was refused yet; never changed.
_NOTHING_PARKED = ParkedKeys()


class Position(NamedTuple):
    """Position of a task in a partition's order; the lowest goes first."""

    priority: int
    level: Level


@dataclass(slots=True, eq=False)
class HeldTask(Generic[Payload]):
    """A loaded task of the backlog."""

    position: Position
    fairness_key: str
    weight: float
    payload: Payload
    created_s: float = 0.0


@dataclass(slots=True, eq=False)
class Poll:
    """A poll that waits for a task."""

    identity: str = ""


@dataclass(frozen=True, slots=True)
class Match(Generic[Payload]):
    """A task that goes to a poll."""

    task: HeldTask[Payload]
    poll: Poll


class _Lane:
    """The tasks of one fairness key. They share its limits, so only the first of them competes with other lanes."""

    __slots__ = ("is_asleep", "positions", "shown")

    def __init__(self) -> None:
        self.positions: list[Position] = []
        # Position with which the lane competes; None while the lane sleeps until its limits allow its next task.
        self.shown: Position | None = None
        self.is_asleep = False


class Matcher(Generic[Payload]):
    """Holds tasks while no poll waits, and polls while no task can be dispatched.

    A poll waits only while no held task can be dispatched. So a new task that gets a waiting poll overtakes no held
    task that could have got it.

    Many methods, because tasks, polls, lanes and rate limits change together, with no await between: a class for the
    lanes alone would need all of them.
    """

    __slots__ = (
        "_heads",
        "_key_rates",
        "_lanes",
        "_left",
        "_parked",
        "_parked_keys",
        "_parked_queue",
        "_polls",
        "_rate",
        "_tasks",
        "_wakes",
        "is_parking",
    )

    def __init__(self, *, rate: Rate | None = None, key_rates: KeyRates | None = None) -> None:
        self._rate = rate or Rate(math.inf)
        self._key_rates = key_rates or KeyRates()
        self._tasks: dict[Position, HeldTask[Payload]] = {}
        # If keys have no limits, all tasks share one lane.
        self._lanes: dict[str, _Lane] = {}
        self._heads: list[tuple[Position, str]] = []
        # Created when the first lane sleeps.
        self._wakes: list[tuple[float, str]] | None = None
        self._parked = 0
        # In order of arrival. A plain dictionary: an ordered one takes twice the memory.
        self._polls: dict[Poll, None] = {}
        self._left = 0
        # Keys that have reached their limit on running activities, and the whole task queue (key "") if it has.
        self._parked_keys = self._parked_queue = _NOTHING_PARKED
        # Whether a limit on running activities has ever refused a task; until then, parking is skipped.
        self.is_parking = False

    @property
    def tasks(self) -> int:
        """Number of held tasks."""
        return len(self._tasks)

    @property
    def parked(self) -> int:
        """Number of held tasks that wait for a limit of their key; may include tasks that were removed."""
        return self._parked

    @property
    def polls(self) -> int:
        """Number of waiting polls."""
        return len(self._polls)

    def waiting(self) -> Iterable[Poll]:
        """Return the waiting polls, in order of arrival. Read only."""
        return self._polls

    def held(self) -> Iterable[HeldTask[Payload]]:
        """Return the held tasks, in no order. Read only."""
        return self._tasks.values()

    def offer(self, fairness_key: str, weight: float, now_s: float, *, is_limited: bool = True) -> Poll | None:
        """Return the poll for a new task; None if no poll may get it now. The task is not held then.

        A new task does not overtake a held task that waits only for the rate limit of the whole partition. Pass
        `is_limited=False` for a task that another partition has counted.
        """
        if not self._polls or (self._tasks and self._first(now_s) is not None):
            return None
        if is_limited and not self.admit(fairness_key, weight, now_s):
            return None
        return self._pop_poll()

    def admit(self, fairness_key: str, weight: float, now_s: float) -> bool:
        """Count a task against the rate limits; return False, without counting, if they don't allow it now."""
        if self._all_ready_s(now_s) > now_s or self._key_ready_s(fairness_key, weight, now_s) > now_s:
            return False
        self._charge(fairness_key, weight, now_s)
        return True

    def take_poll(self) -> Poll | None:
        """Take the oldest waiting poll for a query task: query tasks ignore held tasks and rate limits."""
        return self._pop_poll() if self._polls else None

    def take(self, now_s: float) -> HeldTask[Payload] | None:
        """Take the first task that may be dispatched now, to forward it; None if there is none or a poll waits."""
        if self._polls or (first := self._first(now_s)) is None or self._all_ready_s(now_s) > now_s:
            return None
        return self._pop(first, now_s)

    def hold(self, task: HeldTask[Payload], now_s: float) -> list[Match[Payload]]:
        """Hold a task until a poll takes it, and return the resulting matches. Holding a task twice has no effect."""
        if task.position not in self._tasks:
            self._tasks[task.position] = task
            self._enter_lane(task)
        return self.wake(now_s)

    def wait(self, poll: Poll, now_s: float) -> list[Match[Payload]]:
        """Add a waiting poll, and return the resulting matches: of this poll, or of polls that a limit held back."""
        if not self._polls and (first := self._first(now_s)) is not None and self._all_ready_s(now_s) <= now_s:
            return [Match(self._pop(first, now_s), poll)]
        self._polls[poll] = None
        return self.wake(now_s)

    def cancel(self, poll: Poll) -> bool:
        """Remove a waiting poll; False if it was matched before."""
        was_waiting = self._polls.pop(poll, poll) is None
        if was_waiting:
            self._note_left()
        return was_waiting

    def remove(self, position: Position) -> bool:
        """Remove a held task; False if it was matched before."""
        task = self._tasks.pop(position, None)
        if task is None:
            return False
        lane = self._lanes[self._lane_key(task)]
        if len(lane.positions) > _STALE_MIN and len(lane.positions) > 2 * len(self._tasks):
            held = [one for one in lane.positions if one in self._tasks]
            if lane.is_asleep:
                self._parked -= len(lane.positions) - len(held)
            heapq.heapify(held)
            lane.positions = held
        return True

    def refund(self, fairness_key: str, weight: float) -> None:
        """Give back what a matched task that was not started took from the rate limits."""
        self._rate.give_back()
        if self._key_rates.is_limiting:
            self._key_rates.of(fairness_key, weight).give_back()
        if self.is_parking:
            self._parked_queue.give_back("")
            self._parked_keys.give_back(fairness_key)
            self._wake_lane(fairness_key)

    def park(self, fairness_key: str, full: Full, now_s: float) -> None:
        """Record that a limit on running activities has refused a task, after the task was given back."""
        if not self.is_parking:
            self._parked_keys, self._parked_queue = ParkedKeys(), ParkedKeys()
            self.is_parking = True
            self._rebuild_lanes()
        if full is Full.QUEUE:
            self._parked_queue.refused("", now_s)
        else:
            self._parked_keys.refused(fairness_key, now_s)

    def note_started(self, fairness_key: str, now_s: float) -> list[Match[Payload]]:
        """Record that a task of a key has started, and return the resulting matches of parked tasks."""
        self._parked_queue.started("")
        self._parked_keys.started(fairness_key)
        self._wake_lane(fairness_key)
        return self.wake(now_s)

    def note_free_slot(self, fairness_key: str, now_s: float) -> list[Match[Payload]]:
        """Record that a running activity of a key has ended, and return the resulting matches of parked tasks."""
        self._parked_queue.freed("")
        self._parked_keys.freed(fairness_key)
        self._wake_lane(fairness_key)
        return self.wake(now_s)

    def is_held(self, fairness_key: str) -> bool:
        """Whether polls have met tasks of a key that a limit of the key holds back."""
        lane = self._lanes.get(fairness_key)
        return lane is not None and lane.is_asleep

    def change_rates(self, *, rate_per_s: float, key_rate_per_s: float, now_s: float) -> list[Match[Payload]]:
        """Change the rate limits of the partition and of a key of weight 1, and return the resulting matches."""
        self._rate.change(rate_per_s)
        self._key_rates.change(key_rate_per_s)
        self._rebuild_lanes()
        return self.wake(now_s)

    def _rebuild_lanes(self) -> None:
        self._lanes.clear()
        self._heads.clear()
        self._wakes = None
        self._parked = 0
        for task in self._tasks.values():
            self._enter_lane(task)

    def wake(self, now_s: float) -> list[Match[Payload]]:
        """Match the waiting tasks and polls that the rate limits allow at `now_s`."""
        matches = []
        while self._polls and (first := self._first(now_s)) is not None and self._all_ready_s(now_s) <= now_s:
            matches.append(Match(self._pop(first, now_s), self._pop_poll()))
        return matches

    def next_wake_s(self, now_s: float) -> float | None:
        """Return when to call `wake` next if no other event comes first; None if time alone changes nothing."""
        if not self._polls:
            return None
        if self._first(now_s) is not None:
            ready_s = self._all_ready_s(now_s)
        else:
            ready_s = self._wakes[0][0] if self._wakes else math.inf
        return ready_s if ready_s < math.inf else None

    def _pop_poll(self) -> Poll:
        poll = next(iter(self._polls))
        del self._polls[poll]
        self._note_left()
        return poll

    def _note_left(self) -> None:
        self._left += 1
        if not self._polls:
            # `clear` also frees the memory.
            self._polls.clear()
            self._left = 0
        elif self._left > _LEFT_MAX:
            self._polls = dict(self._polls)
            self._left = 0

    def _pop(self, first: tuple[Position, str], now_s: float) -> HeldTask[Payload]:
        position, key = first
        lane = self._lanes[key]
        heapq.heappop(self._heads)
        heapq.heappop(lane.positions)
        task = self._tasks.pop(position)
        if not self._tasks:
            # `clear` also frees the memory of the empty dictionary.
            self._tasks.clear()
        self._show(lane, key)
        self._charge(task.fairness_key, task.weight, now_s)
        return task

    def _lane_key(self, task: HeldTask[Payload]) -> str:
        return task.fairness_key if self._key_rates.is_limiting or self.is_parking else ""

    def _enter_lane(self, task: HeldTask[Payload]) -> None:
        key = self._lane_key(task)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        heapq.heappush(lane.positions, task.position)
        if lane.is_asleep:
            self._parked += 1
        elif lane.shown is None or task.position < lane.shown:
            self._show(lane, key)

    def _show(self, lane: _Lane, key: str) -> None:
        """Let a lane compete with its first task; remove a lane without tasks."""
        while lane.positions and lane.positions[0] not in self._tasks:
            heapq.heappop(lane.positions)
        if not lane.positions:
            del self._lanes[key]
            return
        lane.shown = lane.positions[0]
        heapq.heappush(self._heads, (lane.shown, key))
        if len(self._heads) > _STALE_MIN and len(self._heads) > 2 * len(self._lanes):
            self._heads = [head for head in self._heads if self._is_shown(head)]
            heapq.heapify(self._heads)

    def _is_shown(self, head: tuple[Position, str]) -> bool:
        lane = self._lanes.get(head[1])
        return lane is not None and lane.shown == head[0]

    def _first(self, now_s: float) -> tuple[Position, str] | None:
        """Find the first task that its key's limits allow, and its lane; put lanes at their limit to sleep."""
        while self._wakes and self._wakes[0][0] <= now_s:
            self._wake_lane(heapq.heappop(self._wakes)[1])
        while self._heads:
            position, key = self._heads[0]
            task = self._tasks.get(position)
            if not self._is_shown((position, key)):
                heapq.heappop(self._heads)
            elif task is None:
                heapq.heappop(self._heads)
                self._show(self._lanes[key], key)
            elif (ready_s := self._key_ready_s(task.fairness_key, task.weight, now_s)) > now_s:
                heapq.heappop(self._heads)
                self._put_to_sleep(key, ready_s)
            else:
                return position, key
        return None

    def _all_ready_s(self, now_s: float) -> float:
        ready_s = self._rate.ready_s(now_s)
        return max(ready_s, self._parked_queue.ready_s("", now_s)) if self.is_parking else ready_s

    def _key_ready_s(self, fairness_key: str, weight: float, now_s: float) -> float:
        ready_s = now_s
        if self._key_rates.is_limiting:
            ready_s = self._key_rates.of(fairness_key, weight).ready_s(now_s)
        return max(ready_s, self._parked_keys.ready_s(fairness_key, now_s)) if self.is_parking else ready_s

    def _put_to_sleep(self, key: str, until_s: float) -> None:
        lane = self._lanes[key]
        lane.shown, lane.is_asleep = None, True
        self._parked += len(lane.positions)
        if self._wakes is None:
            self._wakes = []
        heapq.heappush(self._wakes, (until_s, key))

    def _wake_lane(self, key: str) -> None:
        lane = self._lanes.get(key)
        if lane is None or not lane.is_asleep:
            # The lane was woken before its time: its limits still hold it back.
            return
        lane.is_asleep = False
        self._parked -= len(lane.positions)
        self._show(lane, key)

    def _charge(self, fairness_key: str, weight: float, now_s: float) -> None:
        self._rate.take(now_s)
        if self._key_rates.is_limiting:
            self._key_rates.of(fairness_key, weight).take(now_s)
        if self.is_parking:
            self._parked_queue.take("", now_s)
            self._parked_keys.take(fairness_key, now_s)
