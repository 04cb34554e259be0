"""Which waiting poll gets which task: by priority, then by fair level, first come first served among polls.

Nothing here waits: the partition calls in when something happens, and is told what is matched by it. Each call costs
the logarithm of what is held at most, however many tasks and polls there are.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from fairlead.core.fairness import Level
from fairlead.matching.rates import KeyRates, Rate

Payload = TypeVar("Payload")

# Entries that no longer count are left in the heaps until they come up; past this many, and more than half, they are
# swept out.
_STALE_MIN = 64


class Place(NamedTuple):
    """Where a task stands among all that a partition holds; the lowest goes first."""

    priority: int
    level: Level


@dataclass(slots=True, eq=False)
class HeldTask(Generic[Payload]):
    """A task of the backlog that is loaded, and can be dispatched."""

    place: Place
    fairness_key: str
    weight: float
    payload: Payload
    created_s: float = 0.0


@dataclass(slots=True, eq=False)
class Poll:
    """A caller that waits for a task. What is done with it when it is matched is the partition's business."""

    identity: str = ""


@dataclass(frozen=True, slots=True)
class Match(Generic[Payload]):
    """A task that goes to a poll."""

    task: HeldTask[Payload]
    poll: Poll


class _Lane:
    """The tasks of one key, which its limit holds back together: only the first of them competes with other lanes."""

    __slots__ = ("is_asleep", "places", "shown")

    def __init__(self) -> None:
        self.places: list[Place] = []
        # The place with which the lane competes; None while it sleeps until its limit lets the next one go.
        self.shown: Place | None = None
        self.is_asleep = False


class Matcher(Generic[Payload]):
    """Holds tasks while no poll waits, and polls while no task can be dispatched.

    A poll waits only while nothing is held that may go now. So a task that has just come and finds a poll overtakes
    nobody.
    """

    def __init__(self, *, rate: Rate | None = None, key_rates: KeyRates | None = None) -> None:
        self._rate = rate or Rate(math.inf)
        self._key_rates = key_rates or KeyRates()
        self._tasks: dict[Place, HeldTask[Payload]] = {}
        # Without limits for keys there is one lane for all.
        self._lanes: dict[str, _Lane] = {}
        self._heads: list[tuple[Place, str]] = []
        self._wakes: list[tuple[float, str]] = []
        self._parked = 0
        self._polls: OrderedDict[Poll, None] = OrderedDict()

    @property
    def tasks(self) -> int:
        """How many tasks are held."""
        return len(self._tasks)

    @property
    def parked(self) -> int:
        """How many of them are held back by the limit of their key; some that were removed since may be among them."""
        return self._parked

    @property
    def polls(self) -> int:
        """How many polls wait."""
        return len(self._polls)

    def waiting(self) -> Iterable[Poll]:
        """The polls that wait, the first to come first. To be read, not changed."""
        return self._polls

    def held(self) -> Iterable[HeldTask[Payload]]:
        """The tasks that are held, in no order. To be read, not changed."""
        return self._tasks.values()

    def offer(self, fairness_key: str, weight: float, now_s: float, *, is_limited: bool = True) -> Poll | None:
        """The poll that a task which has just come goes to; None if there is none, and then it is not held.

        It is not taken ahead of anything that is held and may go as soon as the limit allows. One that is not limited
        has been counted elsewhere.
        """
        if not self._polls or (self._tasks and self._first(now_s) is not None):
            return None
        if is_limited and not self.admit(fairness_key, weight, now_s):
            return None
        return self._polls.popitem(last=False)[0]

    def admit(self, fairness_key: str, weight: float, now_s: float) -> bool:
        """Count a task against the limits; False if they do not let it go now, and then it is not counted."""
        if self._rate.ready_s(now_s) > now_s:
            return False
        if self._key_rates.is_limiting and self._key_rates.of(fairness_key, weight).ready_s(now_s) > now_s:
            return False
        self._charge(fairness_key, weight, now_s)
        return True

    def take_poll(self) -> Poll | None:
        """The poll that waits longest, for a task that goes ahead of all that is held and of all limits."""
        return self._polls.popitem(last=False)[0] if self._polls else None

    def take(self, now_s: float) -> HeldTask[Payload] | None:
        """The first task that may go now, for whoever asks instead of a poll; None if there is none or a poll waits."""
        if self._polls or (first := self._first(now_s)) is None or self._rate.ready_s(now_s) > now_s:
            return None
        return self._pop(first, now_s)

    def hold(self, task: HeldTask[Payload], now_s: float) -> list[Match[Payload]]:
        """Hold a task until a poll takes it; one that is held already stays as it is. What is matched by it."""
        if task.place not in self._tasks:
            self._tasks[task.place] = task
            self._enter_lane(task)
        return self.wake(now_s)

    def wait(self, poll: Poll, now_s: float) -> list[Match[Payload]]:
        """Let a poll wait until a task comes. What is matched by it: this poll, or others that waited for a limit."""
        self._polls[poll] = None
        return self.wake(now_s)

    def cancel(self, poll: Poll) -> bool:
        """Let a poll wait no longer; False if it has been given a task before."""
        return self._polls.pop(poll, poll) is None

    def remove(self, place: Place) -> bool:
        """Hold a task no longer; False if it has been given to a poll before."""
        task = self._tasks.pop(place, None)
        if task is None:
            return False
        lane = self._lanes[self._lane_key(task)]
        if len(lane.places) > _STALE_MIN and len(lane.places) > 2 * len(self._tasks):
            held = [one for one in lane.places if one in self._tasks]
            if lane.is_asleep:
                self._parked -= len(lane.places) - len(held)
            heapq.heapify(held)
            lane.places = held
        return True

    def refund(self, fairness_key: str, weight: float) -> None:
        """A task that was matched has not been started: the limits do not count it."""
        self._rate.give_back()
        if self._key_rates.is_limiting:
            self._key_rates.of(fairness_key, weight).give_back()

    def change_rates(self, *, rate_per_s: float, key_rate_per_s: float, now_s: float) -> list[Match[Payload]]:
        """Go on with other limits, for the whole and for a key of weight 1. What is matched by it."""
        self._rate.change(rate_per_s)
        self._key_rates.change(key_rate_per_s)
        self._lanes.clear()
        self._heads.clear()
        self._wakes.clear()
        self._parked = 0
        for task in self._tasks.values():
            self._enter_lane(task)
        return self.wake(now_s)

    def wake(self, now_s: float) -> list[Match[Payload]]:
        """Match what the limits allow by now."""
        matches = []
        while self._polls and (first := self._first(now_s)) is not None and self._rate.ready_s(now_s) <= now_s:
            matches.append(Match(self._pop(first, now_s), self._polls.popitem(last=False)[0]))
        return matches

    def next_wake_s(self, now_s: float) -> float | None:
        """When `wake` should be called next, if nothing else happens; None if time alone changes nothing."""
        if not self._polls:
            return None
        if self._first(now_s) is not None:
            ready_s = self._rate.ready_s(now_s)
        else:
            ready_s = self._wakes[0][0] if self._wakes else math.inf
        return ready_s if ready_s < math.inf else None

    def _pop(self, first: tuple[Place, str], now_s: float) -> HeldTask[Payload]:
        place, key = first
        lane = self._lanes[key]
        heapq.heappop(self._heads)
        heapq.heappop(lane.places)
        task = self._tasks.pop(place)
        self._show(lane, key)
        self._charge(task.fairness_key, task.weight, now_s)
        return task

    def _lane_key(self, task: HeldTask[Payload]) -> str:
        return task.fairness_key if self._key_rates.is_limiting else ""

    def _enter_lane(self, task: HeldTask[Payload]) -> None:
        key = self._lane_key(task)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        heapq.heappush(lane.places, task.place)
        if lane.is_asleep:
            self._parked += 1
        elif lane.shown is None or task.place < lane.shown:
            self._show(lane, key)

    def _show(self, lane: _Lane, key: str) -> None:
        """Let a lane compete with its first task; one that has none is taken away."""
        while lane.places and lane.places[0] not in self._tasks:
            heapq.heappop(lane.places)
        if not lane.places:
            del self._lanes[key]
            return
        lane.shown = lane.places[0]
        heapq.heappush(self._heads, (lane.shown, key))
        if len(self._heads) > _STALE_MIN and len(self._heads) > 2 * len(self._lanes):
            self._heads = [head for head in self._heads if self._is_shown(head)]
            heapq.heapify(self._heads)

    def _is_shown(self, head: tuple[Place, str]) -> bool:
        lane = self._lanes.get(head[1])
        return lane is not None and lane.shown == head[0]

    def _first(self, now_s: float) -> tuple[Place, str] | None:
        """The first task that its key's limit lets go, and its lane; lanes at their limit fall asleep on the way."""
        while self._wakes and self._wakes[0][0] <= now_s:
            self._wake_lane(heapq.heappop(self._wakes)[1])
        while self._heads:
            place, key = self._heads[0]
            task = self._tasks.get(place)
            if not self._is_shown((place, key)):
                heapq.heappop(self._heads)
            elif task is None:
                heapq.heappop(self._heads)
                self._show(self._lanes[key], key)
            elif (ready_s := self._ready_s(task, now_s)) > now_s:
                heapq.heappop(self._heads)
                self._put_to_sleep(key, ready_s)
            else:
                return place, key
        return None

    def _ready_s(self, task: HeldTask[Payload], now_s: float) -> float:
        if not self._key_rates.is_limiting:
            return now_s
        return self._key_rates.of(task.fairness_key, task.weight).ready_s(now_s)

    def _put_to_sleep(self, key: str, until_s: float) -> None:
        lane = self._lanes[key]
        lane.shown, lane.is_asleep = None, True
        self._parked += len(lane.places)
        heapq.heappush(self._wakes, (until_s, key))

    def _wake_lane(self, key: str) -> None:
        lane = self._lanes[key]
        lane.is_asleep = False
        self._parked -= len(lane.places)
        self._show(lane, key)

    def _charge(self, fairness_key: str, weight: float, now_s: float) -> None:
        self._rate.take(now_s)
        if self._key_rates.is_limiting:
            self._key_rates.of(fairness_key, weight).take(now_s)
